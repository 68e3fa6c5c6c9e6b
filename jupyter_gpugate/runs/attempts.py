"""Attempts from their grants, or from an earlier process's hands, to the end of their runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.codec import ProtocolError, from_json, to_json
from jupyter_gpugate.core.messages import DeclineMessage, FinishedMessage, WithdrawMessage
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport, RunEnd
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.runs import directory, events
from jupyter_gpugate.runs.cgroup import Cgroup
from jupyter_gpugate.runs.lease_client import LeaseClient
from jupyter_gpugate.runs.processes import ProcessName, ended, kill_all
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import ACTIVE, ENDED, QUEUED, Record
from jupyter_gpugate.runs.removal import make_accessible
from jupyter_gpugate.runs.staging import forget_inputs
from jupyter_gpugate.runs.starting import (
    KILLED,
    PASSING,
    begin,
    gone,
    granted_part,
    is_of_another_boot,
    launch_of,
    set_aside,
    supervisor_of,
)
from jupyter_gpugate.runs.tasks import Tasks

#: A start that fails for want of disk or memory is tried again for so long; a grant lasts longer.
TRIES_S = 20.0
TRY_S = 1.0
#: Outcomes after which the gate queues a run again.
REQUEUED = frozenset({AttemptOutcome.NOT_STARTED.value, AttemptOutcome.EVICTED.value})
#: Its directory is lost, and with it how it ended.
GONE = "its directory was removed while it ran: its output, and how it ended, are lost"
STILL_THERE = "; still there: "
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
        log: logging.Logger,
    ) -> None:
        self._gate = gate
        self._tasks = tasks
        self._programs = programs
        self._addresses = addresses
        self._grace_s = grace_s
        self._log = log
        self.fences: set[int] = set()  # whose grants need not be sent again

    def start(self, record: Record, grant: Grant) -> None:
        """Use a grant, once all of the attempt before is over."""
        self.fences.add(grant.fence)
        record.course = self._tasks.spawn(self._run(record, grant, record.course))

    async def adopt(self, record: Record) -> None:
        """Go on with an attempt of an earlier process of this user."""
        launch = await asyncio.to_thread(directory.launch_of, record.attempt_path)
        record.supervisor = await asyncio.to_thread(supervisor_of, record)
        begun = any((record.attempt_path / name).exists() for name in ("tree.json", "_DONE"))
        if record.supervisor is None and not begun and record.fence is None:
            # It never ran: its grant, if still valid, comes again.
            record.summary = {**record.summary, "attempt": record.attempt - 1}
            return
        record.fence = launch.get("fence") if launch else record.fence
        record.summary = {**record.summary, "status": ACTIVE, **granted_part(launch or {})}
        if record.fence is not None:
            self.fences.add(record.fence)
        record.course = self._tasks.spawn(self._see_through(record))

    # -- the course of an attempt ---------------------------------------------------------------

    async def _run(self, record: Record, grant: Grant, former: asyncio.Task[None] | None) -> None:
        """Start an attempt and see it through."""
        if former is not None:
            await asyncio.wait({former})
        if record.ending or record.cancelled:
            await self.decline(grant, "no longer wanted", RunEnd.CANCELLED)
            return
        before = record.summary
        # The gate does not count attempts of which nothing ran; a folder may have stayed of one.
        grant = replace(grant, attempt=max(grant.attempt, record.attempt + 1))
        launch = launch_of(record, grant, self._addresses(), self._grace_s, self._programs.digest)
        record.fence = grant.fence
        # On disk, an attempt's launch.json is what makes a run active.
        record.summary = {**before, "status": ACTIVE, **granted_part(launch)}
        problem = await self._begin(record, grant, launch)
        if problem is None:
            await self._see_through(record)
            return
        reason = f"cannot be started: {problem.strerror or problem}"
        if not record.ending:
            record.fence, record.summary = None, before
        if problem.errno in PASSING:
            await self.decline(grant, reason)
        else:
            await self.decline(grant, reason, RunEnd.FAILED)
            await self.end(record, RunEnd.FAILED, reason)

    async def _begin(
        self, record: Record, grant: Grant, launch: Mapping[str, Any]
    ) -> OSError | None:
        """Start the supervisor; if the disk is full, try again for a while."""
        until = time.monotonic() + TRIES_S
        while True:
            start = begin(record, grant.attempt, launch, self._programs)
            try:
                record.supervisor = await self._tasks.unbroken(start)
                return None
            except OSError as error:
                if error.errno not in PASSING or time.monotonic() > until or record.ending:
                    return error
            await asyncio.sleep(TRY_S)

    async def decline(self, grant: Grant, reason: str, end: RunEnd | None = None) -> None:
        """Give a grant back: the run queues again or, with an end, is over."""
        await self._gate.tell(DeclineMessage(grant.run_id, grant.fence, reason, end))
        self.fences.discard(grant.fence)

    async def _see_through(self, record: Record) -> None:
        """Wait for the supervisor's end, then read how the attempt ended."""
        if record.supervisor is not None:
            await ended(record.supervisor)
        outcome = await asyncio.to_thread(_outcome_of, record.attempt_path)
        if outcome is None:
            outcome = await self._lost(record)
        cgroup = await asyncio.to_thread(directory.cgroup_of, record.attempt_path)
        await Cgroup(cgroup, record.run_id).remove()
        report = from_json(EndReport, outcome["end"], "end")
        answer = await self._gate.tell(FinishedMessage(record.run_id, record.fence or 0, report))
        self.fences.discard(record.fence or 0)
        peaks = (answer.peaks if answer else None) or _reported_peaks(report)
        if report.outcome.value in REQUEUED:
            await self._requeue(record, report, outcome)
        else:
            seen = {"elsewhere": answer.elsewhere, "grown": list(answer.grown)} if answer else {}
            known = {name: value for name, value in seen.items() if value}
            record.summary = {**record.summary, "peaks": peaks, **known}
            await self.end(record, _end_of(record, report), report.reason, outcome)

    async def tell_end(self, record: Record) -> None:
        """Report an end again that the gate could not write to its journal."""
        outcome = record.summary.get("outcome")
        launch = await asyncio.to_thread(directory.launch_of, record.attempt_path)
        if outcome and launch:
            with suppress(ProtocolError):  # a summary that was changed by hand
                end = from_json(EndReport, outcome["end"], "end")
                await self._gate.tell(FinishedMessage(record.run_id, launch["fence"], end))
        if not outcome or outcome["end"]["outcome"] in REQUEUED:
            reason = record.summary.get("reason", "")
            await self._gate.tell(WithdrawMessage(record.run_id, reason=reason))

    async def _lost(self, record: Record) -> dict[str, Any]:
        """Handle a supervisor that ended without a report: stop its processes, record the end."""
        path, begun = record.attempt_path, time.monotonic()
        known = await asyncio.to_thread(directory.tree_of, path)
        cgroup = Cgroup(await asyncio.to_thread(directory.cgroup_of, path), record.run_id)
        left = await kill_all(record.run_id, [ProcessName(*key) for key in known], cgroup)
        how, reason = await asyncio.to_thread(gone, record)
        if await asyncio.to_thread(directory.is_gone, path):
            how, reason = AttemptOutcome.LOST, GONE
        elif await asyncio.to_thread(is_of_another_boot, record):
            how, reason = AttemptOutcome.LOST, "reboot"
        kill = None
        if left:
            reason += f"{STILL_THERE}{', '.join(str(p.pid) for p in left)}"
            ms = round((time.monotonic() - begun) * 1000)
            kill = {"means": "kill", "ms": ms, "survivors": [list(p) for p in left]}
        end = to_json(EndReport(how, reason))
        outcome = {"end": end, "kill": kill, "wall_ended": time.time()}
        write = asyncio.to_thread(directory.write_outcome, path, outcome)
        with suppress(OSError):  # without it the attempt reads as lost again
            await self._tasks.unbroken(write)
        return outcome

    async def _requeue(self, record: Record, report: EndReport, outcome: Mapping[str, Any]) -> None:
        """The attempt is over and the run is not, unless its user has cancelled it meanwhile."""
        if record.ending or record.cancelled:
            await self._gate.tell(WithdrawMessage(record.run_id, reason="cancelled"))
            await self.end(record, RunEnd.CANCELLED, "cancelled", outcome)
            return
        summary = {**record.summary, "status": QUEUED}
        if report.outcome is AttemptOutcome.NOT_STARTED:
            with suppress(OSError):
                await self._tasks.unbroken(asyncio.to_thread(set_aside, record))
                summary["attempt"] = record.attempt - 1
        record.supervisor = record.fence = None
        record.summary = summary

    # -- the end of a run -----------------------------------------------------------------------

    async def end(
        self,
        record: Record,
        end: RunEnd,
        reason: str,
        outcome: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a run's end down, or wait until another's is; it never changes after."""
        if record.ending:
            await record.end.wait()
        if record.status == ENDED:
            return
        record.ending = True
        reported: dict[str, Any] = {}
        if record.attempt:
            reported = await asyncio.to_thread(events.told_by_run, record.attempt_path)
        summary = {
            **record.summary,
            **reported,
            "status": ENDED,
            "end": end.value,
            "reason": reason,
            "ended": _ended_at(outcome),
            "outcome": outcome,
        }
        # An end is reported once it is on the disk, unless the disk is full.
        if not await self._is_written(record, summary):
            self._tasks.spawn(self._write_later(record, summary))
        record.summary = summary
        record.end.set()

    async def _write_later(self, record: Record, summary: Mapping[str, Any]) -> None:
        while True:
            await asyncio.sleep(WRITE_AGAIN_S)
            if not record.path.exists() or await self._is_written(record, summary):
                return

    async def _is_written(self, record: Record, summary: Mapping[str, Any]) -> bool:
        try:
            write = asyncio.to_thread(_write_end, record.path, summary)
            await self._tasks.unbroken(write)
        except (FileNotFoundError, NotADirectoryError):
            return True  # the run has removed its directory, so nothing can be written
        except OSError as error:
            self._log.error("%s: its end cannot be written: %s", record.run_id, error)
            return False
        record.is_stored = True
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


def _end_of(record: Record, report: EndReport) -> RunEnd:
    """Trust the recorded cancel: stop.json may be missing on a full disk, or be unread."""
    if record.cancelled and report.reason.partition(STILL_THERE)[0] in ("terminated", KILLED, GONE):
        return RunEnd.CANCELLED
    return RunEnd(report.outcome.value)


def _reported_peaks(report: EndReport) -> dict[str, int]:
    """Return the peaks that the supervisor measured, for a run without a gate's measurement."""
    ram = {"ram": report.peaks.ram_bytes} if report.peaks.ram_bytes else {}
    return {**report.peaks.vram_bytes, **ram}
