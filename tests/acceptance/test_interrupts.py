"""Interrupts of a waiting cell, in real kernels, at every moment of its way through the gate."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.controlled_runs import HINT, ControlledRun, drained, processes_of
from tests.kit.front_end import ASKS, Cell, FrontEnd, ask_jupyter, notebook, served_notebook
from tests.kit.real_server import PATIENCE_S, Places, Served, until


def waiting_cell(
    server: Served, front_end: FrontEnd, work: ControlledRun, options: str = "--output x"
) -> tuple[Cell, str]:
    """Start a cell that waits in the queue; itself and its run."""
    cell = front_end.start(work.source(options))
    run_id = front_end.run_id(cell)
    server.waiting(run_id, "drain")
    return cell, run_id


def told(cell: Cell) -> str:
    """The one line that the error of a cell is shown as."""
    (line,) = cell.error["traceback"]
    return str(line)


def answers(front_end: FrontEnd) -> bool:
    """Whether the kernel goes on after a cell."""
    return front_end.value("1+1") == "2"


def story(server: Served, run_id: str, kind: str) -> list[dict[str, Any]]:
    """What happened of one kind to a run at the gate."""
    entries = server.ask("GET", f"/runs/{run_id}/story").json["story"]
    return [entry for entry in entries if entry["event"] == kind]


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


def gone(pid: int) -> None:
    """Wait until a process has ended, or is nobody's any more than its parent's to bury."""

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    until(is_gone, f"{pid} ends")


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
        assert [path.name for path in places.runs.iterdir()] == [*later.run_ids]


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


def pending(pid: int) -> bool:
    """Whether a SIGINT waits to be taken by a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    bit = 1 << (signal.SIGINT - 1)
    return any(int(fields[name], 16) & bit for name in ("SigPnd", "ShdPnd"))


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


# -- what the kernel's end does -----------------------------------------------------------------


def end_kernel(server: Served, how: str, front_end: FrontEnd, session: str, kernel: str) -> None:
    """End a kernel as a crash, or a person at JupyterLab, does."""
    if how == "killed":
        os.kill(front_end.pid, signal.SIGKILL)
    elif how == "restarted":
        ask_jupyter(server, "POST", f"/api/kernels/{kernel}/restart", {})
    else:
        ask_jupyter(server, "DELETE", f"/api/sessions/{session}")
    gone(front_end.pid)


@pytest.mark.behaviour(133)
@pytest.mark.parametrize("how", ["killed", "restarted", "closed"])
def test_a_kernel_that_ends_takes_its_waiting_run_along_and_no_other(
    shared_server: Served, how: str
) -> None:
    """Killed, restarted or closed in the middle of a waiting cell: its queued run is withdrawn,
    what it had detached stays queued.
    """
    server = shared_server
    detached, waits = (
        ControlledRun(server.places, "detached"),
        ControlledRun(server.places, "waits"),
    )
    with drained(server):
        with served_notebook(server, f"{how}.ipynb") as (front_end, session, kernel):
            stays = front_end.run_id(front_end.run(detached.source("--detach")))
            _, run_id = waiting_cell(server, front_end, waits)
            end_kernel(server, how, front_end, session, kernel)
        row = server.ended(run_id)
        assert row["end"] == "cancelled"
        assert row["exit_reason"] == "the notebook's kernel is gone"
        server.waiting(stays, "drain")
        server.ask("POST", f"/runs/{stays}/cancel")
    assert (waits.times_begun(), detached.times_begun()) == (0, 0)


@pytest.mark.behaviour(15)
@pytest.mark.parametrize("how", ["killed", "restarted", "closed"])
def test_a_live_run_goes_on_without_the_kernel_that_waits_for_it(
    shared_server: Served, how: str
) -> None:
    """Killed, restarted or closed in the middle of a waiting cell: a run that has begun ends by
    itself.
    """
    work = ControlledRun(shared_server.places, "goes-on")
    with served_notebook(shared_server, f"live-{how}.ipynb") as (front_end, session, kernel):
        cell = front_end.start(work.source())
        work.begins()
        run_id = front_end.run_id(cell)
        end_kernel(shared_server, how, front_end, session, kernel)
    work.end()
    assert shared_server.ended(run_id)["end"] == "completed"
    assert work.times_begun() == 1


def test_a_kernel_of_another_machine_is_told_so(shared_server: Served, tmp_path: Path) -> None:
    """A kernel with another boot id than its gate is refused in one line, and nothing is queued."""
    other = tmp_path / "boot_id"
    other.write_text("00000000-0000-4000-8000-000000000000\n")
    mount = f'mount --bind {other} /proc/sys/kernel/random/boot_id && exec "$@"'
    before = ("unshare", "-m", "sh", "-c", mount, "sh")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    runs = len(list(shared_server.places.runs.iterdir()))
    with notebook(shared_server.places, *before) as front_end:
        cell = front_end.run("%%gated_eval far\nx = 1")
        assert cell.printed.startswith(
            "UsageError: kernel.boot_id: this notebook's kernel runs on "
        )
    assert len(list(shared_server.places.runs.iterdir())) == runs


# -- at any moment ------------------------------------------------------------------------------


class Round:
    """One cell, interrupted one to three times at a random moment of its way."""

    def __init__(self, server: Served, front_end: FrontEnd, seed: int) -> None:
        self._server = server
        self._front_end = front_end
        self._random = random.Random(seed)
        self.moment = self._random.choice(("submit", "wait", "run", "end"))
        self.interactive = self._random.random() < 0.8
        self.work = ControlledRun(server.places, f"round-{seed}")

    def play(self) -> Cell:
        """Let the moment come, interrupt, and see the cell end."""
        if self.moment == "wait":
            with drained(self._server):
                cell = self._started()
                self._server.waiting(self._front_end.run_id(cell), "drain")
                self._interrupt()
        else:
            cell = self._started()
            if self.moment != "submit":
                self.work.begins()
            if self.moment == "end":
                self.work.end()
            self._interrupt()
        if self._random.random() < 0.3:
            self.work.end()
        self._front_end.end_of(cell)
        self.work.end()
        return cell

    def _started(self) -> Cell:
        source = self.work.source("--output x")
        return self._front_end.start(source, allow_stdin=self.interactive)

    def _interrupt(self) -> None:
        for _ in range(self._random.randint(1, 3)):
            time.sleep(self._random.uniform(0.0, 0.4))
            self._front_end.interrupt()
        until(lambda: not pending(self._front_end.pid), "they are taken")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.behaviour(12, 122, 126)
def test_no_interrupt_loses_or_doubles_a_run(server: Served, soaking: bool) -> None:
    """Whatever the moment and the number, a cell ends in one of its four ways and the kernel goes
    on; the gate's history has the runs that the cells named, each once, and their ends agree.
    """
    ends: dict[str, str] = {}
    with notebook(server.places) as front_end:
        for seed in range(200 if soaking else 12):
            one = Round(server, front_end, seed)
            cell = one.play()
            where = (seed, one.moment, one.interactive, cell.error, cell.printed)
            assert answers(front_end), where
            # IPython prints the word alone where an interrupt hits it while it shows an error.
            assert cell.printed.strip() in {"", "KeyboardInterrupt"}, where
            ename = cell.ename or cell.printed.strip()
            assert ename in ENDS, where
            for run_id in cell.run_ids:
                row = server.ended(run_id)
                assert row["end"] in ENDS[ename], (where, row)
                assert one.work.times_begun() <= 1, where
                ends[run_id] = row["end"]
    runs = server.ask("GET", "/runs?limit=1000").json["runs"]
    assert {run["run_id"]: run["end"] for run in runs} == ends
    for run_id in ends:
        began = [(e["fence"], e["event"]) for e in story(server, run_id, "started")]
        assert len(began) == len(set(began)) <= server.run(run_id)["attempt"], run_id
        assert processes_of(run_id) == []


#: How a cell may end, and how its run has ended then.
ENDS = {
    "": {"completed"},
    "RunDetached": {"completed"},
    "RunCancelled": {"cancelled"},
    "Interrupted": set[str](),  # before anything was queued
    "KeyboardInterrupt": {"completed", "cancelled"},  # of IPython: before our part, or after it
}
