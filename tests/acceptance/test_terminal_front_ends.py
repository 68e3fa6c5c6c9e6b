"""IPython and `jupyter gpugate run` in a real terminal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pexpect
import pytest

from jupyter_gpugate.client.connection import Client
from tests.kit.controlled_runs import ControlledRun, processes_of
from tests.kit.front_end import ASKS, LOAD, RUN_ID, ended
from tests.kit.real_server import PATIENCE_S, Places, until

WIDTH = 80


# -- a terminal -------------------------------------------------------------------------------


class Terminal:
    """A program in a terminal of 80 columns."""

    def __init__(self, places: Places, *words: str, **environ: str) -> None:
        self._places = places
        self.heard: list[str] = []
        self.child: Any = pexpect.spawn(
            sys.executable,
            ["-m", *words],
            cwd=str(places.notebooks),
            env=places.environ(TERM="xterm", **environ),
            dimensions=(50, WIDTH),
            encoding="utf-8",
            timeout=PATIENCE_S,
        )

    def hears(self, words: str) -> str:
        """Wait for words, wherever the terminal's own commands cut through; what came before."""
        self.child.expect(words)
        self.heard.append(self.child.before + self.child.after)
        return str(self.child.after)

    def types(self, *lines: str) -> None:
        for line in lines:
            self.child.sendline(line)

    def run_id(self) -> str:
        """The next run that is named."""
        return self.hears(RUN_ID.pattern)

    def ends(self) -> int:
        """The exit code, once everything was read."""
        self.child.expect(pexpect.EOF)
        self.heard.append(self.child.before)
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)


@contextmanager
def terminal(places: Places, *words: str, **environ: str) -> Iterator[Terminal]:
    """A terminal that is closed in the end."""
    opened = Terminal(places, *words, **environ)
    try:
        yield opened
    finally:
        opened.child.close(force=True)


@pytest.fixture
def ipython(places: Places) -> Iterator[Terminal]:
    """IPython in a terminal, with no Jupyter server about."""
    with terminal(places, "IPython", "--no-banner", PROMPT_TOOLKIT_NO_CPR="1") as opened:
        opened.hears(r"In \[")
        opened.types(LOAD)
        opened.hears(r"In .*2")
        yield opened


def gated(ipython: Terminal, work: ControlledRun) -> str:
    """Type a gated cell and see it submitted; its run."""
    # A blank line ends a cell; typed ahead of the prompt, the first one is taken as part of it.
    head = f"%%gated_eval {work.name} --hint-ram 64MB"
    ipython.types(head, f"import {work.module()}", "", "")
    return ipython.hears(rf"{work.name} · [^\r\n]*{RUN_ID.pattern}").split()[-1]


@pytest.mark.behaviour(142)
def test_a_gated_cell_in_a_terminal(places: Places, ipython: Terminal) -> None:
    """Without a Jupyter server the gate starts by itself; one Ctrl-C leaves the run, two
    cancel it.
    """
    left, stopped = ControlledRun(places, "left"), ControlledRun(places, "stopped")
    run_id = gated(ipython, left)
    left.begins()
    ipython.child.sendintr()
    ipython.hears("interrupt again within 5 s")
    ipython.hears("RunDetached: the run goes on without this cell")
    left.end()
    assert ended(places, run_id) == "completed"
    run_id = gated(ipython, stopped)
    stopped.begins()
    ipython.child.sendintr()
    ipython.hears("interrupt again within 5 s")
    ipython.child.sendintr()
    ipython.hears("RunCancelled: ")
    assert ended(places, run_id) == "cancelled"
    assert processes_of(run_id) == []
    ipython.types("%gpu_queue")
    ipython.hears("no run is active and none is waiting")
    ipython.types("6 * 7")
    ipython.hears("42")


@pytest.mark.behaviour(15, 133)
def test_leaving_ipython_takes_back_what_waits_and_leaves_what_runs(
    places: Places, ipython: Terminal
) -> None:
    """Closing the terminal in the middle of a gated cell: a live run goes on, and one that waits in
    the queue never begins.
    """
    live, waits = ControlledRun(places, "live"), ControlledRun(places, "waits")
    run_id = gated(ipython, live)
    live.begins()
    ipython.child.close(force=True)
    with terminal(places, "IPython", "--no-banner", PROMPT_TOOLKIT_NO_CPR="1") as second:
        second.hears(r"In \[")
        second.types(LOAD)
        second.hears(r"In .*2")
        ask(places, "POST", "/drain", {"reason": "a test"})
        waiting = gated(second, waits)
        until(lambda: ask(places, "GET", f"/runs/{waiting}")["reasons"], "it waits")
    assert ended(places, waiting) == "cancelled"
    live.end()
    assert ended(places, run_id) == "completed"
    assert waits.times_begun() == 0


def ask(places: Places, method: str, path: str, body: Any = None) -> Any:
    """One request to the user's gate, over its socket."""
    return Client(places.socket).ask(method, path, body=body).body


# -- the command line ---------------------------------------------------------------------------


def command(places: Places, work: ControlledRun) -> Any:
    """``jupyter gpugate run`` in a terminal, of a program that waits to be told to end."""
    words = ("run", work.name, "--hint-ram", "64MB", "--", sys.executable, "-c")
    return terminal(places, "jupyter_gpugate", *words, f"import {work.module()}")


def test_one_ctrl_c_at_a_terminal_leaves_the_run(places: Places) -> None:
    """The question is asked, then the exit code is 75 and the run goes on."""
    work = ControlledRun(places, "left")
    with command(places, work) as opened:
        run_id = opened.run_id()
        work.begins()
        opened.child.sendintr()
        opened.hears(ASKS)
        opened.hears("the run goes on; `jupyter gpugate logs -f")
        assert opened.ends() == 75
    work.end()
    assert ended(places, run_id) == "completed"


def test_two_ctrl_c_at_a_terminal_cancel(places: Places) -> None:
    """The exit code is 130, and none of the run's processes is left."""
    work = ControlledRun(places, "stopped")
    with command(places, work) as opened:
        run_id = opened.run_id()
        work.begins()
        opened.child.sendintr()
        opened.hears(ASKS)
        opened.child.sendintr()
        assert opened.ends() == 130
    assert ended(places, run_id) == "cancelled"
    assert processes_of(run_id) == []


def test_ctrl_c_before_the_submit_queues_nothing(places: Places) -> None:
    """While a gate is being started: one line, exit code 130, no traceback and no run."""
    work = ControlledRun(places, "never")
    with command(places, work) as opened:
        until((places.runtime / "gpugate" / "gate.log").exists, "a gate is being started")
        opened.child.sendintr()
        assert opened.ends() == 130
        assert "jupyter gpugate: interrupted: nothing was queued yet" in "".join(opened.heard)
        assert "Traceback" not in "".join(opened.heard)
    # The gate has started all the same, or starts now.
    with terminal(places, "jupyter_gpugate", "queue") as opened:
        assert opened.ends() == 0
    assert ask(places, "GET", "/runs")["runs"] == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminal_that_ends_leaves_its_queued_run_queued(
    places: Places, number: signal.Signals
) -> None:
    """Hung up or terminated, the exit code is 75, and the run waits on and runs without it."""
    work, first = ControlledRun(places, "waits"), ControlledRun(places, "first")
    with command(places, first) as opened:
        opened.run_id()
        first.begins()
        ask(places, "POST", "/drain", {"reason": "a test"})
        with command(places, work) as other:
            run_id = other.run_id()
            os.kill(other.child.pid, number)
            assert other.ends() == 75
        assert ask(places, "GET", f"/runs/{run_id}")["status"] == "queued"
        ask(places, "DELETE", "/drain")
        work.begins()
        work.end()
        assert ended(places, run_id) == "completed"
        first.end()
        assert opened.ends() == 0
