"""Cancels and ends of real runs whose processes resist or leave no trace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import start_ticks
from jupyter_gpugate.runs import directory, orders, processes
from jupyter_gpugate.runs.record import Record
from jupyter_gpugate.runs.scanning import Scanner
from tests.integration.run_side import GateOfRuns, program, run_side, served, until
from tests.integration.runs_under_way import begun, tree_of, written

CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
FREEZER = Path("/sys/fs/cgroup/freezer")


def left_of(record: Record) -> list[int]:
    """Processes that carry the run's mark on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            is_marked = f"mark={record.run_id}".encode() in path.read_bytes()
            if is_marked and start_ticks(int(path.parent.name)) is not None:
                found.append(int(path.parent.name))
    return found


# -- what survives ---------------------------------------------------------------------------------


def test_a_cancel_names_what_it_could_not_stop(
    gate: GateOfRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer, the end on the disk and its reason have the process that lives on."""
    if not os.access(FREEZER, os.W_OK) or os.geteuid() != 0:
        pytest.skip("only root with a freezer of its own can keep a process from being killed")
    monkeypatch.setattr(orders, "OVERTIME_S", 0.5)
    monkeypatch.setattr(processes, "ROUNDS", 5)
    side, ice = run_side(gate.path, tmp_path), FREEZER / f"gpugate-test-{os.getpid()}"
    code = (
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(f'{{child.pid}}.')\ntime.sleep(1000)"
    )

    async def test() -> None:
        record = await begun(side, gate, program(code))
        pid = int((await until(lambda: written(tmp_path / "child"), "its child"))[:-1])
        frozen = ProcessKey(pid, start_ticks(pid) or 0)
        await until(lambda: frozen in tree_of(record), "its child in its tree")
        (ice / "cgroup.procs").write_text(str(frozen.pid))
        (ice / "freezer.state").write_text("FROZEN")
        told = await side.orders.cancel(record.run_id)
        assert told.survivors == [list(frozen)]
        assert record.summary["outcome"]["kill"]["survivors"] == [list(frozen)]
        assert str(frozen.pid) in record.summary["reason"]
        assert told.end == "cancelled"

    ice.mkdir()
    try:
        served(side, test)
    finally:
        for pid in map(int, (ice / "cgroup.procs").read_text().split()):
            os.kill(pid, signal.SIGKILL)
        (ice / "freezer.state").write_text("THAWED")
        while (ice / "cgroup.procs").read_text():
            os.sched_yield()
        ice.rmdir()


def test_what_leaves_no_trace_is_killed_by_the_cgroup_of_its_dead_supervisor(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """Processes that no supervisor has seen, without its mark, end with it; so does the cgroup."""
    if not any(os.access(path / "cgroup.procs", os.W_OK) for path in CGROUPS):
        pytest.skip("there is no cgroup v2 tree that this user may change")
    side = run_side(gate.path, tmp_path)
    code = (
        "import os, signal, time\n"
        "boss, mark = os.getppid(), 'mark=' + os.environ['GPUGATE_RUN_ID']\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while not os.path.exists(os.path.join(go, 'go')): time.sleep(0.02)\n"
        "    os.kill(boss, signal.SIGSTOP)\n"
        "    for _ in range(3):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            os.setsid()\n"
        "            os.execve(python, [python, '-c', 'import time; time.sleep(1000)', mark], {})\n"
        "        while open(f'/proc/{child}/environ').read(): time.sleep(0.02)\n"
        "    os.kill(boss, signal.SIGKILL)\n"
        "    os._exit(0)\n"
        "time.sleep(1000)"
    )
    code = f"go, python = {str(tmp_path)!r}, {sys.executable!r}\n{code}"

    places: list[str] = []

    async def test() -> None:
        record = await begun(side, gate, program(code))
        told = json.loads((record.attempt_path / "tree.json").read_text())["cgroup"]
        if told is None:
            pytest.skip("the supervisor could not make a cgroup here")
        (tmp_path / "go").touch()
        await record.end.wait()
        assert left_of(record) == []
        assert record.summary["end"] == "lost"
        places.append(told)

    served(side, test)
    assert not any(os.path.lexists(place) for place in places)


def test_a_cancel_that_was_recorded_is_trusted_by_the_next_run_side(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """A run whose supervisor was killed during its cancel has ended as cancelled, not as lost."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    records: list[Record] = []

    async def begin() -> None:
        records.append(await begun(first, gate, program("import time; time.sleep(600)")))

    async def adopt() -> None:
        record = second.records.known(records[0].run_id)
        await record.end.wait()
        assert (record.summary["end"], record.life.cancelled) == ("cancelled", True)

    served(first, begin)
    supervisor = records[0].life.supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGSTOP)
    directory.write_stop(records[0].attempt_path, Stop.of(StopKind.CANCELLED))
    os.kill(supervisor.pid, signal.SIGKILL)
    served(second, adopt)


# -- history ---------------------------------------------------------------------------------------


def test_a_start_does_not_wait_for_what_has_ended(
    gate: GateOfRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New runs start while the history is read; a key or a list waits until all of it is known."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    go_on, old = threading.Event(), program("print('old')", idempotency_key="once")
    runs: list[str] = []

    async def submit() -> None:
        record = await begun(first, gate, old)
        await record.end.wait()
        runs.append(record.run_id)

    read = Scanner.row

    def held_up(scanner: Scanner, run_id: str) -> Any:
        go_on.wait()
        return read(scanner, run_id)

    async def start() -> None:
        new, _ = await second.intake.submit(program("pass"))
        gate.grant(new, fence=2)
        await second.records.known(new).end.wait()
        assert second.records.known(runs[0]).summary["output_tail"] == "old\n"
        again = asyncio.create_task(second.intake.submit(old))
        listed = asyncio.create_task(second.inventory.whole.wait())
        await asyncio.sleep(0)
        assert not again.done()
        assert not listed.done()
        go_on.set()
        assert await again == (runs[0], False)
        await listed
        assert [row.run_id for row in second.records.rows()] == [new, runs[0]]

    served(first, submit)
    monkeypatch.setattr(Scanner, "row", held_up)
    try:
        served(second, start)
    finally:
        go_on.set()
