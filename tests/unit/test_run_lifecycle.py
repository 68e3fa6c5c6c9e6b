"""The table of a run's life on its run side: each event in each state, and what has to be done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport, RunEnd
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.runs import life as lf
from jupyter_gpugate.runs import lifecycle
from jupyter_gpugate.runs.life import Life
from jupyter_gpugate.runs.lifecycle import UNWANTED, apply
from tests.kit.core_builders import grant

SUPERVISOR: Final = ProcessKey(70, 7)


def granted(fence: int, attempt: int = 1) -> lf.Granted:
    """A grant of the gate."""
    return lf.Granted(replace(grant(fence=fence), attempt=attempt), {"origin": "measured"})


def over(outcome: AttemptOutcome, reason: str = "") -> lf.Over:
    """The end of an attempt as its supervisor wrote it."""
    return lf.Over(EndReport(outcome, reason), {"kill": None}, {"peaks": {"ram": 1}})


EVENTS: Final[dict[str, lf.Event]] = {
    "granted": granted(1),
    "granted again": granted(2),
    "begun": lf.Begun(SUPERVISOR),
    "not begun, for now": lf.NotBegun("no space", passing=True),
    "not begun": lf.NotBegun("no such program", passing=False),
    "found alive": lf.Found(1, SUPERVISOR, begun=True, facts={}),
    "found over": lf.Found(1, None, begun=True, facts={}),
    "found untouched": lf.Found(1, None, begun=False, facts={}),
    "completed": over(AttemptOutcome.COMPLETED),
    "evicted": over(AttemptOutcome.EVICTED),
    "not started": over(AttemptOutcome.NOT_STARTED),
    "put aside": lf.PutAside(done=True),
    "abandoned": lf.Abandoned(),
    "given back": lf.GivenBack(1),
    "cancel": lf.CancelAsked(),
    "forsaken": lf.Forsaken(),
    "withdrawn": lf.Withdrawn("cancelled"),
    "over time": lf.OverTime(),
    "dismissed": lf.Dismissed(RunEnd.EXPIRED, "max_wait"),
    "detached": lf.Detached(),
    "recorded": lf.Recorded({"end": "completed"}),
    "stored": lf.Stored(),
}
#: How a run comes to stand so.
WAYS: Final[dict[str, list[str]]] = {
    "queued": [],
    "starting": ["granted"],
    "live": ["granted", "begun"],
    "putting aside": ["granted", "begun", "not started"],
    "queued, ending": ["dismissed"],
    "starting, ending": ["granted", "withdrawn"],
    "live, ending": ["granted", "withdrawn", "begun"],
    "over, ending": ["granted", "begun", "completed"],
    "ended": ["dismissed", "recorded"],
    "ended, live": ["granted", "withdrawn", "recorded", "begun"],
}
#: What an event makes of a run that stands so, and the actions that follow; a pair that is not
#: here leaves the run where it stands, and nothing has to be done.
TABLE: Final[dict[str, dict[str, str]]] = {
    "queued": {
        "granted": "starting: Start",
        "granted again": "starting: Start",
        "cancel": "queued: Withdraw",
        "forsaken": "queued: Withdraw",
        "withdrawn": "queued, ending: RecordEnd",
        "dismissed": "queued, ending: RecordEnd",
    },
    "starting": {
        "begun": "live: Follow",
        "not begun, for now": "queued: Decline",
        "not begun": "queued, ending: Decline, RecordEnd",
        "cancel": "starting: Withdraw",
        "withdrawn": "starting, ending: RecordEnd",
    },
    "live": {
        "completed": "over, ending: RecordEnd",
        "evicted": "queued:",
        "not started": "putting aside: SetAside",
        "cancel": "live: Stop",
        "withdrawn": "live, ending: RecordEnd",
        "over time": "live: Kill",
    },
    "putting aside": {
        "put aside": "queued:",
        "withdrawn": "over, ending: RecordEnd",
    },
    "queued, ending": {
        "granted": "queued, ending: Decline",
        "granted again": "queued, ending: Decline",
        "cancel": "queued, ending: Withdraw",
        "forsaken": "queued, ending: Withdraw",
        "recorded": "ended:",
    },
    "starting, ending": {
        "begun": "live, ending: Follow",
        "not begun, for now": "queued, ending: Decline",
        "not begun": "queued, ending: Decline",
        "cancel": "starting, ending: Withdraw",
        "recorded": "ended, starting:",
    },
    "live, ending": {
        "completed": "over, ending:",
        "evicted": "over, ending:",
        "not started": "over, ending:",
        "cancel": "live, ending: Stop",
        "over time": "live, ending: Kill",
        "recorded": "ended, live:",
    },
    "over, ending": {
        "recorded": "ended:",
    },
    "ended": {
        "granted": "ended: Decline",
        "granted again": "ended: Decline",
    },
    "ended, live": {
        "completed": "ended:",
        "evicted": "ended:",
        "not started": "ended:",
        "over time": "ended, live: Kill",
    },
}


def after(*names: str, life: Life | None = None) -> tuple[Life, tuple[lf.Action, ...]]:
    """A run after these events, and the actions that follow the last one."""
    life = life or Life()
    actions: tuple[lf.Action, ...] = ()
    for name in names:
        life, actions = apply(life, EVENTS[name])
    return life, actions


def standing(life: Life) -> str:
    """Where a run stands, in the words of the table."""
    words = {lf.Starting: "starting", lf.Live: "live", lf.Closing: "over", type(None): "queued"}
    course = words[type(life.course)]
    if life.ended:
        return "ended" if life.course is None else f"ended, {course}"
    if life.end is not None:
        return f"{course}, ending"
    return "putting aside" if course == "over" else course


def row(life: Life, actions: tuple[lf.Action, ...]) -> str:
    """An entry of the table."""
    return f"{standing(life)}: {', '.join(type(action).__name__ for action in actions)}".strip()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("where", WAYS)
def test_every_event_in_every_state(where: str, event: str) -> None:
    """An event moves a run as the table says, and any other leaves it where it stands."""
    life, _ = after(*WAYS[where])
    assert standing(life) == where
    copy = repr(life)
    assert row(*after(event, life=life)) == TABLE[where].get(event, f"{where}:")
    assert repr(life) == copy, "the state that was given has changed"


@pytest.mark.parametrize(
    ("ways", "event", "then"),
    [
        (["cancel"], "granted", "queued: Decline"),
        (["granted", "cancel"], "begun", "live: Stop, Follow"),
        (["granted", "cancel"], "not begun, for now", "queued: Decline"),
        (["granted", "cancel"], "not begun", "queued: Decline"),
        (["granted", "begun", "cancel"], "not started", "over, ending: Withdraw, RecordEnd"),
        (["granted", "begun", "cancel"], "evicted", "over, ending: Withdraw, RecordEnd"),
        (["granted", "begun", "not started", "cancel"], "put aside", "queued: Withdraw"),
        (["detached"], "forsaken", "queued:"),
    ],
)
def test_a_cancel_goes_on_to_the_next_state(ways: list[str], event: str, then: str) -> None:
    """A run that its user cancels is stopped or withdrawn wherever it has come to meanwhile."""
    assert row(*after(*ways, event)) == then


def test_a_grant_waits_for_the_end_of_the_attempt_before() -> None:
    """A second grant, given because the first was not used in time, starts after that one's end."""
    life, actions = after("granted", "begun", "granted again")
    assert row(life, actions) == "live:"
    assert life.fences == {1, 2}
    life, actions = after("not started", "put aside", life=life)
    assert row(life, actions) == "starting: Start"
    assert life.fences == {2}


def test_a_grant_waits_until_the_one_before_was_given_back() -> None:
    """The gate hears first that the older grant is not used."""
    life, actions = after("granted", "not begun, for now", "granted again")
    assert row(life, actions) == "queued:"
    assert life.fences == {1, 2}
    assert row(*after("given back", life=life)) == "starting: Start"


def test_an_attempt_that_no_task_follows_does_not_block_the_next_grant() -> None:
    """If following an attempt has failed, a grant that waits is used, and one that comes later."""
    assert row(*after("granted", "begun", "granted again", "abandoned")) == "starting: Start"
    assert row(*after("granted", "begun", "abandoned", "granted again")) == "starting: Start"


def test_a_grant_that_comes_twice_starts_once() -> None:
    """A grant that the gate repeats is the one that is being used or given back."""
    for ways in (["granted"], ["granted", "begun"], ["granted", "not begun, for now"]):
        life, _ = after(*ways)
        assert after("granted", life=life) == (life, ())


def started(life: Life, event: lf.Event) -> Grant:
    """The grant of the one start that follows an event."""
    (action,) = apply(life, event)[1]
    assert isinstance(action, lf.Start)
    return action.grant


def test_attempts_are_counted_by_what_has_run() -> None:
    """A start has the next number; the number of an attempt that ran nothing is used again."""
    assert started(Life(), granted(1)).attempt == 1
    evicted, _ = after("granted", "begun", "evicted")
    assert started(evicted, granted(2)).attempt == 2
    unstarted, _ = after("granted", "begun", "not started", "put aside")
    assert started(unstarted, granted(2)).attempt == 1
    life, _ = after("granted", "begun", "not started")
    stuck, _ = apply(life, lf.PutAside(done=False))
    assert started(stuck, granted(2)).attempt == 2


def test_a_start_that_failed_leaves_no_trace() -> None:
    """A run that goes back to the queue shows nothing of a grant that it did not use."""
    life, _ = after("granted")
    assert (life.attempts, life.facts["attempt"]) == (1, 1)
    life, _ = after("not begun, for now", life=life)
    assert (life.attempts, life.status) == (0, "queued")
    assert life.facts == {"estimate": {"origin": "measured"}}


@pytest.mark.parametrize(
    ("event", "then"),
    [
        ("found alive", "live: Follow"),
        ("found over", "live: Follow"),
        ("found untouched", "queued:"),
    ],
)
def test_an_attempt_of_an_earlier_process_is_taken_up(event: str, then: str) -> None:
    """After a restart a begun attempt is followed; one that never began is not counted."""
    life, actions = after(event, life=Life(attempts=1))
    assert row(life, actions) == then
    assert life.attempts == (0 if then == "queued:" else 1)


def test_a_cancel_of_an_earlier_process_is_remembered() -> None:
    """An adopted attempt whose stop.json says so counts as cancelled, and is stopped again."""
    found = lf.Found(1, SUPERVISOR, begun=True, facts={}, cancelled=True)
    life, actions = apply(Life(attempts=1), found)
    assert (row(life, actions), life.cancelled) == ("live: Stop, Follow", True)


def test_a_run_without_a_directory_keeps_the_fence_of_its_lease() -> None:
    """What the gate says of a run replaces the launch record that cannot be read."""
    stray = Life(1, lf.Live(5), abandoned=True)
    life, actions = apply(stray, lf.Found(None, None, begun=False, facts={}))
    assert (row(life, actions), life.fence) == ("live: Follow", 5)


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (StopKind.TERMINATED, RunEnd.CANCELLED),
        (StopKind.KILLED, RunEnd.CANCELLED),
        (StopKind.REMOVED, RunEnd.CANCELLED),
        (StopKind.FENCED, RunEnd.LOST),
        (None, RunEnd.LOST),
    ],
)
def test_an_unexplained_end_after_a_cancel_is_the_cancel(
    kind: StopKind | None, end: RunEnd
) -> None:
    """The recorded cancel counts where the supervisor could not say why it stopped."""
    life, _ = after("granted", "begun", "cancel")
    ending = replace(over(AttemptOutcome.LOST), stop=None if kind is None else Stop.of(kind))
    life, _ = apply(life, ending)
    assert life.end is not None
    assert life.end.end is end
    life, _ = apply(after("granted", "begun")[0], ending)
    assert life.end is not None
    assert life.end.end is RunEnd.LOST


def test_the_first_end_stays() -> None:
    """Whatever comes later, a run ends as it was decided first, and then nothing changes it."""
    life, _ = after("granted", "withdrawn")
    decided = life.end
    for name in EVENTS:
        life, _ = after(name, life=life)
        assert life.end == decided
    assert life.status == "ended"


def test_a_refused_grant_says_why() -> None:
    """The gate hears whether the run queues again or is over."""

    def declined(*ways: str) -> Any:
        action = after(*ways)[1][0]
        assert isinstance(action, lf.Decline)
        return action.reason, action.end

    assert declined("granted", "not begun, for now") == ("no space", None)
    assert declined("granted", "not begun") == ("no such program", RunEnd.FAILED)
    assert declined("cancel", "granted") == (UNWANTED, RunEnd.CANCELLED)


def test_every_event_has_a_transition() -> None:
    """No event is missing from the table."""
    assert {type(event) for event in EVENTS.values()} == set(lifecycle._HANDLERS)
