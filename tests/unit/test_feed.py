"""What is told of a run's way, and in which words."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate.local import LocalGate
from jupyter_gpugate.server.feed import Feed, _way_between
from tests.kit.core_builders import NOW, gate, request, sample, start


@pytest.mark.parametrize(
    ("passed", "now", "way"),
    [
        ("", "granted", ["granted"]),
        ("", "running", ["granted", "starting", "running"]),
        ("granted", "running", ["starting", "running"]),
        ("starting", "stopping", ["stopping"]),
        ("granted", "stopping", ["starting", "stopping"]),
        ("running", "stopping", ["stopping"]),
    ],
)
def test_no_step_is_left_out_and_none_invented(passed: str, now: str, way: list[str]) -> None:
    """Between two ticks a run may have gone further; one that is stopped early never ran."""
    assert _way_between(passed, now) == way


class Told:
    """What a feed tells of a gate that a test moves on by hand."""

    def __init__(self, state: GateState) -> None:
        self._loop = cast(Any, SimpleNamespace(state=state, listeners=[]))
        records: Any = SimpleNamespace(get=lambda _run_id: None)
        self._feed = Feed(LocalGate(self._loop, cast(Any, None), "ada"), records)

    def after(self, state: GateState) -> list[tuple[str, str]]:
        """All that has been told once the gate has come to this: of which run, where it stands."""
        self._loop.state, self._loop.decisions = state, decide(state, sample(), NOW)
        for listener in self._loop.listeners:
            listener()
        answer = asyncio.run(self._feed.since(self._feed.epoch, 0, 0))
        return [(row.run_id, row.phase or row.status) for row in answer.transitions]


def test_a_run_that_only_waits_on_is_not_told_of_again() -> None:
    """Who joins the queue is told of; those who stand there as before are not."""
    told = Told(gate(request("first")))
    assert told.after(gate(request("first"), request("second"))) == [("second", "queued")]


def test_a_run_is_told_of_step_by_step() -> None:
    """A run that starts between two looks has been granted as well."""
    waiting = gate(request("run"))
    told = Told(waiting)
    assert told.after(start(waiting)) == [("run", "granted"), ("run", "starting")]
