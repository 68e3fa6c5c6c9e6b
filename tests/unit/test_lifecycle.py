"""The transition table: what each event makes of a run in each state, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.endings import End
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.flow.draft import ENDED_KEPT
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.reports import (
    AttemptOutcome,
    EndReport,
    Phase,
    RunEnd,
)
from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    VRAM,
)
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
    board,
    finish,
    gate,
    grant,
    request,
    start,
)
from tests.kit.transitions import EVENTS, FENCE, LATER, ended, made


def standing_of(state: GateState) -> str:
    """Where the run stands."""
    if "run" in state.queue:
        return "queued"
    if "run" in state.leases:
        return state.leases["run"].phase.value
    return "ended" if "run" in state.ended else "absent"


STANDINGS: Final = ("absent", "queued", "granted", "starting", "running", "stopping", "ended")


#: Where it moves to; a pair that is not here leaves the run where it stands.
MOVES: Final = {
    ("absent", "requested"): "queued",
    ("queued", "withdrawn"): "ended",
    ("queued", "granted"): "granted",
    ("granted", "withdrawn"): "ended",
    ("granted", "declined"): "queued",
    ("granted", "declined for good"): "ended",
    ("granted", "started"): "starting",
    ("granted", "completed"): "ended",
    ("granted", "evicted"): "queued",
    ("granted", "not started"): "queued",
    ("granted", "other boot"): "queued",
    **{
        (live, event): to
        for live in ("starting", "running", "stopping")
        for event, to in {
            "stopping": "stopping",
            "completed": "ended",
            "evicted": "queued",
            "not started": "queued",
            "other boot": "ended",
        }.items()
    },
    ("starting", "running"): "running",
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("standing", STANDINGS)
def test_every_event_in_every_state(standing: str, event: str) -> None:
    """An event moves a run as the table says, and any other event leaves it where it stands."""
    before = made(standing)
    assert standing_of(before) == standing
    copy = repr(before)
    after = apply(before, [EVENTS[event]])
    assert standing_of(after) == MOVES.get((standing, event), standing)
    assert repr(before) == copy, "the state that was given has changed"


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_that_came_twice_counts_once(event: str) -> None:
    """Whatever is folded again changes nothing more, so a journal may be read over and over."""
    for standing in STANDINGS:
        once = apply(made(standing), [EVENTS[event]])
        twice = apply(once, [EVENTS[event]])
        assert standing_of(twice) == standing_of(once)
        assert twice.ended == once.ended
        assert list(twice.queue) == list(once.queue)


@pytest.mark.parametrize(
    "event", ["declined", "started", "running", "measured", "settled", "completed"]
)
def test_an_old_fence_moves_nothing(event: str) -> None:
    """What an earlier attempt says of itself is not taken for the one that lives now."""
    state = made("granted" if event in ("declined", "started") else "running")
    lease = state.leases["run"]
    state = replace(
        state, leases={"run": replace(lease, terms=replace(lease.terms, fence=FENCE + 1))}
    )
    assert apply(state, [EVENTS[event]]).leases == state.leases


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_how_an_attempt_ends_is_how_its_run_ends(outcome: AttemptOutcome) -> None:
    """Every outcome but an eviction and a start that never was ends the run, and for good."""
    state = made("running")
    after = apply(state, [ended(outcome)])
    if outcome in (AttemptOutcome.EVICTED, AttemptOutcome.NOT_STARTED):
        assert standing_of(after) == "queued"
        return
    assert after.ended["run"].end.kind.value == outcome.value
    again = apply(after, [ended(AttemptOutcome.FAILED), EVENTS["withdrawn"], EVENTS["requested"]])
    assert again.ended == after.ended
    assert standing_of(again) == "ended"


def test_a_run_queues_again_in_its_place() -> None:
    """A run that comes back stands where it stood, before all that were submitted after it."""
    state = gate(request("run"), request("later"), request("last"))
    state = start(state, "run")
    after = apply(state, [ended(AttemptOutcome.EVICTED)])
    assert list(after.queue) == ["run", "later", "last"]
    assert after.queue["run"].submitted_at == NOW
    assert list(next(iter(after.alike.values()))) == ["run", "later", "last"]


def test_an_evicted_attempt_counts_and_one_without_user_code_does_not() -> None:
    """After an eviction the next attempt has the next number; after no start it has the same."""
    evicted = apply(made("running"), [ended(AttemptOutcome.EVICTED)])
    unstarted = apply(made("granted"), [EVENTS["declined"]])
    assert (evicted.queue["run"].attempts, unstarted.queue["run"].attempts) == (1, 0)


def test_a_grant_that_never_starts_ends_the_run_the_second_time() -> None:
    """Once it goes back to the queue; then the run has failed, because it was never started."""
    state = apply(made("granted"), [ended(AttemptOutcome.NOT_STARTED)])
    state = apply(state, [ev.Granted(LATER, grant(fence=2))])
    state = apply(state, [ev.Finished(LATER, "run", 2, EndReport(AttemptOutcome.NOT_STARTED))])
    assert state.ended["run"].end == End(RunEnd.FAILED, "never_started")


def test_fences_only_grow() -> None:
    """A grant that is read again late does not take the counter back."""
    state = gate(request("a"), request("b"))
    state = apply(
        state, [ev.Granted(NOW, grant("a", fence=7)), ev.Granted(NOW, grant("b", fence=3))]
    )
    assert state.fence == 7


def test_phases_only_move_on() -> None:
    """A heartbeat that was overtaken does not take a stopping run back to running."""
    state = made("stopping")
    assert apply(state, [EVENTS["running"]]).leases["run"].phase is Phase.STOPPING
    starting = beat(state, phase=Phase.GRANTED)
    assert apply(made("starting"), [starting]).leases["run"].phase is Phase.STARTING


def test_nothing_of_another_boot_lives() -> None:
    """After a reboot live runs are lost, granted ones queue again, and no memory lingers."""
    state = start(start(gate(request("live"), request("gone"), request("granted")), "live"), "gone")
    state = apply(state, [finish(state, "gone"), ev.Granted(NOW, grant("granted", fence=9))])
    assert state.lingering
    after = apply(state, [ev.Restarted(LATER, "another-boot")])
    assert after.ended["live"].end == End(RunEnd.LOST, "reboot")
    assert list(after.queue) == ["granted"]
    assert after.queue["granted"].unstarted_grants == 0
    assert not after.lingering


def test_only_the_newest_ends_are_remembered() -> None:
    """A gate that has seen many thousand runs does not keep them all."""
    many = [ev.Requested(NOW, request(f"r{n}"), "side") for n in range(ENDED_KEPT + 5)]
    state = apply(gate(), [*many, *(ev.Withdrawn(NOW, e.request.run_id) for e in many)])
    assert len(state.ended) == ENDED_KEPT
    assert f"r{ENDED_KEPT + 4}" in state.ended
    assert "r0" not in state.ended


def test_needs_follow_what_they_rest_on() -> None:
    """A waiting run's need changes with what was learned, and goes when that is forgotten."""
    state = gate(request(vram=None, ram=None))
    assert state.queue["run"].needs.on(board().model).need_bytes is None
    setting = replace(request().setting, device_model=board().model)
    shown = Observation(request().family, setting, VRAM, 10 * GB, complete=True, at=0.0)
    learned = apply(state, [ev.Sedimented(LATER, shown)])
    need = learned.queue["run"].needs.on(board().model)
    assert (need.need_bytes, need.basis) == (11 * GB + 64 * MB, Basis.CALIBRATED)
    assert list(learned.alike) == [learned.queue["run"].key]
    forgotten = apply(learned, [ev.CalibrationForgotten(LATER, "ada", "eval")])
    assert forgotten.queue["run"].needs == state.queue["run"].needs


def test_needs_do_not_depend_on_how_events_are_gathered() -> None:
    """A device seen after a request, in one batch or in two, counts for it like any other."""
    batch: list[ev.Event] = [
        ev.DeviceSeen(NOW, board(0)),
        ev.Requested(NOW, request(), "side"),
        ev.DeviceSeen(NOW, board(1, model="another")),
    ]
    at_once, in_turn = apply(GateState(), batch), GateState()
    for event in batch:
        in_turn = apply(in_turn, [event])
    assert at_once.queue["run"].needs.on("another").basis is Basis.HINT
    assert at_once.queue == in_turn.queue


def test_what_is_charged_elsewhere_is_added_to_the_charges() -> None:
    """A run that takes memory on a device it was not given is charged there too."""
    state = apply(made("running"), [ev.Recharged(LATER, "run", FENCE, {"GPU-1": GB}, "overrun")])
    lease = state.leases["run"]
    assert lease.charges == {RAM: GB, GPU: 2 * GB, "GPU-1": GB}
    assert lease.terms.charges == {RAM: GB, GPU: 2 * GB}
    assert lease.usage["GPU-1"].overrun_at == LATER
