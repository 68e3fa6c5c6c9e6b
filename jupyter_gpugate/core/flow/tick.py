"""One tick of the gate, pure: events and a sample in, decisions and what to write down out.

The gate and its simulation both run their ticks here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.decisions import Check, Decisions, KeptWaiting, Reason
from jupyter_gpugate.core.flow.deadlines import due, in_vain
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.retries import with_retry
from jupyter_gpugate.core.learning.observations import sedimented
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState

#: After a gap this long the gate was stopped or asleep: it measures first and expires nothing.
GAP_S = 10.0
#: Events that yield observations.
_TEACHING = (ev.Finished, ev.Ready)


@dataclass(frozen=True)
class Happened:
    """The inputs of a tick."""

    posted: tuple[ev.Event, ...]
    sample: Sample
    now: float
    measured: bool  # the sample is a new one
    wall: float


@dataclass(frozen=True)
class Tick:
    """The result of one tick, which takes effect once it is in the journal."""

    before: GateState
    last: Decisions  # what stood before
    happened: Happened
    decided: GateState  # what the decisions were made from
    decisions: Decisions
    events: tuple[ev.Event, ...]
    fault: str = ""  # why the sample could not be used

    @property
    def at(self) -> float:
        return self.happened.now

    @property
    def grants(self) -> tuple[ev.Granted, ...]:
        return tuple(ev.Granted(self.at, grant) for grant in self.decisions.grants)

    @property
    def recaps(self) -> tuple[ev.Recapped, ...]:
        leases = self.decided.leases
        return tuple(
            ev.Recapped(self.at, run_id, leases[run_id].terms.fence, caps)
            for run_id, caps in self.decisions.caps.items()
        )

    @property
    def record(self) -> tuple[ev.Event, ...]:
        """Everything to write down, in one transaction."""
        return (*_journalled(self.events), *self.grants, *self.recaps)

    def written(self) -> GateState:
        """The next state once the record is safe."""
        return _ticked(apply(self.decided, (*self.grants, *self.recaps)), self.at)

    def unwritten(self) -> tuple[GateState, tuple[ev.Event, ...]]:
        """Return the next state if nothing could be written, and the events to write later.

        Ends and releases still take effect; grants and `REFUSED` events do not.
        """
        posted = tuple(e for e in self.happened.posted if not isinstance(e, ev.REFUSED))
        happened = replace(self.happened, posted=posted)
        after, events, _ = _advance(self.before, happened, self.last)
        return _ticked(after, self.at), _journalled(events)

    def withheld(self) -> Decisions:
        """Return the decisions if nothing could be written: each grant becomes a reason to wait."""
        kept_waiting = dict(self.decisions.kept_waiting)
        for grant in self.decisions.grants:
            key = self.decided.queue[grant.run_id].key
            others = self.decisions.reasons_of(key)
            kept_waiting[key] = KeptWaiting((Reason(Check.JOURNAL), *others))
        return replace(self.decisions, grants=(), kept_waiting=kept_waiting, caps={})


def run_tick(state: GateState, happened: Happened, last: Decisions) -> Tick:
    """Apply the events, use the sample if it is new, and decide.

    If nothing has changed, the decisions are ``last`` without its grants and new caps.
    """
    before = _after_gap(state, happened.now)
    after, events, fault = _advance(before, happened, last)
    if not happened.measured and not events:
        return Tick(before, last, happened, after, replace(last, grants=(), caps={}), ())
    decisions = decide(after, Sample() if fault else happened.sample, happened.now)
    verdicts = tuple(_changed_verdicts(after, decisions, last, events, happened.now))
    return Tick(before, last, happened, after, decisions, (*events, *verdicts), fault)


def _advance(
    state: GateState, happened: Happened, last: Decisions
) -> tuple[GateState, tuple[ev.Event, ...], str]:
    """Return the state after the events, every event on the way, and the sample's fault."""
    events: list[ev.Event] = []
    now, wall, fault = happened.now, happened.wall, ""
    sample = happened.sample if happened.measured else None
    state = _fold(state, happened.posted, events, wall, sample)
    if happened.measured:
        try:
            state, found = apply_sample(state, happened.sample, now)
        except Exception as error:  # noqa: BLE001 - whatever was read, the gate goes on without it
            fault, found = f"{type(error).__name__}: {error}", ()
        state = _fold(state, found, events, wall)
    state = _fold(state, list(due(state, happened.sample, last, now)), events, wall)
    state = _fold(state, list(in_vain(state, now)), events, wall)
    return state, tuple(events), fault


def _journalled(events: Iterable[ev.Event]) -> tuple[ev.Event, ...]:
    return tuple(e for e in events if not isinstance(e, ev.UNJOURNALLED))


def _ticked(state: GateState, now: float) -> GateState:
    return replace(state, tick=state.tick + 1, ticked_at=now)


def _after_gap(state: GateState, now: float) -> GateState:
    """After a stop or a sleep everybody gets one fresh time to live."""
    if state.ticked_at is not None and now - state.ticked_at > GAP_S:
        return replace(state, patient_until=now + state.traits.lease_ttl_s)
    return state


def _fold(
    state: GateState,
    new: Iterable[ev.Event],
    events: list[ev.Event],
    wall: float,
    sample: Optional[Sample] = None,
) -> GateState:
    """Apply events; the observations of an end, or of a service, are taken from the state before.

    ``sample`` is a new one, taken after these events.
    """
    for teaches, group in itertools.groupby(new, key=lambda e: isinstance(e, _TEACHING)):
        batch: Sequence[ev.Event] = list(group)
        if not teaches:
            events.extend(batch)
            state = apply(state, batch)
            continue
        for event in batch:
            if isinstance(event, ev.Finished):
                event = with_retry(state, event, sample)  # noqa: PLW2901 - as it is recorded
            lessons = sedimented(state, event, wall, sample)
            events.extend((event, *lessons))
            state = apply(state, (event, *lessons))
    return state


def _changed_verdicts(
    state: GateState,
    decisions: Decisions,
    last: Decisions,
    events: Iterable[ev.Event],
    now: float,
) -> Iterable[ev.VerdictChanged]:
    """Return each run's dominant reason if it has changed, for the run's story."""
    reasons = {key: waiting.reasons[0].check for key, waiting in last.kept_waiting.items()}
    changed: dict[str, str] = {}
    for key, waiting in decisions.kept_waiting.items():
        check = waiting.reasons[0].check
        if reasons.get(key) is not check:
            changed.update(dict.fromkeys(state.alike.get(key, ()), check.value))
    for event in events:
        # A new request gets the reason of its equals for the first time.
        run_id = event.request.run_id if isinstance(event, ev.Requested) else ""
        if run_id in state.queue and run_id not in changed:
            for reason in decisions.reasons_of(state.queue[run_id].key)[:1]:
                changed[run_id] = reason.check.value
    granted = {grant.run_id for grant in decisions.grants}
    for run_id, verdict in changed.items():
        if run_id not in granted:
            yield ev.VerdictChanged(now, run_id, verdict)
