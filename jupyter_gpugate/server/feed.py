"""Every transition of every run, in order, for whoever follows: servers, and so people.

Where each run stands is compared after each tick, so that nothing wakes up for this.  A bounded
ring keeps what was told; who has missed more than it holds is told so, and where all runs stand.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.leases import Lease
from jupyter_gpugate.core.reports import Phase, RunEnd
from jupyter_gpugate.core.state import GateState, Queued
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import ACTIVE, ENDED, QUEUED, Record

#: More than a follower can miss between two questions.
KEPT = 4096
#: What a live attempt goes through, and how far each is on the way.
WAY = (Phase.GRANTED.value, Phase.STARTING.value, Phase.RUNNING.value, Phase.STOPPING.value)
#: A reason in words may name paths; these kinds of it never do.
KIND = re.compile(r"[a-z_]+|exit \d+|signal \d+")


@dataclass(frozen=True)
class Standing:
    """Where a run stands."""

    name: str
    status: str
    phase: str | None = None
    attempt: int = 0


class Feed:
    """What one gate has seen happen to the runs of its user."""

    def __init__(
        self, gate: GateLoop, launcher: Launcher, wall: Callable[[], float] = time.time
    ) -> None:
        self.epoch = secrets.token_hex(8)
        self.ends: Counter[str] = Counter()
        self._gate = gate
        self._launcher = launcher
        self._wall = wall
        self._ring: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._last = 0
        self._news = asyncio.Event()
        self._seen = GateState()
        self._waiting: dict[str, Standing] = {}
        self._standings: dict[str, Standing] = {}
        self._parting: set[str] = set()  # the gate is done with them, their run side is not
        self._take_stock()
        #: Where runs stood before anything was told.
        self.first: Mapping[str, Standing] = dict(self._standings)

    def look(self) -> None:
        """Tell what has changed since the last tick."""
        state = self._gate.state
        same = state.queue is self._seen.queue and state.leases is self._seen.leases
        if same and not self._parting:
            return
        before, last = self._standings, self._last
        self._take_stock()
        for run_id, standing in self._standings.items():
            old = before.get(run_id)
            if old is not standing and old != standing:
                self._tell_way(run_id, old, standing)
        for run_id in before.keys() - self._standings.keys():
            self._tell_end(run_id, before[run_id])
        if self._last != last:
            self._news.set()
            self._news = asyncio.Event()

    async def since(self, epoch: str, after: int, wait_s: float) -> dict[str, Any]:
        """What came after ``after``, as soon as there is any; with a gap, where all runs stand."""
        deadline = awake_time() + wait_s
        gap = epoch != self.epoch or after > self._last or after < self._last - len(self._ring)
        while not gap and after == self._last and (left := deadline - awake_time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
        standing = {run_id: asdict(one) for run_id, one in self._standings.items()}
        return {
            "epoch": self.epoch,
            "last": self._last,
            "live": len(self._standings),
            "gap": gap,
            "transitions": [] if gap else [t for t in self._ring if t["seq"] > after],
            "unfinished": standing if gap else None,
        }

    # -- where runs stand -----------------------------------------------------------------------

    def _take_stock(self) -> None:
        state, before = self._gate.state, self._standings
        if state.queue is not self._seen.queue:
            self._waiting = {run_id: _waiting(queued) for run_id, queued in state.queue.items()}
        found = self._waiting | {run_id: _living(lease) for run_id, lease in state.leases.items()}
        left = before.keys() - found.keys()
        self._parting = {r for r in left if not _is_over(self._launcher.find(r))}
        found.update({run_id: before[run_id] for run_id in self._parting})
        self._seen, self._standings = state, found

    # -- telling --------------------------------------------------------------------------------

    def _tell_way(self, run_id: str, before: Standing | None, now: Standing) -> None:
        """A standing, and what a run must have passed to come to it."""
        if now.status == QUEUED:
            self._tell(run_id, now, reason=self._why_waiting(run_id))
            return
        if before is None:
            self._tell(run_id, Standing(now.name, QUEUED, None, max(0, now.attempt - 1)))
        begun = before is not None and before.attempt == now.attempt
        passed = (before.phase if begun and before else None) or ""
        for phase in _way_between(passed, now.phase or ""):
            self._tell(run_id, Standing(now.name, ACTIVE, phase, now.attempt))

    def _tell_end(self, run_id: str, before: Standing) -> None:
        end, reason, attempt = self._end_of(run_id)
        if end == RunEnd.COMPLETED.value and before.phase != Phase.STOPPING.value:
            # It was quicker than the next heartbeat.
            running = Standing(before.name, ACTIVE, Phase.RUNNING.value, attempt)
            if before != running:
                self._tell_way(run_id, before, running)
        if end is not None:
            self.ends[end] += 1
        over = Standing(before.name, ENDED, None, attempt)
        self._tell(run_id, over, end=end, reason=kind_of(reason))

    def _end_of(self, run_id: str) -> tuple[str | None, str, int]:
        """How a run ended, why and in which attempt; of a deleted one as the gate remembers it."""
        record = self._launcher.find(run_id)
        if record is not None:
            return record.summary.get("end"), record.summary.get("reason", ""), record.attempt
        ended = self._gate.state.ended.get(run_id)
        return (ended.end.value, ended.reason, ended.attempt) if ended else (None, "", 0)

    def _why_waiting(self, run_id: str) -> str:
        return dominant_reason(self._gate.state, self._gate.decisions, run_id)

    def _tell(
        self, run_id: str, standing: Standing, *, end: str | None = None, reason: str = ""
    ) -> None:
        self._last += 1
        told = {**asdict(standing), "run_id": run_id, "end": end, "reason": reason}
        self._ring.append({"seq": self._last, "at": self._wall(), **told})


def _way_between(passed: str, now: str) -> list[str]:
    """The phases after one up to another; one that is stopped early never ran."""
    begun = WAY.index(passed) + 1 if passed in WAY else 0
    way = WAY[begun : WAY.index(now) + 1]
    return [p for p in way if p == now or now != WAY[-1] or p != Phase.RUNNING.value]


def kind_of(reason: str) -> str:
    """A reason as a word for programs; empty where it is a sentence, which may name anything."""
    kind = reason.partition(": ")[0]
    return kind if KIND.fullmatch(kind) else ""


def dominant_reason(state: GateState, decisions: Decisions, run_id: str) -> str:
    """The kind of the first reason why a run waits, if it does."""
    queued = state.queue.get(run_id)
    reasons = decisions.reasons_of(queued.key) if queued is not None else ()
    return reasons[0].check.value if reasons else ""


def _is_over(record: Record | None) -> bool:
    return record is None or record.status == ENDED


def _waiting(queued: Queued) -> Standing:
    return Standing(queued.request.family.name, QUEUED, None, queued.attempts)


def _living(lease: Lease) -> Standing:
    return Standing(lease.request.family.name, ACTIVE, lease.phase.value, lease.attempt)
