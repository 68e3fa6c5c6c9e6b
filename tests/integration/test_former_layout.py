"""Runs of an earlier version, which copied its programs into each attempt's directory, go on.

`tests/data/run-v1` is the directory of such a run while its cell was executing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import boot_id, start_ticks
from jupyter_gpugate.runs.ids import new_run_id
from jupyter_gpugate.runs.machine import this_machine
from jupyter_gpugate.runs.processes import is_alive
from jupyter_gpugate.runs.reading import episodes_of, output_of
from jupyter_gpugate.runs.record import Record
from tests.integration.run_side import GateOfRuns, run_side, served, until

RUN_V1 = Path(__file__).parents[1] / "data" / "run-v1"
#: What the processes of an attempt write.
WRITTEN = ("*.jsonl", "*.log", "tree.json")


def laid_out(root: Path, gate: GateOfRuns, run_id: str, boot: str) -> Path:
    """Put the directory among the runs of this machine; return its attempt."""
    run = root / "runs" / run_id
    shutil.copytree(RUN_V1, run)
    filled = {
        "@RUN@": run_id,  # its own, by which its processes are found
        '"@MACHINE@"': json.dumps(this_machine(root).to_json()),
        '"@PATH@"': json.dumps(["", *sys.path[1:]]),
        "@ROOT@": str(root),
        "@SOCKET@": str(gate.path),
        "@PYTHON@": sys.executable,
        "@BOOT@": boot,
    }
    for path in run.rglob("*.json"):
        text = path.read_text()
        for mark, value in filled.items():
            text = text.replace(mark, value)
        path.write_text(text)
    return Path(run, "attempts", "1")


@contextlib.contextmanager
def live(root: Path, gate: GateOfRuns, run_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """Let the run's own programs execute it as that version did; give its supervisor."""
    attempt = laid_out(root, gate, run_id, boot_id())
    for pattern in WRITTEN:
        for path in attempt.glob(pattern):
            path.unlink()
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", str(attempt / "supervisor.py"), str(attempt)],
        stdin=subprocess.DEVNULL,
        cwd="/",
        env={"PATH": os.environ["PATH"], "GPUGATE_RUN_ID": run_id},
        start_new_session=True,
    )
    try:
        yield supervisor
    finally:
        supervisor.terminate()
        supervisor.wait()


async def begun(attempt: Path) -> None:
    """Wait until the cell executes and the supervisor has recorded it."""
    await until((attempt / "tree.json").exists, "its tree")
    await until(lambda: "begun" in (attempt / "output.log").read_text(), "its cell")


def test_a_live_run_is_adopted_and_its_outcome_read(gate: GateOfRuns, tmp_path: Path) -> None:
    """The run side waits for a supervisor that it did not start, and records its end and output."""
    side, run_id = run_side(gate.path, tmp_path), new_run_id()

    async def test() -> None:
        record = side.records.known(run_id)
        await begun(record.attempt_path)
        assert (record.status, record.life.supervisor) == ("active", named(supervisor))
        (tmp_path / "go").touch()
        await record.end.wait()
        assert record.summary["end"] == "completed"
        assert (await output_of(side.records.known(run_id), 0)).text == "begun\ndone\n"
        assert [e["index"] for e in (await episodes_of(side.records.known(run_id)))[0]] == [0]

    with live(tmp_path, gate, run_id) as supervisor:
        served(side, test)


def test_a_cancel_reaches_a_live_run(gate: GateOfRuns, tmp_path: Path) -> None:
    """A cancel stops the run by its own supervisor, which leaves no process behind."""
    side, run_id = run_side(gate.path, tmp_path), new_run_id()

    async def test() -> None:
        record = side.records.known(run_id)
        await begun(record.attempt_path)
        members = tree_of(record)
        assert members
        assert (await side.orders.cancel(run_id)).end == "cancelled"
        assert not any(map(is_alive, [*members, named(supervisor)]))
        outcome = json.loads((record.attempt_path / "outcome.json").read_text())
        assert outcome["end"]["reason"] == "cancelled"

    with live(tmp_path, gate, run_id) as supervisor:
        served(side, test)


def test_a_run_whose_supervisor_is_killed_leaves_no_process(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """The recorded tree of an adopted run is stopped when its supervisor is gone."""
    side, run_id = run_side(gate.path, tmp_path), new_run_id()

    async def test() -> None:
        record = side.records.known(run_id)
        await begun(record.attempt_path)
        members = tree_of(record)
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        await record.end.wait()
        assert record.summary["end"] == "lost"
        assert not any(map(is_alive, members))

    with live(tmp_path, gate, run_id) as supervisor:
        served(side, test)


def test_a_supervisor_is_found_before_it_has_recorded_its_tree(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """Without tree.json an adopted run's supervisor is found by its command line."""
    gate.replies["started"] = (503, {})  # it waits, and has recorded nothing
    side, run_id = run_side(gate.path, tmp_path), new_run_id()

    async def test() -> None:
        record = side.records.known(run_id)
        assert record.life.supervisor == named(supervisor)
        assert not (record.attempt_path / "tree.json").exists()
        gate.replies["started"] = (200, {"verdict": "go"})
        (tmp_path / "go").touch()
        await record.end.wait()
        assert record.summary["end"] == "completed"

    with live(tmp_path, gate, run_id) as supervisor:
        gate.wait_for("started")
        served(side, test)


def test_a_run_of_an_earlier_boot_is_lost(gate: GateOfRuns, tmp_path: Path) -> None:
    """The records of a run that ran when the machine went down are read, and it ends as lost."""
    side, run_id = run_side(gate.path, tmp_path), new_run_id()
    laid_out(tmp_path, gate, run_id, "00000000-0000-0000-0000-000000000000")

    async def test() -> None:
        record = side.records.known(run_id)
        await record.end.wait()
        assert (record.summary["end"], record.summary["reason"]) == ("lost", "reboot")
        assert record.summary["output_tail"] == "begun\n"

    served(side, test)


def named(process: subprocess.Popen[bytes]) -> ProcessKey:
    """Identify a child of this process."""
    return ProcessKey(process.pid, start_ticks(process.pid) or 0)


def tree_of(record: Record) -> list[ProcessKey]:
    """Return the processes that the run's supervisor has recorded."""
    tree: dict[str, Any] = json.loads((record.attempt_path / "tree.json").read_text())
    return [ProcessKey(*pair) for pair in tree["tree"]]
