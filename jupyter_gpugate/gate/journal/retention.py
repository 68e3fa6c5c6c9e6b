"""Removes stories of ended runs from the journal, by age and size, whole runs at a time.

The transition table itself determines which runs have ended, by folding the open events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from sqlalchemy import Connection, delete, func, select, update

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate.journal.rows import decoded
from jupyter_gpugate.gate.journal.schema import audit, events

#: How long after its end a run is still folded at a start, so that its run side can read the end.
RECENT_S: Final = 86_400.0
#: SQLite's oldest limit on the values of one statement is 999.
_AT_ONCE: Final = 500

_past = events.c


class _Story(NamedTuple):
    """The amount of journal data of one run, and the time of its newest entry."""

    run_id: str
    rows: int
    last_wall: float


def prune(connection: Connection, wall: float, max_age_s: float, max_rows: int) -> None:
    """Delete stories older than ``max_age_s``, and the oldest beyond ``max_rows`` events.

    Unfinished runs are kept, and so is the last granted one: the fences of
    later grants count on from its own.
    """
    rows = connection.scalar(select(func.count()).select_from(events)) or 0
    gone: list[str] = []
    quiet: list[str] = []
    for story in _ended(connection):
        if story.last_wall < wall - max_age_s or rows > max_rows:
            gone.append(story.run_id)
            rows -= story.rows
        elif story.last_wall < wall - RECENT_S:
            quiet.append(story.run_id)
    for run_ids in _batches(gone):
        connection.execute(delete(events).where(_past.run_id.in_(run_ids)))
    for run_ids in _batches(quiet):
        connection.execute(update(events).where(_past.run_id.in_(run_ids)).values(open=False))
    _prune_what_is_no_runs(connection, wall - max_age_s, rows - max_rows)


def _ended(connection: Connection) -> list[_Story]:
    """Return the runs that may be deleted, those that ended first in front."""
    last = func.max(_past.seq)
    stories = (
        select(_past.run_id, func.count(), func.max(_past.wall))
        .where(_past.run_id.is_not(None))
        .group_by(_past.run_id)
        .order_by(last)
    )
    kept = _unfinished(connection)
    return [_Story(*row) for row in connection.execute(stories) if row[0] not in kept]


def _unfinished(connection: Connection) -> set[str]:
    open_ones = select(_past.kind, _past.data).where(_past.open).order_by(_past.seq)
    rows = ((row.kind, row.data) for row in connection.execute(open_ones))
    state = apply(GateState(), _readable(rows))
    grants = select(_past.run_id).where(_past.kind == ev.Granted.kind).order_by(_past.seq.desc())
    last_granted = connection.scalar(grants.limit(1))
    lingering = {run_id for run_id, _ in state.lingering}
    return {*state.queue, *state.leases, *lingering, *filter(None, [last_granted])}


def _readable(rows: Iterable[tuple[str, str]]) -> Iterator[ev.Event]:
    for kind, data in rows:
        try:
            yield decoded(kind, data)
        except ValueError:
            continue  # a start leaves it out as well


def _prune_what_is_no_runs(connection: Connection, oldest: float, too_many: int) -> None:
    """Delete events that are about no run, once no open run's story goes back that far."""
    of_runs = select(func.min(_past.seq)).where(_past.open, _past.run_id.is_not(None))
    first_open = connection.scalar(of_runs)
    past_use = _past.run_id.is_(None)
    if first_open is not None:
        past_use &= (_past.seq < first_open) | ~_past.open
    in_excess = select(_past.seq).where(past_use).order_by(_past.seq).limit(max(0, too_many))
    connection.execute(delete(events).where(past_use, _past.wall < oldest))
    connection.execute(delete(events).where(_past.seq.in_(in_excess)))
    connection.execute(delete(audit).where(audit.c.wall < oldest))


def _batches(run_ids: Iterable[str]) -> Iterator[list[str]]:
    left = iter(run_ids)
    while batch := list(islice(left, _AT_ONCE)):
        yield batch
