"""The transition table: what each event makes of a run in each state, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

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
    RunReport,
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
    BOOT,
    GPU,
    NOW,
    beat,
    board,
    finish,
    gate,
    grant,
    key_of,
    request,
    start,
    using,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.leases import Reported

FENCE: Final = 1
LATER: Final = NOW + 10


def made(standing: str) -> GateState:
    """A gate whose one run stands so."""
    if standing == "absent":
        return gate()
    state = gate(request())
    if standing == "queued":
        return state
    if standing == "granted":
        return apply(state, [ev.Granted(NOW, grant(fence=FENCE))])
    state = start(state)
    if standing == "starting":
        return state
    if standing == "ended":
        return apply(state, [finish(state)])
    return apply(state, [beat(state, phase=Phase(standing))])


def standing_of(state: GateState) -> str:
    """Where the run stands."""
    if "run" in state.queue:
        return "queued"
    if "run" in state.leases:
        return state.leases["run"].phase.value
    return "ended" if "run" in state.ended else "absent"


def ended(outcome: AttemptOutcome) -> ev.Finished:
    """The end of the run's first attempt."""
    return ev.Finished(LATER, "run", FENCE, EndReport(outcome))


EVENTS: Final[dict[str, ev.Event]] = {
    "requested": ev.Requested(LATER, request(), "side"),
    "withdrawn": ev.Withdrawn(LATER, "run"),
    "granted": ev.Granted(LATER, grant(fence=FENCE)),
    "declined": ev.Declined(LATER, "run", FENCE, "no room on disk"),
    "declined for good": ev.Declined(LATER, "run", FENCE, "gone", RunEnd.FAILED),
    "started": ev.Started(LATER, "run", FENCE, key_of("run"), BOOT),
    "running": ev.Beat(LATER, "run", FENCE, (key_of("run"),), phase=Phase.RUNNING),
    "stopping": ev.Beat(LATER, "run", FENCE, (key_of("run"),), phase=Phase.STOPPING),
    "measured": ev.Measured(LATER, "run", FENCE, {GPU: GB}),
    "settled": ev.Recharged(LATER, "run", FENCE, {GPU: GB}, "settled"),
    "overrun": ev.Recharged(LATER, "run", FENCE, {GPU: 3 * GB}, "overrun"),
    "completed": ended(AttemptOutcome.COMPLETED),
    "evicted": ended(AttemptOutcome.EVICTED),
    "not started": ended(AttemptOutcome.NOT_STARTED),
    "released": ev.Released(LATER, "run", GPU),
    "present": ev.Present(LATER, "side"),
    "device seen": ev.DeviceSeen(LATER, board(1)),
    "device forgotten": ev.DeviceForgotten(LATER, GPU),
    "driver seen": ev.DriverSeen(LATER, "550"),
    "locked": ev.Locked(LATER, GPU, "bob", LATER + 60),
    "unlocked": ev.Unlocked(LATER, GPU),
    "drained": ev.DrainChanged(LATER, draining=True),
    "verdict": ev.VerdictChanged(LATER, "run", "fit"),
    "sedimented": ev.Sedimented(
        LATER, Observation(request().family, request().setting, VRAM, GB, complete=True, at=0.0)
    ),
    "forgotten": ev.CalibrationForgotten(LATER, "ada", "eval"),
    "same boot": ev.Restarted(LATER, BOOT),
    "other boot": ev.Restarted(LATER, "another-boot"),
}
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
    assert list(next(iter(after.groups.values()))) == ["run", "later", "last"]


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
    assert list(learned.groups) == [learned.queue["run"].key]
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


def test_reports_only_ever_raise_a_peak() -> None:
    """A later, smaller report lowers no peak, and the gate's own peaks survive a restart."""
    state = made("running")
    state = apply(state, [EVENTS["measured"], ev.Measured(LATER, "run", FENCE, {GPU: MB})])
    assert state.leases["run"].usage[GPU].peak_bytes == GB


def reported(state: GateState) -> Reported:
    """The heartbeats of the run."""
    live = state.leases["run"].live
    assert live is not None
    return live.reported


def longest_episode_s(*episodes: tuple[float, int], workers: int = 1) -> float:
    """The longest episode of a run whose heartbeats told of so many at these moments."""
    state = start(gate(request(workers=workers, episodes=100)))
    beats = [beat(state, at=NOW + after, episode=done) for after, done in episodes]
    return reported(apply(state, beats)).longest_episode_s


def test_the_longest_episode_is_known_however_many_workers_share_them() -> None:
    """Workers that finish in turn or together have episodes of the same length."""
    assert longest_episode_s((10, 1), (40, 2), (50, 3)) == 30
    assert longest_episode_s((30, 1), (60, 2), (90, 3), workers=2) == 60
    assert longest_episode_s((60, 2), (120, 4), workers=2) == 60


def test_a_context_costs_what_the_driver_shows_beyond_the_frameworks_own_memory() -> None:
    """The least difference that a run showed is what each of its workers' contexts cost."""
    state = start(gate(request(workers=2)))
    lease = state.leases["run"]
    usage = {**lease.usage, GPU: replace(lease.usage[GPU], overhead_bytes=1000 * MB)}
    state = replace(state, leases={"run": using(lease, usage)})
    assert apply(state, [finish(state)]).device_overhead == {board().model: 500 * MB}


def test_an_absurd_context_is_not_believed() -> None:
    """A run that starts another GPU program has shown nothing about contexts: one costs 64 MB to
    2 GB.
    """
    state = start(gate(request()))
    lease = state.leases["run"]
    for size, learned in (
        (2 * GB + 1, {}),
        (2 * GB, {board().model: 2 * GB}),
        (64 * MB, {board().model: 64 * MB}),
        (64 * MB - 1, {}),
    ):
        usage = {**lease.usage, GPU: replace(lease.usage[GPU], overhead_bytes=size)}
        seen = replace(state, leases={"run": using(lease, usage)})
        assert apply(seen, [finish(seen)]).device_overhead == learned


def test_a_report_tells_how_long_its_supervisor_went_without_a_reading() -> None:
    """The greatest age of a report is the longest stretch that nobody looked."""
    state = start(gate(request()))
    ages = [(1.0, GB), (20.0, GB), (2.0, GB), (1e9, None)]
    beats = [beat(state, at=LATER, ram=held, ram_age_s=age) for age, held in ages]
    assert reported(apply(state, beats)).report_gap_s == 20.0
    assert reported(apply(state, beats)).report == RunReport(ram_age_s=1e9)


def test_what_is_charged_elsewhere_is_added_to_the_charges() -> None:
    """A run that takes memory on a device it was not given is charged there too."""
    state = apply(made("running"), [ev.Recharged(LATER, "run", FENCE, {"GPU-1": GB}, "overrun")])
    lease = state.leases["run"]
    assert lease.charges == {RAM: GB, GPU: 2 * GB, "GPU-1": GB}
    assert lease.terms.charges == {RAM: GB, GPU: 2 * GB}
    assert lease.usage["GPU-1"].overrun_at == LATER
