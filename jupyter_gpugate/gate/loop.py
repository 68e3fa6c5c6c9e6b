"""THE LOOP: measures, applies events, decides, writes down, and only then acts.

The only mutable state of the gate lives here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.explaining.explain import growth_words
from jupyter_gpugate.core.explaining.rows import Snapshot
from jupyter_gpugate.core.explaining.snapshot import snapshot
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.tick import Happened, run_tick
from jupyter_gpugate.core.learning.calibration import from_observations
from jupyter_gpugate.core.memory.growers import who_grew
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState, Traits
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.counts import Counts
from jupyter_gpugate.gate.journal.journal import JournalError
from jupyter_gpugate.gate.machine.external import Names
from jupyter_gpugate.gate.pace import Pace
from jupyter_gpugate.gate.port import StoryEvent
from jupyter_gpugate.gate.sampling import Sampler
from jupyter_gpugate.proc import boot_id

#: Without a beat for so long a tick is taken all the same: what is read has then grown old.
LONGEST_PAUSE_S = 2.0
#: How often, and down to what, old events are removed from the journal.
PRUNE_EVERY_S = 3600.0
KEPT_AGE_S = 30 * 86400.0
KEPT_ROWS = 200_000
#: These call for a tick of their own; beats and presences wait for the next one.
WAKING = (
    ev.Requested,
    ev.Withdrawn,
    ev.Declined,
    ev.Started,
    ev.Finished,
    ev.Locked,
    ev.Unlocked,
    ev.DrainChanged,
    ev.CalibrationForgotten,
    ev.DeviceForgotten,
)


class KeepsJournal(Protocol):
    """The gate's journal, or its twin in a simulation; blocking."""

    def replay(self) -> list[ev.Event]:
        """Every event that still matters, oldest first."""

    def observations(self) -> list[Observation]:
        """Everything learned so far."""

    def story(self, run_id: str) -> list[tuple[float, ev.Event]]:
        """The events of one run with their wall times."""

    def append(self, events: Sequence[ev.Event], *, durable: bool) -> None:
        """Write all events or none; raise `JournalError`."""

    def prune(self, max_age_s: float, max_rows: int) -> None:
        """Remove old events, never those of unfinished runs."""

    def close(self) -> None:
        """Close the files."""


@dataclass
class _Posted:
    event: ev.Event
    done: asyncio.Future[None] | None


class GateLoop:
    """One gate: feeds events to the core once a second, or at once when something happened."""

    def __init__(
        self,
        sampler: Sampler,
        journal: KeepsJournal,
        traits: Traits | None = None,
        *,
        clock: Callable[[], float] = awake_time,
        wall: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
    ) -> None:
        self.state = GateState(traits=traits or Traits())
        self.sample = Sample()
        self.decisions = Decisions()
        self.decided_state = self.state  # what the decisions were made from
        self.decided_at = 0.0
        self.version = 0
        self.journal_fault: str | None = None
        self.sample_fault = ""
        self.counts = Counts()
        self.now = clock
        self._wall = wall
        self._sampler = sampler
        self._journal = journal
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="gpugate-journal")
        self._inbox: list[_Posted] = []
        self._backlog: list[ev.Event] = []
        self._wake = asyncio.Event()
        self._next_version = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_news = False  # of the machine, not yet taken in
        self._pruned_at = clock()
        self._log = log or logging.getLogger("jupyter_gpugate")
        #: Called after each tick; what they raise is logged.
        self.listeners: list[Callable[[], None]] = []
        self._snapshot: tuple[int, Snapshot] | None = None
        self._names = Names()

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Fold the journal, measure once, and begin to tick."""
        events, observations = await self._on_disk(self._read_journal)
        traits = self.state.traits
        # A fence only grows, even when the journal that knew the last one is lost.
        blank = GateState(
            traits=traits,
            calibration=from_observations(observations),
            fence=int(self._wall()),
        )
        self.state = self._folded(blank, events)
        self._sampler.expects_gpus = bool(self.state.inventory)
        self._inbox.insert(0, _Posted(ev.Restarted(self.now(), boot_id()), None))
        self._watch(())
        self._sampler.start(self._hear_of_reading)
        self.sample = await self._sampler.fresh()
        await self._tick()
        self._task = asyncio.create_task(self._run())

    def _folded(self, state: GateState, events: Sequence[ev.Event]) -> GateState:
        """Apply the journal; an event that cannot be applied is skipped."""
        with contextlib.suppress(Exception):
            return apply(state, events)
        for event in events:
            try:
                state = apply(state, [event])
            except Exception:  # noqa: BLE001 - whatever stands in one row
                self._log.exception("left out of the journal: %s", event.kind)
        return state

    async def stop(self) -> None:
        """End the loop; runs go on without it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._sampler.close()
        await self._on_disk(self._journal.close)
        self._disk.shutdown(wait=False)
        for posted in self._inbox:
            if posted.done and not posted.done.done():
                posted.done.set_exception(JournalError("the gate is stopping"))

    def _read_journal(self) -> tuple[list[ev.Event], list[Observation]]:
        return self._journal.replay(), self._journal.observations()

    async def _on_disk(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._disk, call, *args)

    # -- what others see ------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Hand in an event without waiting for it to be written down."""
        self._inbox.append(_Posted(event, None))
        if isinstance(event, WAKING):
            self._wake.set()

    async def record(self, event: ev.Event) -> None:
        """Hand in an event and wait until it is on the disk; raise `JournalError` if it is not."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.append(_Posted(event, done))
        self._wake.set()
        await done

    async def changed(self, version: int, timeout_s: float) -> int:
        """Wait until a tick later than ``version``, at most ``timeout_s``; the newest version."""
        if self.version == version:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._next_version.wait(), timeout_s)
        return self.version

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the newest tick, made on request."""
        if self._snapshot is None or self._snapshot[0] != self.version:
            made = snapshot(self.state, self.sample, self.decisions, self.decided_at)
            made = replace(
                made,
                external=self._names.named(made.external),
                journal_fault=self.journal_fault,
                sample_fault=self.sample_fault,
            )
            self._snapshot = (self.version, made)
        return self._snapshot[1]

    def growth_beside(self, run_id: str) -> list[str]:
        """Say in sentences who grew where a failed run ran short of memory."""
        grown = who_grew(self.state, self.sample, run_id)
        return [growth_words(self.state, r, g, self._names.of_grower) for r, g in grown.items()]

    async def story(self, run_id: str) -> list[StoryEvent]:
        """Return the events of one run from the journal: wall time, kind and content."""
        rows = await self._on_disk(self._journal.story, run_id)
        return [{"at": wall, "event": e.kind, **to_json(e)} for wall, e in rows]

    # -- the ticks ------------------------------------------------------------------------------

    async def _run(self) -> None:
        pace = Pace()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LONGEST_PAUSE_S)
            await asyncio.sleep(pace.pause(self.now()))
            self._wake.clear()
            try:
                await self._tick()
                await self._prune_when_due()
            except Exception:  # noqa: BLE001 - one bad tick must not end the gate
                self._log.exception("a tick failed; the gate goes on with the next one")
                await asyncio.sleep(LONGEST_PAUSE_S)

    async def _prune_when_due(self) -> None:
        if self.now() - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = self.now()
            await self._on_disk(self._journal.prune, KEPT_AGE_S, KEPT_ROWS)

    async def _tick(self) -> None:
        """One tick: measure, apply, decide, write down, act."""
        batch, self._inbox = self._inbox, []
        try:
            await self._advance(batch)
        except BaseException as error:
            for posted in batch:
                if posted.done and not posted.done.done():
                    posted.done.set_exception(JournalError(f"the gate failed: {error!r}"))
            raise

    async def _advance(self, batch: list[_Posted]) -> None:
        ends = any(isinstance(posted.event, ev.Finished) for posted in batch)
        measured = await self._measure(anew=self._watch(batch) or ends)
        happened = Happened(
            posted=tuple(posted.event for posted in batch),
            sample=self.sample,
            now=self.now(),
            measured=measured,
            wall=self._wall(),
        )
        tick = run_tick(self.state, happened, self.decisions)
        self._tell_fault(tick.fault)
        written = await self._written([*self._backlog, *tick.record])
        self.counts.add(tick, written=written)
        if written:
            self._backlog = []
            self.state, self.decisions = tick.written(), tick.decisions
            self.decided_state, self.decided_at = tick.decided, tick.at
        else:
            self.state, later = tick.unwritten()
            self._backlog.extend(later)
            self.decisions = tick.withheld()
        self._settle(batch)
        self.version += 1
        self._next_version.set()
        self._next_version = asyncio.Event()
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        for listener in self.listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 - who only listens must not end a tick
                self._log.exception("a listener of the gate failed")

    def _watch(self, batch: Sequence[_Posted]) -> bool:
        """Request readings of the runs' cgroups; return whether one has not been read yet."""
        asked = [p.event.request.cgroup for p in batch if isinstance(p.event, ev.Requested)]
        live = [lease.request.cgroup for lease in self.state.leases.values()]
        cgroups = frozenset(asked).union(live, (key.cgroup for key in self.state.alike)) - {""}
        self._sampler.watch(cgroups)
        ram = self.sample.ram
        return ram is not None and not cgroups <= ram.cgroups.keys()

    async def _measure(self, *, anew: bool) -> bool:
        """Take the newest readings; an end, or a new cgroup, requests new ones."""
        measured = anew or self._has_news
        if measured:
            self._has_news = False
            self.sample = await (self._sampler.fresh() if anew else self._sampler.newest())
        return measured

    def _hear_of_reading(self) -> None:
        self._has_news = True
        self._wake.set()

    def _tell_fault(self, fault: str) -> None:
        if fault and fault != self.sample_fault:
            self._log.error("a sample could not be used: %s", fault)
        self.sample_fault = fault

    async def _written(self, record: list[ev.Event]) -> bool:
        if not record:
            return True
        try:
            await self._on_disk(self._append, record)
        except JournalError as error:
            if self.journal_fault is None:
                self._log.error("the journal cannot be written: %s", error)
            self.journal_fault = str(error)
            return False
        self.journal_fault = None
        return True

    def _append(self, events: list[ev.Event]) -> None:
        durable = any(isinstance(event, ev.DURABLE) for event in events)
        self._journal.append(events, durable=durable)

    def _settle(self, batch: list[_Posted]) -> None:
        """Answer everybody who waits; what does not exist unwritten is refused."""
        for posted in batch:
            if posted.done is None or posted.done.done():
                continue
            if self.journal_fault is not None and isinstance(posted.event, ev.REFUSED):
                posted.done.set_exception(JournalError(self.journal_fault))
            else:
                posted.done.set_result(None)
