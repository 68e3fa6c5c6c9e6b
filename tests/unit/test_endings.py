"""Stops and ends as values, and the texts of the wire from which they are read."""

from __future__ import annotations

import pytest

from jupyter_gpugate.core.endings import End, Stop, StopKind, cause_of, read_stop, write_stop
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Live, Stopping
from jupyter_gpugate.core.reports import Phase, RunEnd
from tests.kit.core_builders import beat, gate, request, start


@pytest.mark.parametrize(
    ("text", "stop", "survivors"),
    [
        ("cancelled", Stop(StopKind.CANCELLED, "owner"), ()),
        ("cancelled (kill_pending: 7, 12)", Stop(StopKind.CANCELLED, "owner"), (7, 12)),
        ("evicted", Stop(StopKind.EVICTED, "gate"), ()),
        ("fenced", Stop(StopKind.FENCED, "gate"), ()),
        ("terminated", Stop(StopKind.TERMINATED, "signal"), ()),
        ("exit 3", Stop(StopKind.ENDED, "run", "exit 3"), ()),
        ("time_limit (kill_pending: 7)", Stop(StopKind.ENDED, "run", "time_limit"), (7,)),
        ("cancelled by nobody", Stop(StopKind.ENDED, "run", "cancelled by nobody"), ()),
        ("ended", Stop(StopKind.ENDED, "run", "ended"), ()),
    ],
)
def test_a_heartbeats_reason_is_a_stop(text: str, stop: Stop, survivors: tuple[int, ...]) -> None:
    """Supervisors of every version say why they stop in one text, which reads back the same."""
    assert read_stop(text) == (stop, survivors)
    assert write_stop(stop, survivors) == text


def test_a_heartbeat_without_a_reason_stops_nothing() -> None:
    """A run that goes on names no stop, and one that has completed has asked for its own."""
    assert read_stop("") == (None, ())
    state = start(gate(request()))
    running = apply(state, [beat(state)]).leases["run"].stage
    assert isinstance(running, Live)
    assert not isinstance(running, Stopping)
    stopping = apply(state, [beat(state, phase=Phase.STOPPING)]).leases["run"].stage
    assert isinstance(stopping, Stopping)
    assert stopping.stop == Stop(StopKind.ENDED, "run")


@pytest.mark.parametrize(
    ("reason", "cause", "detail"),
    [
        ("time_limit", "time_limit", ""),
        ("exit 3", "exit 3", ""),
        ("signal 9", "signal 9", ""),
        ("max_wait: RAM: 3 MB short", "max_wait", "RAM: 3 MB short"),
        ("no such program: /home/ada/eval", "", "no such program: /home/ada/eval"),
        ("exit 3\n/home/ada", "", "exit 3\n/home/ada"),
        ("the notebook's kernel is gone", "", "the notebook's kernel is gone"),
        ("", "", ""),
    ],
)
def test_the_reason_of_an_end_is_a_cause_and_a_detail(reason: str, cause: str, detail: str) -> None:
    """The cause is a word for programs, and only the detail may name anything of the user's."""
    end = End.of(RunEnd.FAILED, reason)
    assert end == End(RunEnd.FAILED, cause, detail)
    assert (end.reason, cause_of(reason)) == (reason, cause)
