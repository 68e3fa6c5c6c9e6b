"""Run directories that others share, that runs take apart, and that are torn, under real runs."""

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

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import start_ticks
from jupyter_gpugate.runs import launcher as launcher_module
from jupyter_gpugate.runs import orders, processes
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.machine import Machine
from jupyter_gpugate.runs.processes import is_alive
from jupyter_gpugate.runs.record import Record, Refused
from jupyter_gpugate.runs.scanning import Scanner
from tests.integration.run_side import GateOfRuns, gate_of_runs, program, run_side, served, until

CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
FREEZER = Path("/sys/fs/cgroup/freezer")


def waits_for(path: Path) -> str:
    """A program that ends once a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.02)"


async def begun(side: Launcher, gate: GateOfRuns, body: dict[str, Any], fence: int = 1) -> Record:
    """Submit a run and let it start; its record, once its program lives."""
    run_id, _ = await side.intake.submit(body)
    gate.grant(run_id, fence)
    record = side.records.known(run_id)
    await until(lambda: tree_of(record), "the run's program")
    return record


def tree_of(record: Record) -> list[ProcessKey]:
    """The processes that a run's supervisor has written down."""
    with contextlib.suppress(OSError, ValueError):
        tree = json.loads((record.attempt_path / "tree.json").read_text())
        return [ProcessKey(*pair) for pair in tree["tree"]]
    return []


def written(path: Path) -> str:
    """What a run wrote into a file, up to a full stop; "" before."""
    text = path.read_text() if path.exists() else ""
    return text if text.endswith(".") else ""


def left_of(record: Record) -> list[int]:
    """Processes that carry the run's mark on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            is_marked = f"mark={record.run_id}".encode() in path.read_bytes()
            if is_marked and start_ticks(int(path.parent.name)) is not None:
                found.append(int(path.parent.name))
    return found


# -- several machines ------------------------------------------------------------------------------


def test_another_machine_with_the_same_home_leaves_every_run_alone(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """It shows them, and neither ends, starts, requests nor deletes any; here all go on."""
    here, done = run_side(gate.path, tmp_path), tmp_path / "done"
    other = Machine(mark="b" * 32, host="node8", boot_id="another", pids="pid:[1]")

    async def test() -> None:
        over = await begun(here, gate, program("pass"), fence=1)
        await over.end.wait()
        live = await begun(here, gate, program(waits_for(done)), fence=2)
        waits, _ = await here.intake.submit(program("pass"))
        with gate_of_runs() as theirs:
            there = run_side(theirs.path, tmp_path, other)
            await there.start()
            await there.inventory.whole.wait()
            rows = {row["run_id"]: row for row in there.records.rows()}
            assert set(rows) == {over.run_id, live.run_id, waits}
            assert all(row["machine"] for row in rows.values())
            waiting = [record.run_id for record in there.records.elsewhere()]
            assert waiting == [live.run_id, waits]
            assert not there.records.unfinished()
            for run_id in rows:
                for change in (there.orders.cancel, there.orders.delete, there.orders.detach):
                    with pytest.raises(Refused) as refused:
                        await change(run_id)
                    assert (refused.value.status, refused.value.error) == (409, "elsewhere")
            await there.stop()
            told = {name for name, _ in theirs.messages}
            assert told <= {"register"}
            assert [body["run_ids"] for body in theirs.all("register")] == [[]]
        done.touch()
        await live.end.wait()
        gate.grant(waits, fence=3)
        await here.records.known(waits).end.wait()
        ends = [row["end"] for row in here.records.rows()]
        assert ends == ["completed"] * 3
        assert not any(row["machine"] for row in here.records.rows())

    served(here, test)


def test_what_another_machine_begins_and_ends_is_seen(
    gate: GateOfRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is submitted there later is listed here, and so are its end and its removal."""
    monkeypatch.setattr(launcher_module, "LOOK_AROUND_S", 0.02)
    here = run_side(gate.path, tmp_path)
    other = Machine(mark="b" * 32, host="node8", boot_id="another", pids="pid:[1]")

    def row(run_id: str) -> dict[str, Any]:
        return next((row for row in here.records.rows() if row["run_id"] == run_id), {})

    async def test() -> None:
        with gate_of_runs() as theirs:
            there = run_side(theirs.path, tmp_path, other)
            await there.start()
            run_id, _ = await there.intake.submit(program("print('theirs')"))
            await until(lambda: row(run_id).get("status") == "queued", "their run")
            theirs.grant(run_id, fence=1)
            await until(lambda: row(run_id).get("end") == "completed", "its end")
            assert "theirs" in here.records.known(run_id).summary["output_tail"]
            await there.records.known(run_id).end.wait()  # it is on the disk a moment earlier
            assert await there.orders.delete(run_id) == ""
            await until(lambda: not row(run_id), "its removal")
            await there.stop()

    served(here, test)


# -- runs that take their directory apart ----------------------------------------------------------


@pytest.mark.parametrize(
    "what",
    [
        "shutil.rmtree(run)",
        "shutil.rmtree(f'{run}/attempts/1')",
        "os.rename(run, f'{run}-moved'); os.symlink(other, run)",
        "os.rename(f'{run}/attempts', f'{run}/a'); os.symlink(other, f'{run}/attempts')",
        "os.rename(f'{run}/attempts/1', f'{run}/a'); os.symlink(other, f'{run}/attempts/1')",
        "shutil.rmtree(run); open(run, 'w').close()",
    ],
)
def test_a_run_that_removes_or_replaces_its_directory_ends_at_once(
    gate: GateOfRuns, tmp_path: Path, what: str
) -> None:
    """Its end says what was lost, and what was put in its place is not written to."""
    side, other = run_side(gate.path, tmp_path), tmp_path / "other"
    other.mkdir()
    code = "import os, shutil\nrun = f'{root}/runs/' + os.environ['GPUGATE_RUN_ID']\n"
    code = f"root, other = {str(tmp_path)!r}, {str(other)!r}\n{code}{what}"

    async def test() -> None:
        run_id, _ = await side.intake.submit(program(code))
        gate.grant(run_id, fence=1)
        record = side.records.known(run_id)
        await record.end.wait()
        assert record.summary["end"] == "lost"
        assert "directory was removed" in record.summary["reason"]
        assert list(other.iterdir()) == []
        assert await side.orders.delete(run_id) == ""

    served(side, test)


# -- torn records ----------------------------------------------------------------------------------


async def cancelled(side: Launcher, run_id: str, name: str) -> None:
    """Cancel an adopted run, which is active under this name; nothing of it is left."""
    record = side.records.known(run_id)
    assert (record.status, record.spec["name"]) == ("active", name)
    told = await side.orders.cancel(run_id)
    assert (told["end"], told["survivors"]) == ("cancelled", [])
    assert not (record.path / "env.json").exists()


@pytest.mark.parametrize("torn", [("spec",), ("spec", "summary")])
def test_a_live_run_with_a_torn_spec_goes_on_and_can_be_cancelled(
    gate: GateOfRuns, tmp_path: Path, torn: tuple[str, ...]
) -> None:
    """The next run side knows it by its other records; its environment goes with its end."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    records: list[Record] = []

    async def submit() -> None:
        records.append(await begun(first, gate, program(waits_for(tmp_path / "never"))))

    async def adopt() -> None:
        await cancelled(second, records[0].run_id, "test")

    served(first, submit)
    for name in torn:
        (records[0].path / f"{name}.json").write_text('{"run_id": "2026')
    served(second, adopt)
    assert not any(map(is_alive, tree_of(records[0])))


def test_a_queued_run_with_a_torn_spec_is_lost(gate: GateOfRuns, tmp_path: Path) -> None:
    """It cannot be started any more, which its end and the gate are told."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    runs: list[str] = []

    async def submit() -> None:
        runs.append((await first.intake.submit(program("pass")))[0])

    async def adopt() -> None:
        record = second.records.known(runs[0])
        assert record.summary["end"] == "lost"
        assert "spec.json cannot be read" in record.summary["reason"]
        assert not (record.path / "env.json").exists()
        await until(lambda: gate.all("withdraw"), "its withdrawal")

    served(first, submit)
    (tmp_path / "runs" / runs[0] / "spec.json").write_text("")
    gate.replies["register"] = (200, {"unknown": [], "unneeded": [runs[0]]})
    served(second, adopt)


def test_a_live_run_without_any_record_can_be_cancelled(gate: GateOfRuns, tmp_path: Path) -> None:
    """The gate still knows it, and its processes still carry its mark."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    records: list[Record] = []

    async def submit() -> None:
        records.append(await begun(first, gate, program(waits_for(tmp_path / "never"))))

    async def adopt() -> None:
        await cancelled(second, records[0].run_id, "told by the gate")

    served(first, submit)
    tree = tree_of(records[0])
    for path in (*records[0].path.glob("*.json"), records[0].attempt_path / "launch.json"):
        if path.name != "env.json":
            path.write_text("torn")
    lease = {"name": "told by the gate", "attempt": 1, "fence": 1}
    known = {"unknown": [], "unneeded": [records[0].run_id], "live": {records[0].run_id: lease}}
    gate.replies["register"] = (200, known)
    served(second, adopt)
    assert not any(map(is_alive, tree))


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
        assert told["survivors"] == [list(frozen)]
        assert record.summary["outcome"]["kill"]["survivors"] == [list(frozen)]
        assert str(frozen.pid) in record.summary["reason"]
        assert told["end"] == "cancelled"

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
        assert [row["run_id"] for row in second.records.rows()] == [new, runs[0]]

    served(first, submit)
    monkeypatch.setattr(Scanner, "row", held_up)
    try:
        served(second, start)
    finally:
        go_on.set()
