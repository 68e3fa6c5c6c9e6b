"""The gate's journal: events, current facts and the calibration, in one file on a local disk.

Events are stored, even after a kill, once `Journal.append` has returned; if it has
raised, none of them is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, delete, insert, select

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.failpoints import failpoint
from jupyter_gpugate.gate.journal import retention, rows, schema
from jupyter_gpugate.gate.journal.database import (
    DamagedJournalError,
    JournalError,
    JournalFile,
    move_aside,
)
from jupyter_gpugate.gate.journal.local_disk import state_directory
from jupyter_gpugate.gate.journal.scrub import scrub
from jupyter_gpugate.gate.lock import GateLock

#: The parts of the state that a host of the gate needs.
__all__ = ["GateLock", "Journal", "JournalError", "state_directory"]

R = TypeVar("R")
T = TypeVar("T")


class Journal:
    """One gate's journal; every call blocks, and all come from one thread at a time.

    Every call raises `JournalError` where the file cannot be used.  ``notice`` says, for people,
    what had to be left behind: a damaged file, unreadable entries.
    """

    def __init__(
        self,
        file: JournalFile,
        *,
        boot_id: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        notice: str | None = None,
    ) -> None:
        self.notice = notice
        self._file: JournalFile | None = file
        self._path = file.path
        self._boot_id = boot_id
        self._clock = clock
        self._wall = wall

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        boot_id: str,
        clock: Callable[[], float] = awake_time,
        wall: Callable[[], float] = time.time,
    ) -> Journal:
        """Open the journal at ``path``, or begin one.

        A damaged file is moved aside, to its name with ``.corrupt-TIME``, and an empty one takes
        its place.  Raises `JournalError` for a network file system, for a file of a newer version
        or of another program, and where the file cannot be written.
        """
        notice = None
        try:
            file = JournalFile(path)
        except DamagedJournalError as error:
            aside = move_aside(path, wall())
            file = JournalFile(path)
            notice = (
                f"the journal was damaged ({error}) and was moved to {aside}: the gate starts with"
                " an empty one, and runs are measured again"
            )
        with suppress(JournalError):  # tried again at the next start, without a message
            scrub(file)
        return cls(file, boot_id=boot_id, clock=clock, wall=wall, notice=notice)

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(JournalError):
                file.restore()
            file.close()

    # -- reading --------------------------------------------------------------------------------

    def replay(self) -> list[ev.Event]:
        """Return the input of a new gate: current facts, then events in order.

        Runs that ended more than a day ago are left out, and so is what `observations` returns.
        Times of other boots are put on this boot's clock, never in the future.
        """
        facts, past = schema.standing.c, schema.events.c
        standing = select(facts.wall, facts.boot_id, facts.kind, facts.data)
        happened = select(past.wall, past.boot_id, past.kind, past.data).where(past.open)
        found = [
            *self._opened().read(standing.order_by(facts.wall, facts.key)),
            *self._opened().read(happened.order_by(past.seq)),
        ]
        written = self._decoded(found, lambda r: rows.written(*r))
        return rows.on_this_boot(written, self._boot_id, self._clock(), self._wall())

    def observations(self) -> list[Observation]:
        """Return the whole calibration, in the order in which it was learned."""
        learned = schema.observations.c
        found = self._opened().read(select(learned.data).order_by(learned.id))
        return self._decoded(found, lambda r: rows.decoded_observation(r[0]))

    def story(self, run_id: str) -> list[tuple[float, ev.Event]]:
        """Return all that is written down about a run, as (wall clock, event), in order."""
        past = schema.events.c
        of_run = select(past.wall, past.kind, past.data).where(past.run_id == run_id)
        found = self._opened().read(of_run.order_by(past.seq))
        return self._decoded(found, lambda r: (r[0], rows.decoded(r[1], r[2])))

    def audit(self) -> list[rows.Audited]:
        """Return who locked, drained, cancelled or made the gate forget something, in order."""
        entries = schema.audit.c
        columns = (getattr(entries, name) for name in rows.Audited._fields)
        found = self._opened().read(select(*columns).order_by(entries.id))
        return [rows.Audited(*row) for row in found]

    def _opened(self) -> JournalFile:
        if self._file is None:
            raise JournalError(f"{self._path} is closed")
        return self._file

    def _decoded(self, found: Iterable[R], decode: Callable[[R], T]) -> list[T]:
        kept: list[T] = []
        lost = 0
        for row in found:
            try:
                kept.append(decode(row))
            except ValueError:
                lost += 1
        if lost:
            self.notice = f"{self._path}: left out {lost} entries that cannot be read"
        return kept

    # -- writing --------------------------------------------------------------------------------

    def append(self, events: Sequence[ev.Event], *, durable: bool) -> None:
        """Write all events or, if this raises, none; heartbeats and presences are omitted.

        ``durable`` events are on the disk when this returns; others survive the end of this
        process, and the end of the machine once a durable event follows.
        """
        kept = [event for event in events if not isinstance(event, ev.UNJOURNALLED)]
        if not kept:
            return
        wall = self._wall()
        with self._opened().transaction(durable=durable) as connection:
            failpoint("store.write.before")
            past = [rows.event_row(event, wall, self._boot_id) for event in kept]
            connection.execute(insert(schema.events), past)
            _write_standing(connection, rows.standing_rows(kept, wall, self._boot_id))
            _write_calibration(connection, kept)
            audited = rows.audit_rows(kept, wall)
            if audited:
                connection.execute(insert(schema.audit), [row._asdict() for row in audited])
            failpoint("store.write.after")

    def prune(self, max_age_s: float, max_rows: int) -> None:
        """Forget ended runs older than ``max_age_s``, and the oldest beyond ``max_rows`` events.

        Unfinished runs, standing facts and the calibration stay whole.
        """
        with self._opened().transaction(durable=False) as connection:
            retention.prune(connection, self._wall(), max_age_s, max_rows)


def _write_standing(connection: Connection, changed: Mapping[str, rows.StandingRow | None]) -> None:
    if changed:
        key = schema.standing.c.key
        connection.execute(delete(schema.standing).where(key.in_(changed)))
    there_now = [row for row in changed.values() if row is not None]
    if there_now:
        connection.execute(insert(schema.standing), there_now)


def _write_calibration(connection: Connection, events: Iterable[ev.Event]) -> None:
    table = schema.observations
    for event in events:
        if isinstance(event, ev.Sedimented):
            family = event.observation.family
            row = {"owner": family.owner, "name": family.name}
            connection.execute(insert(table), {**row, "data": rows.encoded(event.observation)})
        elif isinstance(event, ev.CalibrationForgotten):
            of_name = (table.c.owner == event.owner) & (table.c.name == event.name)
            connection.execute(delete(table).where(of_name))
