"""From a submitted body to a run's spec, and to what the gate is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.requests import Setting
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.runs.requests import request_of, spec_of


def spec(root: Path, **body: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What becomes of a body, as the API has validated it, and of its environment."""
    given = {"name": "eval", "source": "pass", "gpus": 0, "workers": 1, "episodes": 1, **body}
    return spec_of("20261130-000000-abcde", given, root, "digest")


def setting(root: Path, **body: Any) -> Setting:
    """The setting under which a run's needs are remembered."""
    return request_of({**spec(root, **body)[0], "source_hash": "one"}, "ada").setting


def test_a_setting_is_its_parameters_in_whatever_order(tmp_path: Path) -> None:
    """Those that do not matter for memory are no part of it, words of a command line as little."""
    one = setting(tmp_path, parameters={"batch": "8", "model": "small"})
    assert setting(tmp_path, parameters={"model": "small", "batch": "8"}) == one
    assert setting(tmp_path, parameters={"model": "small", "batch": "9"}) != one
    seeded = {"seed": "1", "batch": "8", "model": "small"}
    assert setting(tmp_path, parameters=seeded, memory_irrelevant=["seed"]) == one
    argv = ["eval", "--batch", "8"]
    command = setting(tmp_path, source=None, argv=argv)
    more = [*argv, "-v"]
    assert setting(tmp_path, source=None, argv=more, memory_irrelevant=["-v"]) == command
    assert setting(tmp_path, source=None, argv=more) != command
    filled_in = {"argv": ["eval", "--batch", "{batch}"], "parameters": {"batch": "8"}}
    assert setting(tmp_path, source=None, **filled_in) == command


def test_no_token_of_a_server_comes_into_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else of an environment does, be it the one that was sent or this process's own."""
    sent = {"LANG": "C", "JUPYTERHUB_API_TOKEN": "secret"}
    assert spec(tmp_path, environment=sent)[1] == {"LANG": "C"}
    for name, value in sent.items():
        monkeypatch.setenv(name, value)
    own = spec(tmp_path)[1]
    assert (own["LANG"], "JUPYTERHUB_API_TOKEN" in own) == ("C", False)


def test_a_run_starts_in_a_folder_that_is_there(tmp_path: Path) -> None:
    """Its own, or the server's; one that is missing is refused."""
    (tmp_path / "own").mkdir()
    assert spec(tmp_path)[0]["cwd"] == str(tmp_path)
    assert spec(tmp_path, cwd=str(tmp_path / "own"))[0]["cwd"] == str(tmp_path / "own")
    with pytest.raises(Refused, match="is not a directory"):
        spec(tmp_path, cwd=str(tmp_path / "gone"))
