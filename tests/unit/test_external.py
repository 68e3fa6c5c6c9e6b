"""What is shown of other people's processes, and what is not."""

from __future__ import annotations

import pytest

from jupyter_gpugate.gate.machine.external import shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/usr/bin/vllm", "serve", "--api-key", "secret"], "vllm"),
        (["/opt/py/bin/python3.11", "-u", "train.py", "--token=secret"], "python3.11 train.py"),
        (["python", "-m", "jupyterlab", "--IdentityProvider.token=secret"], "python -m jupyterlab"),
        (["python", "-c", "print('secret')"], "python -c"),
        (["python", "-X", "dev", "-W", "error", "/home/ada/eval.py"], "python eval.py"),
        (["python"], "python"),
    ],
)
def test_a_command_is_shown_without_its_arguments(words: list[str], expected: str) -> None:
    """Program, script or module are shown; arguments, where tokens stand, are not."""
    assert shown(words) == expected
