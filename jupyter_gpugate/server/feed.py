"""Every transition of every run, in order, for servers that follow.

The states of runs are compared after each tick, so that nothing wakes up for this.  A bounded ring
keeps the transitions; a follower that has missed more than it holds gets all current states.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jupyter_gpugate.core.endings import cause_of
from jupyter_gpugate.core.reports import EndName, Phase, RunEnd, Status
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.port import Change, Gate, GateEnd, Standing
from jupyter_gpugate.runs.life import ENDED, QUEUED
from jupyter_gpugate.runs.record import Record, Records

#: More than a follower can miss between two questions.
KEPT = 4096
#: The phases of a live attempt, in their order.
WAY = (Phase.GRANTED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


@dataclass(frozen=True)
class StatusChange:
    """The new status of a run; ``at`` is wall-clock time."""

    at: float
    name: str
    status: Status
    phase: Phase | None
    attempt: int
    run_id: str
    end: EndName | None
    reason: str


@dataclass(frozen=True)
class Transition(StatusChange):
    """The status of a run that has changed."""

    seq: int


@dataclass(frozen=True)
class Transitions:
    """The transitions of runs since an earlier answer, in order."""

    epoch: str
    last: int
    live: int
    gap: bool
    transitions: tuple[Transition, ...]
    unfinished: Mapping[str, Standing] | None


class Feed:
    """The transitions of one gate's runs."""

    def __init__(self, gate: Gate, records: Records, wall: Callable[[], float] = time.time) -> None:
        self.epoch = secrets.token_hex(8)
        self.ends: Counter[str] = Counter()
        self._records = records
        self._wall = wall
        self._ring: deque[Transition] = deque(maxlen=KEPT)
        self._last = 0
        self._news = asyncio.Event()
        #: Runs that have left the gate while their run side is not done with them.
        self._parting: dict[str, GateEnd | None] = {}
        self._standings = dict(gate.follow(self._hear))
        #: The states of runs before the first transition.
        self.first: Mapping[str, Standing] = dict(self._standings)

    def _hear(self, changes: Sequence[Change]) -> None:
        """Report the changes since the last tick."""
        last = self._last
        for change in changes:
            if change.standing is None:
                self._parting[change.run_id] = change.ended
                continue
            self._parting.pop(change.run_id, None)
            before = self._standings.get(change.run_id)
            self._standings[change.run_id] = change.standing
            if before != change.standing:
                self._tell_way(change.run_id, before, change.standing, change.waits_for)
        for run_id in [r for r in self._parting if _is_over(self._records.get(r))]:
            self._tell_end(run_id, self._standings.pop(run_id), self._parting.pop(run_id))
        if self._last != last:
            self._news.set()
            self._news = asyncio.Event()

    async def since(self, epoch: str, after: int, wait_s: float) -> Transitions:
        """Return the transitions after ``after``, once there are any; after a gap, all states."""
        deadline = awake_time() + wait_s
        gap = epoch != self.epoch or after > self._last or after < self._last - len(self._ring)
        while not gap and after == self._last and (left := deadline - awake_time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
        return Transitions(
            epoch=self.epoch,
            last=self._last,
            live=len(self._standings),
            gap=gap,
            transitions=() if gap else tuple(t for t in self._ring if t.seq > after),
            unfinished=dict(self._standings) if gap else None,
        )

    # -- telling --------------------------------------------------------------------------------

    def _tell_way(
        self, run_id: str, before: Standing | None, now: Standing, waits_for: str = ""
    ) -> None:
        """Report a state, and the states that a run must have passed before."""
        if now.status == QUEUED:
            self._tell(run_id, now, reason=waits_for)
            return
        if before is None:
            self._tell(run_id, Standing(now.name, "queued", None, max(0, now.attempt - 1)))
        passed = before.phase if before is not None and before.attempt == now.attempt else None
        for phase in _way_between(passed or "", now.phase or ""):
            self._tell(run_id, Standing(now.name, "active", phase, now.attempt))

    def _tell_end(self, run_id: str, before: Standing, ended: GateEnd | None) -> None:
        end, reason, attempt = self._end_of(run_id, ended)
        if end == RunEnd.COMPLETED.value and before.phase is not Phase.STOPPING:
            # It was quicker than the next heartbeat.
            running = Standing(before.name, "active", Phase.RUNNING, attempt)
            if before != running:
                self._tell_way(run_id, before, running)
        if end is not None:
            self.ends[end] += 1
        over = Standing(before.name, "ended", None, attempt)
        self._tell(run_id, over, end=end, reason=cause_of(reason))

    def _end_of(self, run_id: str, ended: GateEnd | None) -> tuple[EndName | None, str, int]:
        """Return a run's end, reason and attempt; of a deleted run as recorded by the gate."""
        record = self._records.get(run_id)
        if record is not None:
            return record.summary.get("end"), record.summary.get("reason", ""), record.attempt
        if ended is None:
            return None, "", 0
        return ended.end.kind.value, ended.end.reason, ended.attempt

    def _tell(
        self, run_id: str, standing: Standing, *, end: EndName | None = None, reason: str = ""
    ) -> None:
        self._last += 1
        moved = {**vars(standing), "run_id": run_id, "end": end, "reason": reason}
        self._ring.append(Transition(seq=self._last, at=self._wall(), **moved))


def _way_between(passed: str, now: str) -> list[Phase]:
    """Return the phases after one up to another; a run that is stopped early never ran."""
    last = Phase(now)
    begun = WAY.index(Phase(passed)) + 1 if passed else 0
    way = WAY[begun : WAY.index(last) + 1]
    return [p for p in way if p is last or last is not Phase.STOPPING or p is not Phase.RUNNING]


def _is_over(record: Record | None) -> bool:
    return record is None or record.status == ENDED
