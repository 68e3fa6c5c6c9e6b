"""Runs that Python code submits, in a plain script and in a notebook."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.acceptance.commands import gpugate, told
from tests.kit.front_end import notebook
from tests.kit.real_server import Places, Served

SCRIPT = """\
import json, sys
import jupyter_gpugate as gpugate

source = "total = sum(xs) * params['batch']\\nprint(params)"
cell = gpugate.submit(
    source, name="cell", inputs={"xs": [1, 2, 3]}, outputs=["total"],
    parameters={"batch": 8}, free_parameters={"seed": 1}, hint_ram="1GB", gpus=0,
)
command = gpugate.submit([sys.executable, "-c", "print('ran')"], name="command", gpus=0)
command.wait()
again = gpugate.submit(name="command")
found = {
    "repr": repr(cell), "result": cell.result(), "output": cell.output(),
    "again": again.wait().output(), "repeats": again.state()["repeats"],
    "ids": [run.run_id for run in (cell, command, again)], "statuses": again.status(),
}
for wrong in (dict(workers="many"), dict(wrokers=2)):
    try:
        gpugate.submit("pass", name="wrong", **wrong)
    except (ValueError, TypeError) as error:
        found[type(error).__name__] = str(error)
print(json.dumps(found))
"""


@pytest.mark.behaviour(171)
def test_python_code_submits_cells_commands_and_repetitions(places: Places) -> None:
    """A string is a cell, a list a command, a name alone the newest run of that name; each call
    returns a handle at once, which shows its name and parameters.
    """
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=places.environ(),
        cwd=places.notebooks,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    cell, command, again = found["ids"]
    assert found["repr"] == f"<Run {cell} cell batch=8 seed=1>"
    assert found["result"] == 48
    assert found["output"] == "{'batch': 8, 'seed': 1}\n"
    assert (found["again"], found["repeats"], found["statuses"]) == ("ran\n", command, "completed")
    assert found["SubmissionError"].startswith("workers: `many` must be a whole number")
    assert found["TypeError"] == "wrokers is no option of this run; did you mean workers?"
    rows = {row["run_id"]: row for row in told(places, "runs", "--json")["runs"]}
    assert set(rows) == {cell, command, again}
    refused = gpugate(places, "run", "cell")
    assert (refused.returncode, "had copies of xs" in refused.stderr) == (2, True)


@pytest.mark.behaviour(171)
def test_a_cell_is_run_again_from_a_terminal(server: Served) -> None:
    """Its source, parameters and options are kept, and its output goes to the terminal."""
    with notebook(server.places) as kernel:
        kernel.run("%load_ext jupyter_gpugate")
        cell = "for e in episodes:\n    e.keep(e.index)\nprint(params, episodes.values)"
        done = kernel.run(f"%%gated_eval cell --episodes 3 --set batch=4\n{cell}")
        assert not done.error, done.error
    again = gpugate(server.places, "run", "cell", "--set", "batch=5")
    assert again.stdout == "{'batch': 5} [0, 1, 2]\n", again.stderr
    assert "repeats the source of" in again.stderr


def test_a_notebook_submits_and_finds_its_runs_by_name(server: Served) -> None:
    """A handle is its card, and a name is enough to cancel."""
    with notebook(server.places) as kernel:
        kernel.run("%load_ext jupyter_gpugate\nimport jupyter_gpugate as gpugate")
        kernel.run(
            "run = gpugate.submit('import time; time.sleep(1000)', name='slow', "
            "parameters={'batch': 8})"
        )
        (row,) = server.ask("GET", "/runs?status=unfinished").json["runs"]
        assert (row["name"], row["parameters"]) == ("slow", {"batch": "8"})
        assert "slow batch=8" in kernel.value("run")
        kernel.run("%gpu_cancel slow")
        assert server.ended(row["run_id"])["end"] == "cancelled"
