"""Carries out what follows from the state of each run: starts, follows and ends its attempts."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.codec import JsonObject, ProtocolError, from_json
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.messages import DeclineMessage, FinishedMessage, WithdrawMessage
from jupyter_gpugate.core.reports import EndReport, RunEnd
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.runs import directory, events
from jupyter_gpugate.runs import life as lf
from jupyter_gpugate.runs.folder import Torn
from jupyter_gpugate.runs.groups import Groups
from jupyter_gpugate.runs.lease_client import GateRefused, LeaseClient
from jupyter_gpugate.runs.lifecycle import REQUEUED
from jupyter_gpugate.runs.orphaned_cgroup import OrphanedCgroup
from jupyter_gpugate.runs.outcome import lost_outcome, stop_in
from jupyter_gpugate.runs.placeholders import UnknownTotalError
from jupyter_gpugate.runs.processes import ended, kill_orphans, send
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Record
from jupyter_gpugate.runs.removal import make_accessible
from jupyter_gpugate.runs.staging import forget_inputs
from jupyter_gpugate.runs.starting import (
    PASSING,
    begin,
    granted_part,
    launch_of,
    lost,
    set_aside,
    supervisor_of,
)
from jupyter_gpugate.runs.tasks import Tasks

#: A start that fails for want of disk or memory is tried again for so long; a grant lasts longer.
TRIES_S = 20.0
TRY_S = 1.0
#: Until a summary that a full disk did not take is written again.
WRITE_AGAIN_S = 2.0


class Attempts:
    """Starts attempts, adopts survivors, and writes down how runs end."""

    def __init__(
        self,
        gate: LeaseClient,
        tasks: Tasks,
        *,
        addresses: Callable[[], Sequence[str]],
        grace_s: float,
        programs: Programs,
        groups: Groups,
        log: logging.Logger,
    ) -> None:
        self._gate = gate
        self._groups = groups
        self._tasks = tasks
        self._programs = programs
        self._addresses = addresses
        self._grace_s = grace_s
        self._log = log
        self._carry_out: Mapping[type, Callable[[Record, Any], Awaitable[None]]] = {
            lf.Start: self._start,
            lf.Follow: self._follow,
            lf.SetAside: self._set_aside,
            lf.Decline: self._decline,
            lf.Withdraw: self._withdraw,
            lf.Stop: self._stop,
            lf.Kill: self._kill,
            lf.RecordEnd: self._record_end,
        }

    async def handle(self, record: Record, event: lf.Event) -> None:
        """Apply an event to a run, and carry out the actions that follow in their order."""
        for action in record.apply(event):
            await self._carry_out[type(action)](record, action)

    async def adopt(self, record: Record) -> None:
        """Go on with an attempt of an earlier process of this user."""
        path = record.attempt_path
        launch = await asyncio.to_thread(directory.launch_of, path) or {}
        supervisor = await asyncio.to_thread(supervisor_of, record)
        begun = any((path / name).exists() for name in ("tree.json", "_DONE"))
        stop = await asyncio.to_thread(directory.stop_of, path)
        cancelled = stop is not None and stop.is_cancel
        found = lf.Found(launch.get("fence"), supervisor, begun, granted_part(launch), cancelled)
        await self.handle(record, found)

    async def tell_end(self, record: Record) -> None:
        """Report an end again that the gate could not write to its journal."""
        outcome = record.summary.get("outcome")
        launch = await asyncio.to_thread(directory.launch_of, record.attempt_path)
        answer = None
        if outcome and launch:
            with suppress(ProtocolError):  # a summary that was changed by hand
                end = from_json(EndReport, outcome["end"], "end")
                answer = await self._gate.tell(FinishedMessage(record.run_id, launch["fence"], end))
        is_retried = answer is not None and answer.retry is not None
        if not outcome or is_retried or outcome["end"]["outcome"] in {o.value for o in REQUEUED}:
            reason = record.summary.get("reason", "")
            await self._gate.tell(WithdrawMessage(record.run_id, reason=reason))

    # -- an attempt, from its grant to its end --------------------------------------------------

    async def _start(self, record: Record, action: lf.Start) -> None:
        self._spawn(record, partial(self._begin, record, action))

    async def _follow(self, record: Record, _action: lf.Follow) -> None:
        self._spawn(record, partial(self._see_through, record))

    def _spawn(self, record: Record, work: Callable[[], Awaitable[None]]) -> None:
        """Let work on an attempt go on by itself; its failure does not block the next grant."""

        async def guarded() -> None:
            try:
                await work()
            except Exception:
                await self.handle(record, lf.Abandoned())
                raise

        self._tasks.spawn(guarded())

    async def _begin(self, record: Record, action: lf.Start) -> None:
        """Start the supervisor, if all that had to complete first has completed."""
        try:
            problem = await self._groups.problem_of(record)
        except asyncio.TimeoutError:
            reason = "the end of a run that has to complete first is not recorded yet"
            await self.handle(record, lf.NotBegun(reason, passing=True))
            return
        if problem:
            await self.handle(record, lf.NotBegun(problem, passing=False, end=RunEnd.REJECTED))
            return
        await self._start_supervisor(record, action)

    async def _start_supervisor(self, record: Record, action: lf.Start) -> None:
        """Start the supervisor; if the disk is full, try again for a while."""
        grant, digest = action.grant, self._programs.digest
        try:
            launch = launch_of(record, grant, self._addresses(), self._grace_s, digest)
        except (Torn, UnknownTotalError) as error:
            await self.handle(record, lf.NotBegun(f"cannot be started: {error}", passing=False))
            return
        until = time.monotonic() + TRIES_S
        while True:
            work = begin(record, grant.attempt, launch, self._programs)
            try:
                supervisor = await self._tasks.unbroken(work)
            except OSError as error:
                passing = error.errno in PASSING
                if not passing or time.monotonic() > until or record.life.is_decided:
                    reason = f"cannot be started: {error.strerror or error}"
                    await self.handle(record, lf.NotBegun(reason, passing))
                    return
            else:
                await self.handle(record, lf.Begun(supervisor))
                return
            await asyncio.sleep(TRY_S)

    async def _see_through(self, record: Record) -> None:
        """Wait for the supervisor's end, then read how the attempt ended and report it."""
        if record.life.supervisor is not None:
            await ended(record.life.supervisor)
        outcome = await asyncio.to_thread(_outcome_of, record.attempt_path)
        if outcome is None:
            outcome = await self._lost(record)
        cgroup = await asyncio.to_thread(directory.cgroup_of, record.attempt_path)
        await OrphanedCgroup(cgroup, record.run_id).remove()
        report = from_json(EndReport, outcome["end"], "end")
        fence = record.life.fence or 0
        answer = await self._gate.tell(FinishedMessage(record.run_id, fence, report))
        measured = {"elsewhere": answer.elsewhere, "grown": list(answer.grown)} if answer else {}
        facts = {name: value for name, value in measured.items() if value}
        peaks = (answer.peaks if answer else None) or _reported_peaks(report)
        facts = {**facts, "peaks": peaks}
        is_retried = answer is not None and answer.retry is not None
        await self.handle(record, lf.Over(report, outcome, facts, stop_in(outcome), is_retried))

    async def _lost(self, record: Record) -> JsonObject:
        """Handle a supervisor that ended without a report: stop its processes, record the end."""
        path, begun = record.attempt_path, time.monotonic()
        known = await asyncio.to_thread(directory.tree_of, path)
        cgroup = OrphanedCgroup(await asyncio.to_thread(directory.cgroup_of, path), record.run_id)
        left = await kill_orphans(record.run_id, known, cgroup)
        end = await asyncio.to_thread(lost, record)
        outcome = lost_outcome(end, left, time.monotonic() - begun)
        outcome["wall_ended"] = time.time()
        write = asyncio.to_thread(directory.write_outcome, path, outcome)
        with suppress(OSError):  # without it the attempt reads as lost again
            await self._tasks.unbroken(write)
        return outcome

    async def _set_aside(self, record: Record, _action: lf.SetAside) -> None:
        done = False
        with suppress(OSError):
            await self._tasks.unbroken(asyncio.to_thread(set_aside, record))
            done = True
        await self.handle(record, lf.PutAside(done))

    # -- messages to the gate and to the supervisor ---------------------------------------------

    async def _decline(self, record: Record, action: lf.Decline) -> None:
        await self.decline(action.grant, action.reason, action.end)
        await self.handle(record, lf.GivenBack(action.grant.fence))

    async def decline(self, grant: Grant, reason: str, end: RunEnd | None) -> None:
        """Give a grant back: the run queues again or, with an end, is over."""
        await self._gate.tell(DeclineMessage(grant.run_id, grant.fence, reason, end))

    async def _withdraw(self, record: Record, action: lf.Withdraw) -> None:
        try:
            await self._gate.insist(WithdrawMessage(record.run_id, reason=action.reason))
        except GateRefused:  # it has started
            return
        await self.handle(record, lf.Withdrawn(action.reason))

    async def _stop(self, record: Record, _action: lf.Stop) -> None:
        stop = Stop.of(StopKind.CANCELLED)
        with suppress(OSError):  # a full disk must not prevent a stop
            await asyncio.to_thread(directory.write_stop, record.attempt_path, stop)
        if record.life.supervisor is not None:
            send(record.life.supervisor, signal.SIGTERM)

    async def _kill(self, record: Record, _action: lf.Kill) -> None:
        if record.life.supervisor is not None:
            send(record.life.supervisor, signal.SIGKILL)

    # -- the end of a run -----------------------------------------------------------------------

    async def _record_end(self, record: Record, _action: lf.RecordEnd) -> None:
        """Write the decided end; it is reported once on the disk, or if the disk is full."""
        end = record.life.end
        if end is None:
            return
        reported = {}
        if record.attempt:
            reported = await asyncio.to_thread(events.told_by_run, record.attempt_path)
        facts = {
            **reported,
            "end": end.end.value,
            "reason": end.reason,
            "ended": _ended_at(end.outcome),
            "outcome": end.outcome,
        }
        summary = {**record.summary, **facts, "status": lf.ENDED}
        if not await self._is_written(record, summary):
            self._tasks.spawn(self._write_later(record, summary))
        await self.handle(record, lf.Recorded(facts))

    async def _write_later(self, record: Record, summary: Mapping[str, Any]) -> None:
        while True:
            await asyncio.sleep(WRITE_AGAIN_S)
            if not record.path.exists() or await self._is_written(record, summary):
                return

    async def _is_written(self, record: Record, summary: Mapping[str, Any]) -> bool:
        """Write an end to the disk; return False if that must be tried again."""
        try:
            write = asyncio.to_thread(_write_end, record.path, summary)
            await self._tasks.unbroken(write)
        except (FileNotFoundError, NotADirectoryError):
            return True  # the run has removed its directory, so nothing can be written
        except OSError as error:
            self._log.error("%s: its end cannot be written: %s", record.run_id, error)
            return False
        await self.handle(record, lf.Stored())
        return True


def _write_end(path: Path, summary: Mapping[str, Any]) -> None:
    """Record an end, and remove files that are no longer needed."""
    with suppress(OSError):
        make_accessible(path)
    directory.write_summary(path, summary)
    forget_inputs(path)
    directory.forget_environment(path)


def _outcome_of(attempt: Path) -> dict[str, Any] | None:
    directory.regain(attempt)
    return directory.outcome_of(attempt)


def _ended_at(outcome: Mapping[str, Any] | None) -> float:
    """Return the wall-clock time of the end, which stays the same when it is reported again."""
    answer = (outcome or {}).get("wall_ended")
    now = time.time()
    return answer if isinstance(answer, float) and 0 < answer < now else now


def _reported_peaks(report: EndReport) -> dict[str, int]:
    """Return the peaks that the supervisor measured, for a run without a gate's measurement."""
    ram = {"ram": report.peaks.ram_bytes} if report.peaks.ram_bytes else {}
    return {**report.peaks.vram_bytes, **ram}
