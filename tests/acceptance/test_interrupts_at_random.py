"""Interrupts at random moments of a cell's way through the gate."""

from __future__ import annotations

import random
import time

import pytest

from tests.acceptance.interrupted_cells import answers, pending, story
from tests.kit.controlled_runs import ControlledRun, drained, processes_of
from tests.kit.front_end import Cell, FrontEnd, notebook
from tests.kit.real_server import Served, until

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
