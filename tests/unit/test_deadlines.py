"""What is over because time has passed, or because a process is seen gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.decisions import Check, Decisions, KeptWaiting, Reason
from jupyter_gpugate.core.flow.deadlines import due
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.reports import AttemptOutcome, RunEnd
from jupyter_gpugate.core.resources import Holder, HolderKind
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.core.shares import Attribution
from jupyter_gpugate.core.state import Traits
from tests.kit.core_builders import (
    BOOT,
    GPU,
    NOW,
    beat,
    gate,
    grant,
    key_of,
    process,
    request,
    sample,
    start,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.state import GateState

INIT = process(ProcessKey(1, 0))
SUPERVISOR, WORKER = key_of("run"), key_of("run", 1)


def happens(state: GateState, at: float, *living: ProcessKey) -> list[ev.Event]:
    """The events that are due while these processes live."""
    table = [INIT, *(process(key) for key in living)]
    return list(due(state, sample(at, processes=table), Decisions(), at))


def test_a_longest_wait_ends_in_expired() -> None:
    """At its longest wait, and not before, a queued run is taken back as expired."""
    state = gate(request(max_wait_s=50.0), request("patient"))
    assert happens(state, NOW + 49.9) == []
    assert happens(state, NOW + 50) == [ev.Withdrawn(NOW + 50, "run", RunEnd.EXPIRED, "max_wait")]


def test_an_expired_run_says_what_it_last_waited_for() -> None:
    """The reason of its end names the limit, and in a sentence what kept it till then."""
    state = gate(request(max_wait_s=50.0))
    reason = Reason(Check.DRAIN, who=("maintenance",))
    last = Decisions(kept_waiting={state.queue["run"].key: KeptWaiting((reason,))})
    (end,) = due(state, sample(NOW + 50), last, NOW + 50)
    assert isinstance(end, ev.Withdrawn)
    assert end.reason == "max_wait: your gate starts no new runs (maintenance)"


def test_a_run_that_was_granted_does_not_expire() -> None:
    """The longest wait is over once a run is granted, and counts again if it queues again."""
    state = gate(request(max_wait_s=50.0))
    granted = apply(state, [ev.Granted(NOW + 45, grant())])
    assert happens(granted, NOW + 60) == []
    queued = apply(granted, [ev.Declined(NOW + 60, "run", 1)])
    assert [type(event) for event in happens(queued, NOW + 61)] == [ev.Withdrawn]


def test_a_grant_that_is_not_started_goes_back_once() -> None:
    """After start_by_s a grant goes back to the queue, and the next one ends the run."""
    state = apply(gate(request()), [ev.Granted(NOW, grant())])
    assert happens(state, NOW + 29) == []
    (back,) = happens(state, NOW + 30)
    assert back == ev.Declined(NOW + 30, "run", 1, "never_started", None)
    again = apply(state, [back, ev.Granted(NOW + 40, grant(fence=2))])
    (last,) = happens(again, NOW + 70)
    assert last == ev.Declined(NOW + 70, "run", 2, "never_started", RunEnd.FAILED)


@pytest.mark.parametrize(
    ("living", "lost"),
    [
        ((), True),
        ((SUPERVISOR,), False),
        ((WORKER,), False),
        ((ProcessKey(SUPERVISOR.pid, 5), ProcessKey(WORKER.pid, 5)), True),
    ],
    ids=["nobody", "its supervisor", "its child", "others with the same pids"],
)
def test_a_run_is_lost_when_nobody_of_its_tree_lives(
    living: tuple[ProcessKey, ...], lost: bool
) -> None:
    """An overdue lease ends only when the process table shows that all of its tree is gone."""
    state = start(gate(request()))
    state = apply(state, [beat(state)])
    assert happens(state, NOW + 15, *living) == [], "not overdue yet"
    events = happens(state, NOW + 15.1, *living)
    outcomes = [event.end.outcome for event in events if isinstance(event, ev.Finished)]
    assert outcomes == ([AttemptOutcome.LOST] if lost else [])


def test_a_child_that_no_heartbeat_named_keeps_the_lease() -> None:
    """A process that was attributed to the run belongs to its tree, whatever the last beat said."""
    young = key_of("run", 7)
    state = start(gate(request()))
    known = Attribution({}, {young: Holder(HolderKind.RUN, "run")})
    state = replace(state, attribution=known)
    assert happens(state, NOW + 60, young) == []
    assert happens(state, NOW + 60) != []


def test_without_a_process_table_nobody_is_lost() -> None:
    """A table that could not be read proves no death, neither of a run nor of a lock's kernel."""
    state = start(gate(request()))
    kernel = ProcessKey(5, 5)
    state = apply(state, [ev.Locked(NOW, GPU, "bob", NOW + 3600, kernel)])
    assert list(due(state, sample(NOW + 60, processes=()), Decisions(), NOW + 60)) == []


def test_a_lock_ends_with_its_time_or_its_kernel() -> None:
    """A lock is over at its end, or as soon as the kernel that took it is gone."""
    kernel = ProcessKey(500, 5)
    state = apply(gate(), [ev.Locked(NOW, GPU, "bob", NOW + 60, kernel)])
    assert happens(state, NOW + 59, kernel) == []
    assert happens(state, NOW + 60, kernel) == [ev.Unlocked(NOW + 60, GPU)]
    assert happens(state, NOW + 1) == [ev.Unlocked(NOW + 1, GPU)]
    assert happens(state, NOW + 1, ProcessKey(500, 6)) == [ev.Unlocked(NOW + 1, GPU)]


def test_nothing_expires_while_the_gate_has_just_been_away() -> None:
    """After a restart everybody gets one fresh time to live before anything is over."""
    state = start(gate(request(), request("waits", max_wait_s=5.0)))
    state = apply(state, [ev.Restarted(NOW + 100, BOOT)])
    assert happens(state, NOW + 114) == []
    assert {type(event) for event in happens(state, NOW + 116)} == {ev.Finished, ev.Withdrawn}


def test_who_came_after_the_gate_was_back_waits_no_longer_than_it_said() -> None:
    """The patience is for those who waited for the gate, not for a run that found it there."""
    state = apply(gate(), [ev.Restarted(NOW, BOOT)])
    asked = ev.Requested(NOW + 1, request(max_wait_s=5.0), "side")
    state = apply(state, [asked])
    assert happens(state, NOW + 5.9) == []
    assert [type(event) for event in happens(state, NOW + 6)] == [ev.Withdrawn]


def test_a_grant_from_before_a_restart_gets_its_whole_time() -> None:
    """The time to start counts from when the gate was there again."""
    state = apply(gate(request()), [ev.Granted(NOW, grant()), ev.Restarted(NOW + 20, BOOT)])
    assert happens(state, NOW + 40) == []
    assert happens(state, NOW + 64) == []
    assert len(happens(state, NOW + 65)) == 1


def test_the_times_are_traits() -> None:
    """A site that wants shorter times gets them."""
    state = apply(gate(request(), traits=Traits(start_by_s=5.0)), [ev.Granted(NOW, grant())])
    assert len(happens(state, NOW + 5)) == 1
