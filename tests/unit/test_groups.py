"""Groups: how many of their runs are active at a time; and runs that start after others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.decisions import Check, Decisions
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.explaining.snapshot import reason_rows
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.tick import Happened, run_tick
from jupyter_gpugate.core.reports import AttemptOutcome, RunEnd
from jupyter_gpugate.core.resources import GB, RAM
from tests.kit.core_builders import (
    NOW,
    finish,
    gate,
    granted_to,
    reasons,
    request,
    sample,
    start,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.flow.tick import Tick
    from jupyter_gpugate.core.requests import Request
    from jupyter_gpugate.core.state import GateState

SWEEP = "g20260914-101502-kqzfa"
LONG_AGO = NOW - 700


def member(run_id: str, batch: int = 8, at_most: int | None = 2, **fields: Any) -> Request:
    """A run of the group; its parameters are its own."""
    parameters = (("batch", f"={batch}"),)
    return request(run_id, parameters=parameters, group=SWEEP, at_most=at_most, **fields)


def started_now(state: GateState) -> list[str]:
    """The runs that start in this tick."""
    return [*granted_to(decide(state, sample(), NOW))]


def happens(state: GateState, *posted: ev.Event) -> Tick:
    """One tick with these events."""
    happened = Happened(posted, sample(), NOW, measured=True, wall=NOW)
    return run_tick(state, happened, Decisions())


def ended(tick: Tick) -> dict[str, tuple[RunEnd, str]]:
    """The runs that have ended at the gate, and how."""
    ends = {run_id: one.end for run_id, one in tick.written().ended.items()}
    return {run_id: (end.kind, end.reason) for run_id, end in ends.items()}


@pytest.mark.parametrize("batches", [(8, 8, 8, 8), (8, 16, 32, 64)])
def test_at_most_so_many_runs_of_a_group_are_active(batches: tuple[int, ...]) -> None:
    """Within one tick as well, whether they are equal or not; a run behind them is not blocked."""
    members = [member(f"m{n}", batch) for n, batch in enumerate(batches)]
    state = gate(*members, request("behind"))
    assert started_now(state) == ["m0", "m1", "behind"]
    (reason,) = reasons(state)["m3"]
    assert (reason.check, reason.who) == (Check.GROUP, ("m0", "m1"))
    words = "its group runs at most 2 at a time: waits for m0, m1"
    assert explain(state, reason) == words
    busy = start(start(state, "m0"), "m1")
    assert started_now(busy) == ["behind"]
    assert started_now(apply(busy, [finish(busy, "m0")])) == ["m2", "behind"]


def test_a_group_is_its_owners_and_has_a_limit_only_if_it_was_given_one() -> None:
    """Another user's group of the same id is another group."""
    others = [member("x0", at_most=1, owner="bob"), member("x1", at_most=1, owner="bob")]
    free = [replace(member(f"m{n}"), at_most=None) for n in range(3)]
    assert started_now(gate(member("a0", at_most=1), *others)) == ["a0", "x0"]
    assert started_now(gate(*free)) == ["m0", "m1", "m2"]


def test_a_run_that_waits_for_its_group_or_for_others_sets_nothing_aside() -> None:
    """However long it has waited, it is never a head."""
    waiting = [member("m0", at_most=1), member("m1", at_most=1, vram=20 * GB)]
    last = request("last", vram=20 * GB, after=("m0",))
    state = gate(request("other"), *waiting, last, at=LONG_AGO)
    state = start(start(state, "other"), "m0")
    assert decide(state, sample(), NOW).earmarks == ()
    free_again = apply(state, [finish(state, "m0")])
    assert [mark.run_id for mark in decide(free_again, sample(), NOW).earmarks] == ["m1"]


def test_a_run_starts_only_after_others_have_completed() -> None:
    """It waits for all of them, queued or active, and then starts in the same tick."""
    state = gate(request("a", gpus=0), request("b", gpus=0), request("last", after=("a", "b")))
    assert started_now(state) == ["a", "b"]
    state = start(start(state, "a"), "b")
    (reason,) = reasons(state)["last"]
    assert (reason.check, reason.who) == (Check.AFTER, ("a", "b"))
    assert explain(state, reason) == "starts only after 2 runs have completed: a, b"
    one_left = apply(state, [finish(state, "a")])
    (row,) = reason_rows(one_left, decide(one_left, sample(), NOW), one_left.queue["last"])
    assert row.message == "starts only after b has completed"
    tick = happens(one_left, finish(one_left, "b"))
    assert [grant.run_id for grant in tick.decisions.grants] == ["last"]


@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.LOST])
def test_a_run_after_one_that_did_not_complete_is_rejected(outcome: AttemptOutcome) -> None:
    """In the same tick, and so are those after it; none of them ever starts."""
    waiting = [request("second", after=("first",)), request("third", after=("second",))]
    state = start(gate(request("first"), *waiting, request("other")), "first")
    tick = happens(state, finish(state, "first", outcome=outcome))
    how = "failed" if outcome is AttemptOutcome.FAILED else "was lost"
    assert [grant.run_id for grant in tick.decisions.grants] == ["other"]
    assert ended(tick)["second"] == (RunEnd.REJECTED, f"after: first {how}")
    assert ended(tick)["third"] == (RunEnd.REJECTED, "after: second was rejected")


def test_a_run_after_one_that_is_cancelled_in_the_queue_is_rejected() -> None:
    """A withdrawal is an end like any other; a run that is queued again has not ended."""
    state = gate(request("first"), request("second", after=("first",)))
    tick = happens(state, ev.Withdrawn(NOW, "first"))
    assert ended(tick)["second"] == (RunEnd.REJECTED, "after: first was cancelled")
    again = start(state, "first")
    tick = happens(again, finish(again, "first", outcome=AttemptOutcome.NOT_STARTED))
    assert "second" not in ended(tick)
    assert "second" not in granted_to(tick.decisions)


def test_a_long_list_of_runs_is_shortened_in_words() -> None:
    """A sentence names three of them."""
    first = [request(f"f{n}", gpus=0) for n in range(5)]
    state = gate(*first, request("last", after=tuple(one.run_id for one in first)))
    (reason,) = reasons(state)["last"]
    words = "starts only after 5 runs have completed: f0, f1, f2 and 2 more"
    assert explain(state, reason) == words


def test_runs_that_wait_learn_from_those_of_their_group_that_have_ended() -> None:
    """A number between those that were run has a need as soon as the second of them has ended."""
    waiting = member("m2", 12, vram=None, ram=None)
    state = gate(waiting)

    def learned(batch: int, peak: int) -> GateState:
        setting = replace(waiting.setting, parameters=(("batch", f"={batch}"),))
        shown = Observation(waiting.family, setting, RAM, peak, complete=True, at=0.0)
        return apply(state, [ev.Sedimented(NOW, shown)])

    state = learned(8, 2 * GB)
    assert state.queue["m2"].needs.ram.need_bytes is None
    state = learned(16, 4 * GB)
    need = state.queue["m2"].needs.ram.need_bytes
    assert need is not None
    assert 3 * GB < need < 4 * GB
    assert state.alike.keys() == {state.queue["m2"].key}
