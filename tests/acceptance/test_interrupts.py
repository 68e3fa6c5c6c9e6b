"""Interrupts of a waiting cell, in real kernels, at every moment of its way through the gate."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.acceptance.interrupted_cells import answers, gone, pending, story, waiting_cell
from tests.kit.controlled_runs import HINT, ControlledRun, drained, processes_of
from tests.kit.front_end import ASKS, Cell, notebook
from tests.kit.real_server import PATIENCE_S, Places, Served, until


def told(cell: Cell) -> str:
    """The one line that the error of a cell is shown as."""
    (line,) = cell.error["traceback"]
    return str(line)


# -- in the queue -----------------------------------------------------------------------------


def test_one_interrupt_leaves_a_queued_run_that_any_notebook_can_have(
    shared_server: Served,
) -> None:
    """The cell ends with RunDetached, those behind it do not run; the run outlives the kernel, runs
    once, and another notebook and a later one get its result.
    """
    server = shared_server
    work = ControlledRun(server.places, "left")
    with notebook(server.places) as first:
        with drained(server):
            cell, run_id = waiting_cell(server, first, work)
            behind = first.start("'never'")
            first.interrupt()
            first.shows(cell, ASKS)
            first.end_of(cell)
            assert cell.ename == "RunDetached"
            assert told(cell) == (
                "RunDetached: the run goes on without this cell; "
                f'jupyter_gpugate.get("{run_id}") follows it'
            )
            assert first.end_of(behind).texts == []
            assert server.run(run_id)["detached"] is True
            os.kill(first.pid, signal.SIGKILL)
            gone(first.pid)
            server.waiting(run_id, "drain")
        work.end()
        get = f"import jupyter_gpugate; jupyter_gpugate.get('{run_id}').result()"
        with notebook(server.places) as second:
            assert second.value(get) == "42"
            assert second.value(get) == "42"
    assert work.times_begun() == 1
    assert len(story(server, run_id, "started")) == 1


@pytest.mark.behaviour(12)
def test_a_second_interrupt_takes_a_queued_run_back(shared_server: Served) -> None:
    """The cell ends with RunCancelled, and the run has never begun."""
    work = ControlledRun(shared_server.places, "back")
    with notebook(shared_server.places) as front_end, drained(shared_server):
        cell, run_id = waiting_cell(shared_server, front_end, work)
        front_end.interrupt()
        front_end.shows(cell, ASKS)
        front_end.interrupt()
        assert told(front_end.end_of(cell)) == f"RunCancelled: {work.name} ({run_id}) was cancelled"
        assert answers(front_end)
    assert shared_server.run(run_id)["end"] == "cancelled"
    assert work.times_begun() == 0


def test_a_run_that_is_detached_elsewhere_ends_the_wait(shared_server: Served) -> None:
    """Whoever detaches it over HTTP, as a card's button does while the kernel is busy, frees the
    cell at once; a run that has ended can no longer be detached.
    """
    work = ControlledRun(shared_server.places, "button")
    with notebook(shared_server.places) as front_end, drained(shared_server):
        cell, run_id = waiting_cell(shared_server, front_end, work)
        assert shared_server.ask("POST", f"/runs/{run_id}/detach").json == {"detached": True}
        assert front_end.end_of(cell).ename == "RunDetached"
        assert shared_server.run(run_id)["status"] == "queued"
        assert shared_server.ask("POST", f"/runs/{run_id}/cancel").status == 200
    assert shared_server.ask("POST", f"/runs/{run_id}/detach").status == 409


# -- before it is queued ----------------------------------------------------------------------


def test_an_interrupt_before_the_gate_is_found_queues_nothing(places: Places) -> None:
    """While a gate is being started the interrupt is an ordinary one, without frames of ours; the
    next cell finds the gate and runs.
    """
    with notebook(places) as front_end:
        cell = front_end.start("%%gated_eval early --hint-ram 64MB\nx = 1")
        until((places.runtime / "gpugate" / "gate.log").exists, "a gate is being started")
        front_end.interrupt()
        assert told(front_end.end_of(cell)) == "KeyboardInterrupt: nothing was queued yet"
        assert cell.run_ids == set()
        later = front_end.run("%%gated_eval later --hint-ram 64MB\nx = 1")
        assert later.error == {}
        assert [path.name for path in places.runs.glob("2*")] == [*later.run_ids]


def knocks(server: Served) -> int:
    """How many connections wait at the gate's socket, or are open there."""
    table = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(str(server.places.socket)) for line in table)


@pytest.mark.parametrize(("interrupts", "ename"), [(1, "RunDetached"), (2, "RunCancelled")])
def test_a_submit_is_seen_through_whatever_interrupts_it(
    server: Served, interrupts: int, ename: str
) -> None:
    """With the gate held in the middle of a submit, the cell waits for its answer and then does
    what the interrupts ask for: no run is queued that nobody knows.
    """
    work = ControlledRun(server.places, "submit")
    with notebook(server.places) as front_end:
        before = knocks(server)
        server.process.send_signal(signal.SIGSTOP)
        cell = front_end.start(work.source())
        until(lambda: knocks(server) >= before + 2, "the submit is under way")
        for _ in range(interrupts):
            front_end.interrupt()
            # Two signals at once would be one.
            until(lambda: not pending(front_end.pid), "it is taken")
        server.process.send_signal(signal.SIGCONT)
        assert front_end.end_of(cell).ename == ename
        assert answers(front_end)
    (run,) = server.ask("GET", "/runs").json["runs"]
    assert cell.run_ids == {run["run_id"]}
    work.end()
    assert server.ended(run["run_id"])["end"] == {1: "completed", 2: "cancelled"}[interrupts]
    assert work.times_begun() <= 1


# -- granted, running, stopping, ending ---------------------------------------------------------


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_while_the_run_starts(shared_server: Served, interrupts: int) -> None:
    """A run whose supervisor has not got its go yet is left, or stopped, as any other."""
    server = shared_server
    work = ControlledRun(server.places, "starts")
    with notebook(server.places) as front_end:
        with drained(server):
            cell, run_id = waiting_cell(server, front_end, work, "")
        supervisor = supervisor_of(run_id)
        os.kill(supervisor, signal.SIGSTOP)
        front_end.interrupt()
        front_end.shows(cell, ASKS)
        if interrupts == 2:
            front_end.interrupt()
            front_end.shows(cell, "cancelling")
        else:
            front_end.end_of(cell)
        os.kill(supervisor, signal.SIGCONT)
        assert front_end.end_of(cell).ename == {1: "RunDetached", 2: "RunCancelled"}[interrupts]
        assert answers(front_end)
        work.end()
        end = server.ended(run_id)["end"]
        assert end == {1: "completed", 2: "cancelled"}[interrupts]
    assert work.times_begun() <= 1
    assert processes_of(run_id) == []


def supervisor_of(run_id: str) -> int:
    """The supervisor of a run, at the very moment at which it appears."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if b"gpugate_programs/supervisor" in words and run_id.encode() in words:
                    return int(entry.name)
    raise AssertionError(f"no supervisor of {run_id}")


@pytest.mark.behaviour(12)
def test_two_interrupts_stop_a_live_run_with_all_its_processes(shared_server: Served) -> None:
    """The cell waits for the end; then none of the run's processes is left, nor a child of it."""
    work = ControlledRun(shared_server.places, "stopped")
    child = "import subprocess; child = subprocess.Popen(['sleep', '1000'])"
    with notebook(shared_server.places) as front_end:
        cell = front_end.start(work.source("--output x", before=child))
        work.begins()
        run_id = front_end.run_id(cell)
        assert len(processes_of(run_id)) >= 2
        front_end.interrupt()
        front_end.shows(cell, ASKS)
        front_end.interrupt()
        assert told(front_end.end_of(cell)).startswith("RunCancelled: ")
        assert processes_of(run_id) == []
        assert "cancelled" in cell.texts[-1]
        assert answers(front_end)


def test_one_interrupt_leaves_a_live_run_and_the_notebook_silent(shared_server: Served) -> None:
    """A live run goes on; what it prints and displays later shows nowhere in the notebook."""
    work = ControlledRun(shared_server.places, "silent")
    with notebook(shared_server.places) as front_end:
        cell = front_end.start(work.source("--output x", after="print('late'); x = 1\n'later'"))
        work.begins()
        run_id = front_end.run_id(cell)
        front_end.interrupt()
        assert front_end.end_of(cell).ename == "RunDetached"
        seen = len(cell.messages)
        work.end()
        assert shared_server.ended(run_id)["end"] == "completed"
        quiet = front_end.run(f"import jupyter_gpugate as g; g.get('{run_id}').wait(); None")
        assert (quiet.texts, quiet.printed) == ([], "")
        assert len(cell.messages) == seen
        assert front_end.value(f"g.get('{run_id}').output()") == "'late\\n'"


@pytest.mark.behaviour(13)
def test_an_interrupt_while_it_stops_no_longer_waits(shared_server: Served) -> None:
    """A run that ignores the first signal keeps its cell waiting; a third interrupt frees the cell,
    the run is killed all the same, and a wait elsewhere ends with RunCancelled.
    """
    work = ControlledRun(shared_server.places, "stubborn")
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with notebook(shared_server.places) as front_end:
        cell = front_end.start(work.source(before=ignores))
        work.begins()
        run_id = front_end.run_id(cell)
        front_end.interrupt()
        front_end.shows(cell, ASKS)
        front_end.interrupt()
        front_end.shows(cell, "cancelling: its processes are being stopped")
        until(lambda: shared_server.run(run_id)["cancel_requested"], "the cancel has arrived")
        while not cell.over:
            front_end.interrupt()
            front_end.look(0.3)
        assert told(cell) == (
            f'RunCancelled: {run_id} is being stopped; jupyter_gpugate.get("{run_id}") follows it'
        )
        assert shared_server.run(run_id)["status"] == "active"
        wait = front_end.run(f"import jupyter_gpugate as g; g.get('{run_id}').wait()")
        assert wait.ename == "RunCancelled"
    assert processes_of(run_id) == []


def test_an_interrupt_at_the_moment_of_the_end(shared_server: Served) -> None:
    """A run that completes while the card asks hands its outputs over; the cells behind do not run,
    as the interrupt wanted.
    """
    work = ControlledRun(shared_server.places, "ending")
    with notebook(shared_server.places) as front_end:
        cell = front_end.start(work.source("--output x"))
        work.begins()
        run_id = front_end.run_id(cell)
        front_end.interrupt()
        front_end.shows(cell, ASKS)
        work.end()
        assert told(front_end.end_of(cell)) == (
            "RunDetached: the run completed before the interrupt; "
            f'jupyter_gpugate.get("{run_id}") has it'
        )
        assert front_end.value("x") == "42"


def test_an_interrupt_while_outputs_are_loaded(shared_server: Served) -> None:
    """Loading can be interrupted; the cell says where its outputs are, and they are there."""
    module = shared_server.places.notebooks / "slow_value.py"
    loading, go_on = (shared_server.places.root / f"slow.{name}" for name in ("loading", "go"))
    module.write_text(
        "import os, time\n"
        "def load():\n"
        f"    open({str(loading)!r}, 'w').close()\n"
        f"    while not os.path.exists({str(go_on)!r}):\n"
        "        time.sleep(0.02)\n"
        "    return 'loaded'\n"
        "class Slow:\n"
        "    def __reduce__(self):\n"
        "        return load, ()\n"
    )
    with notebook(shared_server.places) as front_end:
        cell = front_end.start(
            f"%%gated_eval slow {HINT} --output v\nimport slow_value\nv = slow_value.Slow()"
        )
        until(loading.exists, "the output is being loaded")
        front_end.interrupt()
        run_id = front_end.run_id(front_end.end_of(cell))
        assert told(cell) == (
            "RunDetached: interrupted while the outputs were loaded; "
            f'jupyter_gpugate.get("{run_id}").result() has them'
        )
        go_on.touch()
        get = f"import jupyter_gpugate; jupyter_gpugate.get('{run_id}').result()"
        assert front_end.value(get) == "'loaded'"
