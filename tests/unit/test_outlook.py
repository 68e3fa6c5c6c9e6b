"""When a run that waits is expected to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.explaining.snapshot import snapshot
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.resources import GB, MB, RAM
from tests.kit.core_builders import GPU, NOW, gate, request, sample, start

if TYPE_CHECKING:
    from jupyter_gpugate.core.requests import Request
    from jupyter_gpugate.core.state import GateState


def with_duration(*seconds: float | None, started: float = NOW - 20) -> GateState:
    """A live run of 10 GB whose earlier runs took so long, and a run of 18 GB that waits."""
    state = gate(request("live"), request("waits", vram=18 * GB, name="other"))
    state = apply(state, [ev.Sedimented(0.0, lesson(request(), s)) for s in seconds])
    return start(state, "live", at=started, charges={RAM: GB, GPU: 10 * GB})


def lesson(of: Request, seconds: float | None) -> Observation:
    """What is known of such a run that completed after so long."""
    return Observation(of.family, of.setting, RAM, MB, True, 0.0, duration_s=seconds)


def eta_of(state: GateState, at: float = NOW) -> float | None:
    """When the waiting run is likely to start."""
    state, seen = apply(state, [ev.Present(at, "side")]), sample(at)
    (row,) = snapshot(state, seen, decide(state, seen, at), at).queued
    return row.eta_s


def test_a_start_is_expected_when_enough_has_ended() -> None:
    """By the median of how long such runs took."""
    assert eta_of(with_duration(60.0, 50.0, 500.0)) == 40.0
    assert eta_of(with_duration(60.0), at=NOW + 39) == 1.0


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [({"group": "g", "at_most": 2}, 20.0), ({"after": ("short", "long")}, 50.0)],
    ids=["a place in its group", "all that come first"],
)
def test_a_start_is_expected_with_the_ends_that_it_waits_for(
    waiting: dict[str, Any], expected: float
) -> None:
    """The first end of its group makes a place; of runs that come first, the last one counts."""
    short = request("short", name="short", group="g", at_most=2)
    long = request("long", name="long", group="g", at_most=2)
    state = gate(short, long, request("waits", **waiting))
    lessons = [lesson(short, 30.0), lesson(long, 60.0)]
    state = apply(state, [ev.Sedimented(0.0, one) for one in lessons])
    state = start(start(state, "short", at=NOW - 10), "long", at=NOW - 10)
    assert eta_of(state) == expected


def test_what_nobody_knows_is_not_guessed() -> None:
    """No duration known, or the run has lasted longer than any before it."""
    assert eta_of(with_duration()) is None
    assert eta_of(with_duration(None)) is None
    assert eta_of(with_duration(60.0), at=NOW + 41) is None


def test_a_lock_says_nothing_about_when() -> None:
    """Only waiting for runs to end has an expectation."""
    state = apply(with_duration(60.0), [ev.Locked(NOW, GPU, "bob", NOW + 600)])
    assert eta_of(state) is None


@pytest.mark.parametrize("other", [{"workers": 2}, {"source": "edited"}, {"owner": "bob"}])
def test_only_runs_of_the_same_kind_tell_how_long_it_takes(other: dict[str, Any]) -> None:
    """Another setting, another source and somebody else's runs say nothing of this one."""
    state = with_duration(60.0)
    state = apply(state, [ev.Sedimented(0.0, lesson(request(**other), 3600.0))] * 3)
    assert eta_of(state) == 40.0


def test_an_exclusive_run_is_expected_when_the_last_lease_ends() -> None:
    """All that live on the device have to go."""
    state = with_duration(60.0)
    waits = ev.Requested(NOW, request("alone", exclusive=True, name="third"), "side")
    state = apply(state, [ev.Withdrawn(NOW, "waits"), waits])
    assert eta_of(state) == 40.0
    state = apply(state, [ev.Requested(NOW, request("younger"), "side")])
    assert eta_of(start(state, "younger", at=NOW - 5)) == 55.0
