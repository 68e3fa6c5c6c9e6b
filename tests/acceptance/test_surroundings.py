"""A run's processes keep the surroundings of its notebook, whoever hosts the gate."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.served import Places

ROOT = Path(__file__).resolve().parents[2]
#: A Python that does not start without a variable, as the loader or Python itself would refuse.
PYTHON = """\
#!/bin/bash
{condition} || {{ echo "error while loading shared libraries: libsite.so.1" >&2; exit 127; }}
exec -a "$0" {real} "$@"
"""
BY_THE_LOADER = ('[ "$LD_LIBRARY_PATH" ]', {"LD_LIBRARY_PATH": "/site/lib"})
BY_ITS_HOME = (
    '[ "$PYTHONHOME" ] && [[ "$1" != -*[IE]* ]]',
    {"PYTHONHOME": sys.base_prefix},
)


def module_python(places: Places, condition: str) -> Path:
    """Make an interpreter that starts only where a condition of bash holds."""
    real = Path(sys.executable).resolve()
    python = places.root / "module" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (python.parents[1] / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    python.write_text(PYTHON.format(condition=condition, real=real))
    python.chmod(0o755)
    return python


def run(places: Places, python: Path, *words: str, **environ: str) -> dict[str, Any]:
    """Run a command by this interpreter's client and, where none is there yet, gate."""
    importable = f"{ROOT}:{sysconfig.get_path('purelib')}"
    done = subprocess.run(
        [python, "-m", "jupyter_gpugate", "run", "first", "--gpus", "0", "--json", "--", *words],
        env=places.environ(PYTHONPATH=importable, **environ),
        cwd=places.notebooks,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(("condition", "needed"), [BY_THE_LOADER, BY_ITS_HOME])
def test_a_python_that_needs_its_variables_has_them_in_every_process(
    places: Places, condition: str, needed: dict[str, str]
) -> None:
    """Client, gate, readers and supervisor start by an interpreter that needs a variable."""
    assert run(places, module_python(places, condition), "true", **needed)["end"] == "completed"


def test_a_supervisor_that_does_not_start_says_why(places: Places) -> None:
    """The end has the last words of the supervisor's log, and blames no killer."""
    python = module_python(places, '[[ "$*" != *supervisor.py* ]]')
    state = run(places, python, "true")
    assert state["end"] == "failed"
    assert state["exit_reason"].startswith("its supervisor did not start: error while loading")
