"""The transition table of a run: ``apply(life, event) -> (life, actions)``.

Pure: actions are values, and their results come back as events.  Applying is total: an event that
no longer fits changes nothing and asks for nothing.  Of several actions the later ones stay right
whatever happens while the first is carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.reports import AttemptOutcome, RunEnd
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.runs import life as lf
from jupyter_gpugate.runs.life import Life

#: Outcomes after which the gate queues a run again.
REQUEUED = frozenset({AttemptOutcome.NOT_STARTED, AttemptOutcome.EVICTED})
#: Why a grant is given back whose run has ended or was cancelled.
UNWANTED = "no longer wanted"
CANCELLED = "cancelled"
FORSAKEN = "the notebook's kernel is gone"

Step = tuple[Life, tuple[lf.Action, ...]]


def apply(life: Life, event: lf.Event) -> Step:
    """The state after an event, and the actions that follow, in order."""
    return _HANDLERS[type(event)](life, event)


def granted_facts(grant: Grant, estimate: Any) -> dict[str, Any]:
    """The parts of a grant that a summary and a launch record."""
    return {
        "attempt": grant.attempt,
        "devices": list(grant.devices),
        "charges": dict(grant.charges),
        "basis": to_json(grant.basis),
        "caps": dict(grant.caps),
        "enforcement": grant.enforcement.value,
        "estimate": estimate,
        "retry": to_json(grant.retry),
    }


# -- an attempt begins ----------------------------------------------------------------------------


def _granted(life: Life, event: lf.Granted) -> Step:
    if event.grant.fence in life.fences:
        return life, ()
    if not life.is_decided:
        life = replace(life, facts={**life.facts, "estimate": event.estimate})
    return _use_next_grant(replace(life, waiting=(*life.waiting, event.grant)))


def _use_next_grant(life: Life) -> Step:
    """Use the oldest grant, or give it back, once all of the attempt before is over."""
    is_busy = life.returning or (life.course is not None and not life.abandoned)
    if is_busy or not life.waiting:
        return life, ()
    grant, *others = life.waiting
    life = replace(life, waiting=tuple(others))
    if life.cancelled or life.is_decided:
        return _give_back(life, grant, UNWANTED, RunEnd.CANCELLED)
    # The gate does not count attempts of which nothing ran; a directory may have stayed of one.
    grant = replace(grant, attempt=max(grant.attempt, life.attempts + 1))
    life = replace(
        life,
        attempts=grant.attempt,
        course=lf.Starting(grant, life.attempts, life.facts),
        abandoned=False,
        facts={**life.facts, **granted_facts(grant, life.facts.get("estimate"))},
    )
    return life, (lf.Start(grant),)


def _give_back(life: Life, grant: Grant, reason: str, end: RunEnd | None = None) -> Step:
    life = replace(life, returning=(*life.returning, grant.fence))
    return life, (lf.Decline(grant, reason, end),)


def _given_back(life: Life, event: lf.GivenBack) -> Step:
    left = tuple(fence for fence in life.returning if fence != event.fence)
    return _use_next_grant(replace(life, returning=left))


def _begun(life: Life, event: lf.Begun) -> Step:
    if not isinstance(life.course, lf.Starting):
        return life, ()
    return _followed(life, lf.Live(life.course.grant.fence, event.supervisor))


def _followed(life: Life, course: lf.Live) -> Step:
    stop = (lf.Stop(),) if life.cancelled else ()
    return replace(life, course=course, abandoned=False), (*stop, lf.Follow())


def _not_begun(life: Life, event: lf.NotBegun) -> Step:
    course = life.course
    if not isinstance(course, lf.Starting):
        return life, ()
    life = replace(life, course=None)
    if life.is_decided:
        return _give_back(life, course.grant, UNWANTED, RunEnd.CANCELLED)
    life = replace(life, attempts=course.attempts_before, facts=course.facts_before)
    if life.cancelled:
        return _give_back(life, course.grant, UNWANTED, RunEnd.CANCELLED)
    if event.passing:
        return _give_back(life, course.grant, event.reason)
    life, decline = _give_back(life, course.grant, event.reason, event.end)
    life, record = _end(life, lf.Ending(event.end, event.reason))
    return life, (*decline, *record)


def _found(life: Life, event: lf.Found) -> Step:
    is_followed = life.course is not None and not life.abandoned
    if is_followed or life.is_decided or not life.attempts:
        return life, ()
    life = replace(life, cancelled=life.cancelled or event.cancelled)
    fence = event.fence if event.fence is not None else life.fence
    if event.supervisor is None and not event.begun and life.fence is None:
        # Nothing of it ever ran: the gate gives its grant again, if it is still valid.
        return replace(life, attempts=life.attempts - 1, course=None, abandoned=False), ()
    life = replace(life, facts={**life.facts, **event.facts})
    return _followed(life, lf.Live(fence, event.supervisor))


# -- an attempt is over ---------------------------------------------------------------------------


def _over(life: Life, event: lf.Over) -> Step:
    if not isinstance(life.course, lf.Live):
        return life, ()
    if life.ended:
        return _use_next_grant(replace(life, course=None))
    life = replace(life, course=lf.Closing())
    if life.is_decided:
        return life, ()
    if event.report.outcome in REQUEUED or event.is_retried:
        return _queued_again(life, event)
    life = replace(life, facts={**life.facts, **event.facts})
    end = _end_of(event, cancelled=life.cancelled)
    return _end(life, lf.Ending(end, event.report.reason, event.outcome))


def _queued_again(life: Life, event: lf.Over) -> Step:
    """The gate has queued the run again; it ends all the same if it was cancelled meanwhile."""
    if life.cancelled:
        life, record = _end(life, lf.Ending(RunEnd.CANCELLED, CANCELLED, event.outcome))
        return life, (lf.Withdraw(CANCELLED), *record)
    if event.report.outcome is AttemptOutcome.NOT_STARTED:
        return life, (lf.SetAside(),)
    return _use_next_grant(replace(life, course=None))


def _end_of(event: lf.Over, *, cancelled: bool) -> RunEnd:
    """Trust the recorded cancel: stop.json may be missing on a full disk, or be unread."""
    if cancelled and event.stop is not None and event.stop.is_unexplained:
        return RunEnd.CANCELLED
    return RunEnd(event.report.outcome.value)


def _put_aside(life: Life, event: lf.PutAside) -> Step:
    if not isinstance(life.course, lf.Closing) or life.is_decided:
        return life, ()
    life = replace(life, course=None, attempts=life.attempts - (1 if event.done else 0))
    withdraw = (lf.Withdraw(CANCELLED),) if life.cancelled else ()
    life, following = _use_next_grant(life)
    return life, (*withdraw, *following)


def _abandoned(life: Life, _event: lf.Abandoned) -> Step:
    return _use_next_grant(replace(life, abandoned=life.course is not None))


# -- a run is stopped -----------------------------------------------------------------------------


def _cancel_asked(life: Life, _event: lf.CancelAsked) -> Step:
    if life.ended:
        return life, ()
    life = replace(life, cancelled=True)
    if life.supervisor is not None:
        return life, (lf.Stop(),)
    # If the gate refuses, a supervisor is stopped as soon as it is known, a grant is given back.
    return life, () if isinstance(life.course, lf.Closing) else (lf.Withdraw(CANCELLED),)


def _forsaken(life: Life, _event: lf.Forsaken) -> Step:
    is_waiting = life.status == lf.QUEUED and not life.detached
    return life, (lf.Withdraw(FORSAKEN),) if is_waiting else ()


def _withdrawn(life: Life, event: lf.Withdrawn) -> Step:
    return _end(life, lf.Ending(RunEnd.CANCELLED, event.reason))


def _over_time(life: Life, _event: lf.OverTime) -> Step:
    return life, (lf.Kill(),) if life.supervisor is not None else ()


def _detached(life: Life, _event: lf.Detached) -> Step:
    return life if life.ended else replace(life, detached=True), ()


# -- a run ends -----------------------------------------------------------------------------------


def _dismissed(life: Life, event: lf.Dismissed) -> Step:
    if life.status != lf.QUEUED:
        return life, ()
    return _end(life, lf.Ending(event.end, event.reason))


def _end(life: Life, end: lf.Ending) -> Step:
    """Decide how a run ends, unless that is decided: the first end stays."""
    if life.is_decided:
        return life, ()
    return replace(life, end=end), (lf.RecordEnd(),)


def _recorded(life: Life, event: lf.Recorded) -> Step:
    if life.ended or life.end is None:
        return life, ()
    course = None if isinstance(life.course, lf.Closing) else life.course
    facts = {**life.facts, **event.facts}
    return _use_next_grant(replace(life, course=course, ended=True, facts=facts))


def _stored(life: Life, _event: lf.Stored) -> Step:
    return replace(life, stored=life.is_decided), ()


_HANDLERS: Mapping[type, Callable[[Life, Any], Step]] = {
    lf.Granted: _granted,
    lf.GivenBack: _given_back,
    lf.Begun: _begun,
    lf.NotBegun: _not_begun,
    lf.Found: _found,
    lf.Over: _over,
    lf.PutAside: _put_aside,
    lf.Abandoned: _abandoned,
    lf.CancelAsked: _cancel_asked,
    lf.Forsaken: _forsaken,
    lf.Withdrawn: _withdrawn,
    lf.OverTime: _over_time,
    lf.Detached: _detached,
    lf.Dismissed: _dismissed,
    lf.Recorded: _recorded,
    lf.Stored: _stored,
}
