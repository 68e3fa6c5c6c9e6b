"""A run's processes keep the surroundings of its notebook, whoever hosts the gate."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml import GB, StandIn
from tests.kit.real_server import Places, Served, until

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
    python = module_python(places, '[[ "$*" != *gpugate_programs/supervisor* ]]')
    state = run(places, python, "true")
    assert state["end"] == "failed"
    assert state["exit_reason"].startswith("its supervisor did not start: error while loading")


SEEN = "import json, os; print(json.dumps([v for v in os.environ.items() if 'VISIBLE' in v[0]]))"
SUBMITS = (
    "import subprocess, sys\n"
    "inner = [sys.executable, '-m', 'jupyter_gpugate', 'run', 'inner', *sys.argv[2:], '--']\n"
    "sys.exit(subprocess.call([*inner, sys.executable, '-c', sys.argv[1]], stderr=-3))\n"
)


def gpugate(places: Places, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """One command of a user with these variables, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpugate", *words],
        env={**unmasked(places), **environ},
        cwd=places.notebooks,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def unmasked(places: Places) -> dict[str, str]:
    """The environment of a user whose administrator hides no device."""
    return {k: v for k, v in places.environ().items() if "VISIBLE" not in k}


def seen_by_a_run(places: Places, *options: str, **environ: str) -> dict[str, str]:
    """The masks in the environment of a run that a terminal with these variables submits."""
    done = gpugate(places, "run", "seen", *options, "--", sys.executable, "-c", SEEN, **environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_without_a_managed_device_the_masks_are_the_notebooks(places: Places) -> None:
    """Only a run that asked for no GPU is kept off those that the gate does not manage."""
    own = {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "0"}
    assert seen_by_a_run(places) == {}
    assert seen_by_a_run(places, **own) == own
    assert seen_by_a_run(places, "--gpus", "0", **own) == {**own, "CUDA_VISIBLE_DEVICES": ""}


def test_a_run_gets_a_device_that_its_submitter_sees(stand_in: StandIn, places: Places) -> None:
    """A mask decides where a run may go, how many devices there are, and if one is the default."""
    stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    assert seen_by_a_run(places, CUDA_VISIBLE_DEVICES="1") == {"CUDA_VISIBLE_DEVICES": "1"}
    assert seen_by_a_run(places, CUDA_VISIBLE_DEVICES="-1") == {"CUDA_VISIBLE_DEVICES": ""}
    words = ("run", "two", "--gpus", "2", "--", "true")
    refused = gpugate(places, *words, CUDA_VISIBLE_DEVICES="1")
    assert refused.returncode == 2
    assert "CUDA_VISIBLE_DEVICES=1 leaves GPU 1 (NVIDIA L4) to this notebook" in refused.stderr
    assert gpugate(places, *words).returncode == 0


def test_a_run_of_a_run_sees_what_the_notebook_sees(stand_in: StandIn, places: Places) -> None:
    """A run on the CPU that submits others is no mask for them; the administrator's mask is."""
    stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    outer = ("run", "outer", "--gpus", "0", "--", sys.executable, "-c", SUBMITS, SEEN)
    for asked, mask, inner in (
        ("2", {}, {"0", "1"}),
        ("1", {"CUDA_VISIBLE_DEVICES": "1"}, {"1"}),
    ):
        done = gpugate(places, *outer, "--gpus", asked, **mask)
        assert done.returncode == 0, done.stderr
        found = dict(json.loads(done.stdout.splitlines()[-1]))
        assert set(found["CUDA_VISIBLE_DEVICES"].split(",")) == inner


def test_a_lock_takes_no_device_that_its_notebook_does_not_see(
    stand_in: StandIn, server: Served
) -> None:
    """Numbers are the machine's, as on cards; another's device is refused with the mask's name."""
    second = stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    until(lambda: second in server.queue()["free_bytes"], "the second GPU is seen")
    refused = server.ask("POST", "/lock", {"resource": "0", "visible": "1"})
    assert refused.status == 400
    assert "CUDA_VISIBLE_DEVICES=1 leaves GPU 1" in refused.json["message"]
    for body in ({"resource": "1", "visible": "1"}, {"resource": "0"}, {"visible": "1"}):
        assert server.ask("POST", "/lock", body).status == 200
