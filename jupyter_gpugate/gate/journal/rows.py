"""Events as rows of the journal, and back; nothing here touches a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.parameters import scrubbed
from jupyter_gpugate.core.reports import STOPPED, AttemptOutcome, EndReport, RunEnd

#: More than any time in seconds or size in bytes; sums of such stay finite.
MOST: Final = 10**18

T = TypeVar("T", int, float)

#: Events that a start folds; the rest is a run's story, or stored elsewhere.
FOLDED = (
    ev.Requested,
    ev.Withdrawn,
    ev.Granted,
    ev.Declined,
    ev.Started,
    ev.Ready,
    ev.Measured,
    ev.Recharged,
    ev.Recapped,
    ev.Finished,
    ev.Released,
    ev.Restarted,
)


class Written(NamedTuple):
    """One event as it was written down: when by the wall clock, and in which boot."""

    wall: float
    boot_id: str
    event: ev.Event


class StandingRow(TypedDict):
    """A row of the table ``standing``."""

    key: str
    wall: float
    boot_id: str
    kind: str
    data: str


class EventRow(TypedDict):
    """A row of the table ``events``."""

    wall: float
    boot_id: str
    kind: str
    run_id: str | None
    open: bool
    data: str


class Audited(NamedTuple):
    """An action that affects other runs, and its actor; empty if it was the gate."""

    wall: float
    action: str
    subject: str
    actor: str
    reason: str


# -- to rows ------------------------------------------------------------------------------------


def event_row(event: ev.Event, wall: float, boot_id: str) -> EventRow:
    """Return the event's row of the table ``events``."""
    return {
        "wall": wall,
        "boot_id": boot_id,
        "kind": event.kind,
        "run_id": run_of(event),
        "open": isinstance(event, FOLDED),
        "data": encoded(event),
    }


def encoded(value: ev.Event | Observation) -> str:
    """Return the JSON of an event or an observation."""
    return json.dumps(to_json(value), separators=(",", ":"))


def run_of(event: ev.Event) -> str | None:
    """Return the id of the run that an event is about, if it is about one."""
    if isinstance(event, ev.Requested):
        return event.request.run_id
    if isinstance(event, ev.Granted):
        return event.grant.run_id
    if isinstance(event, ev.Sedimented):
        return event.observation.run_id or None
    return getattr(event, "run_id", None)


def standing_key(event: ev.Event) -> str | None:
    """Name the standing fact that an event makes, changes or ends."""
    if isinstance(event, ev.DeviceSeen):
        return f"device:{event.device.uuid}"
    if isinstance(event, ev.DeviceForgotten):
        return f"device:{event.uuid}"
    if isinstance(event, (ev.Locked, ev.Unlocked)):
        return f"lock:{event.resource}"
    return "drain" if isinstance(event, ev.DrainChanged) else None


def standing_rows(
    events: Sequence[ev.Event], wall: float, boot_id: str
) -> dict[str, StandingRow | None]:
    """Return, by key, the rows of ``standing`` after these events; None for a fact that ended."""
    rows: dict[str, StandingRow | None] = {}
    for event in events:
        key = standing_key(event)
        if key is not None:
            ends = isinstance(event, (ev.DeviceForgotten, ev.Unlocked))
            ends = ends or (isinstance(event, ev.DrainChanged) and not event.draining)
            rows[key] = None if ends else _standing_row(key, event, wall, boot_id)
    return rows


def _standing_row(key: str, event: ev.Event, wall: float, boot_id: str) -> StandingRow:
    kind, data = event.kind, encoded(event)
    return {"key": key, "wall": wall, "boot_id": boot_id, "kind": kind, "data": data}


def audit_rows(events: Iterable[ev.Event], wall: float) -> list[Audited]:
    """Return the rows of ``audit`` for events that affect other runs."""
    return [entry for event in events if (entry := _audited(event, wall)) is not None]


def _audited(event: ev.Event, wall: float) -> Audited | None:  # noqa: PLR0911 - one case a kind
    if isinstance(event, ev.Locked):
        return Audited(wall, event.kind, event.resource, event.owner, "")
    if isinstance(event, ev.Unlocked):
        return Audited(wall, event.kind, event.resource, "", "")
    if isinstance(event, ev.DrainChanged):
        action = "drained" if event.draining else "undrained"
        return Audited(wall, action, "machine", "", event.reason)
    if isinstance(event, ev.CalibrationForgotten):
        return Audited(wall, event.kind, event.name, event.owner, "")
    if isinstance(event, ev.DeviceForgotten):
        return Audited(wall, event.kind, event.uuid, "", "")
    if isinstance(event, ev.Withdrawn) and event.end is RunEnd.CANCELLED:
        return Audited(wall, "cancelled", event.run_id, "", event.reason)
    if isinstance(event, ev.Finished) and _was_stopped(event.end):
        return Audited(wall, "cancelled", event.run_id, "", event.end.reason)
    return None


def _was_stopped(end: EndReport) -> bool:
    """Return whether somebody stopped a run, which is how a service completes."""
    return end.outcome is AttemptOutcome.CANCELLED or end.reason == STOPPED


# -- and back -----------------------------------------------------------------------------------


def decoded(kind: str, data: str) -> ev.Event:
    """Return the event of a row; raise `ValueError` for a row that is none."""
    if kind not in ev.EVENT_TYPES:
        raise ValueError(f"{kind} is no kind of event")
    event: ev.Event = from_json(ev.EVENT_TYPES[kind], _plain(data), kind)
    return event


def decoded_observation(data: str) -> Observation:
    """Return the observation of a row; raise `ValueError` for a row that is none."""
    return from_json(Observation, _plain(data), "observation")


def written(wall: object, boot_id: object, kind: str, data: str) -> Written:
    """Return an event with its time; raise `ValueError` for a row that is none."""
    if not isinstance(wall, float) or not abs(wall) <= MOST or not isinstance(boot_id, str):
        raise ValueError(f"written at {wall!r} in boot {boot_id!r}")
    return Written(wall, boot_id, decoded(kind, data))


def _plain(data: str) -> Any:
    """Read JSON with numbers of a possible size; raise `ValueError` for anything else."""
    try:
        plain = json.loads(
            data, parse_float=_figure(float), parse_int=_figure(int), parse_constant=_refused
        )
        # Older versions wrote down values of parameters.
        return scrubbed(plain) if '"parameters":[[' in data else plain
    except (RecursionError, TypeError) as error:
        raise ValueError(f"is not the JSON of an event: {error}") from None


def _figure(kind: type[T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        number = kind(text)
        if not abs(number) <= MOST:
            raise ValueError(f"{text[:40]} is too large")
        return number

    return read


def _refused(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def on_this_boot(
    written: Sequence[Written], boot_id: str, now: float, wall: float
) -> list[ev.Event]:
    """Put the times of other boots on this boot's clock, through the wall clock.

    All of one boot move together, so that what lay between two events stays; no boot ends after
    the next one began, and nothing lies in the future, however the wall clock was set.
    """
    begun: dict[str, float] = {}
    last: dict[str, Written] = {}
    for entry in written:
        at = entry.event.at
        begun[entry.boot_id] = min(at, begun.get(entry.boot_id, at))
        if entry.boot_id not in last or last[entry.boot_id].event.at <= at:
            last[entry.boot_id] = entry
    shifts = {boot_id: 0.0}
    limit = min(now, begun.pop(boot_id, now))
    for boot in reversed(begun):
        ended = last[boot]
        shifts[boot] = min(now - (wall - ended.wall), limit) - ended.event.at
        limit = begun[boot] + shifts[boot]
    return [_shifted(entry.event, shifts[entry.boot_id]) for entry in written]


def _shifted(event: ev.Event, shift: float) -> ev.Event:
    if shift == 0:
        return event
    if isinstance(event, ev.Locked):
        return replace(event, at=event.at + shift, until=event.until + shift)
    return replace(event, at=event.at + shift)
