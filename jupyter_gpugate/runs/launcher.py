"""The run side: keeps specs, starts supervisors, adopts survivors, and talks to the gate.

The run directories are its only memory.  A run is queued, then active with one attempt, then
ended; the gate says when an attempt may start, the attempt's own outcome on disk says how it ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.model import AttemptOutcome, EndReport, Grant, Request, RunEnd
from jupyter_gpugate.core.protocol import PRESENCE_S, from_json, to_json
from jupyter_gpugate.runs import directory
from jupyter_gpugate.runs.lease_client import FIRST_PAUSE_S, GateAway, GateRefused, LeaseClient
from jupyter_gpugate.runs.processes import ProcessName, ended, kill_all, send
from jupyter_gpugate.runs.record import ACTIVE, ENDED, QUEUED, Record, Refused
from jupyter_gpugate.runs.requests import request_of, spec_of
from jupyter_gpugate.runs.sources import SourceReader
from jupyter_gpugate.runs.starting import begin, granted_part, launch_of, supervisor_of

#: A supervisor that has not ended this long after its grace is over is itself killed.
OVERTIME_S = 15.0
OUTPUT_TAIL_BYTES = 64 * 1024
#: Between two presences that brought nothing, one of which may just have missed a new run.
LULL_S = 0.05


class Launcher:
    """One user's runs."""

    def __init__(
        self,
        *,
        runs: Path,
        socket: Path,
        owner: str,
        grace_s: float,
        root: Path,
        log: logging.Logger,
    ) -> None:
        self._runs = runs
        self._socket = socket
        self._owner = owner
        self._grace_s = grace_s
        self._root = root
        self._log = log
        self._side = f"uid-{os.getuid()}"
        self._gate = LeaseClient(str(socket))
        self._sources = SourceReader()
        self._records: dict[str, Record] = {}
        self._by_key: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._presence: asyncio.Task[None] | None = None
        self._known_fences: set[int] = set()
        self._closing = False

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up what is on the disk: adopt, finish or queue again, oldest first."""
        found = await asyncio.to_thread(directory.scan, self._runs, self._request_of)
        for trouble in found.troubles:
            self._log.warning("%s", trouble)
        for run in found.runs:
            summary = {**run.summary, "attempt": run.attempt}
            request = self._request_of(run.spec)
            self._remember(Record(run.run_id, run.path, run.spec, summary, request))
        await self._register()
        for record in list(self._records.values()):
            if record.status != ENDED and record.attempt:
                await self._adopt(record)
        self._presence = asyncio.create_task(self._be_present())

    def leave(self) -> None:
        """The gate is about to go: do not look for it again."""
        self._closing = True

    async def stop(self) -> None:
        """Let go of everything; runs go on under their supervisors."""
        self._closing = True
        tasks = [*self._tasks, *([self._presence] if self._presence else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._gate.close()

    def unfinished(self) -> bool:
        """Whether any run is queued or active."""
        return any(record.status != ENDED for record in self._records.values())

    async def cancel_all(self) -> None:
        """Stop every unfinished run and wait for their ends."""
        unfinished = [r.run_id for r in self._records.values() if r.status != ENDED]
        await asyncio.gather(*(self.cancel(run_id) for run_id in unfinished))

    # -- submitting -----------------------------------------------------------------------------

    async def submit(self, body: Mapping[str, Any]) -> tuple[str, bool]:
        """Queue a run: its id, and whether it is a new one.  Raises `Refused`."""
        digest = hashlib.sha256(
            json.dumps({k: v for k, v in body.items() if k != "kernel"}, sort_keys=True).encode()
        ).hexdigest()
        key = body.get("idempotency_key")
        if key and key in self._by_key:
            return self._repeated(self._by_key[key], digest), False
        run_id = directory.new_run_id()
        if key:
            self._by_key[key] = run_id
        try:
            await self._queue(run_id, body, digest)
        except BaseException:
            if key:
                self._by_key.pop(key, None)
            raise
        return run_id, True

    def _repeated(self, run_id: str, digest: str) -> str:
        record = self._records.get(run_id)
        if record is not None and record.spec.get("digest") != digest:
            raise Refused(
                409,
                "key_reused",
                "idempotency_key: was used with another body",
                field="idempotency_key",
                run_id=run_id,
            )
        return run_id

    async def _queue(self, run_id: str, body: Mapping[str, Any], digest: str) -> None:
        spec, environ, request = await self._prepared(run_id, body, digest)
        summary = {"run_id": run_id, "status": QUEUED, "submitted": spec["submitted"], "attempt": 0}
        path = self._runs / run_id
        try:
            await asyncio.to_thread(
                directory.create, self._runs, run_id, spec, environ, summary, spec["staged"]
            )
        except directory.NotStaged as error:
            raise Refused(400, "bad_request", f"inputs: {error}", field="inputs") from None
        except OSError as error:
            raise Refused(
                503, "disk", f"the run directory cannot be written: {error.strerror}"
            ) from None
        try:
            answer = await self._ask_for(request)
        except BaseException:
            await asyncio.to_thread(directory.remove, path)
            raise
        request = replace(request, family=replace(request.family, gpus=answer["gpus"]))
        record = Record(run_id, path, {**spec, "gpus": answer["gpus"]}, summary, request)
        self._remember(record)

    async def request_of(self, body: Mapping[str, Any]) -> Request:
        """The request that a body would become; nothing is queued."""
        _, _, request = await self._prepared("estimate", body, "")
        return request

    async def _prepared(
        self, run_id: str, body: Mapping[str, Any], digest: str
    ) -> tuple[dict[str, Any], dict[str, str], Request]:
        spec, environ = spec_of(run_id, body, self._root, digest)
        source = await self._sources.read(spec["interpreter"], spec["question"], environ)
        if source.get("syntax_error"):
            wrong = source["syntax_error"]
            raise Refused(
                400,
                "bad_request",
                f"source: line {wrong.get('line')}: {wrong.get('message')}",
                field="source",
                **wrong,
            )
        if source.get("error"):
            field = "argv" if spec["kind"] == "program" else "source"
            raise Refused(400, "bad_request", f"{field}: {source['error']}", field=field)
        if source.get("magic_lines"):
            line = source["magic_lines"][0]
            raise Refused(
                400,
                "bad_request",
                f"source: line {line['line']}: {line['text']!r} is a notebook command; "
                "a run is plain Python",
                field="source",
                **line,
            )
        spec.update(
            source_hash=source["source_hash"],
            files=source["files"],
            packages=source["packages"],
            runtime=source["runtime"],
            python=source["python"],
        )
        return spec, environ, request_of(spec, self._owner)

    async def _ask_for(self, request: Request) -> dict[str, Any]:
        body = {"request": to_json(request), "run_side": self._side}
        try:
            return await self._gate.ask("request", body)
        except GateAway as error:
            raise Refused(503, "gate_away", f"the gate does not answer: {error}") from None
        except GateRefused as error:
            detail = error.body.get("detail", {})
            raise Refused(
                error.status,
                error.body.get("error", "refused"),
                str(error),
                retry_after=error.retry_after,
                **detail,
            ) from None

    def _remember(self, record: Record) -> None:
        self._records[record.run_id] = record
        key = record.spec.get("idempotency_key")
        if key:
            self._by_key[key] = record.run_id
        if record.status == QUEUED and record.request.kernel and not record.request.detached:
            self._spawn(self._mind_kernel(record))

    # -- the gate's news ------------------------------------------------------------------------

    def _request_of(self, spec: Mapping[str, Any]) -> Request:
        return request_of(spec, self._owner)

    async def _register(self) -> None:
        unfinished = [r for r in self._records.values() if r.status != ENDED]
        fences = {r.run_id: r.fence for r in unfinished if r.fence is not None}
        answer = await self._gate.insist(
            "register",
            {"run_side": self._side, "fences": fences, "run_ids": [r.run_id for r in unfinished]},
        )
        for run_id in answer["unneeded"]:
            await self._tell("withdraw", {"run_id": run_id, "reason": "unknown to its run side"})
        for run_id in answer["unknown"]:
            record = self._records[run_id]
            if record.status == QUEUED:
                await self._request_again(record)

    async def _request_again(self, record: Record) -> None:
        try:
            await self._ask_for(record.request)
        except Refused as error:
            await self._end(record, RunEnd.REJECTED, str(error))

    async def _be_present(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._closing:
            waiting = [r.run_id for r in self._records.values() if r.status == QUEUED]
            known = sorted(self._known_fences)
            body = {"run_side": self._side, "run_ids": waiting, "known": known}
            try:
                news = await self._gate.ask("presence", body, PRESENCE_S + 10)
                await self._take(news)
                pause = FIRST_PAUSE_S
                if not any(news.values()):
                    await asyncio.sleep(LULL_S)
            except (GateAway, GateRefused) as error:
                if self._closing:
                    return
                self._log.debug("the gate is away: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PRESENCE_S / 2)
                await self._register()

    async def _take(self, news: Mapping[str, Any]) -> None:
        for data in news["grants"]:
            grant = from_json(Grant, data, "grant")
            self._known_fences.add(grant.fence)
            record = self._records.get(grant.run_id)
            if record is None or record.status == ENDED or record.cancelled:
                await self._tell(
                    "decline",
                    {
                        "run_id": grant.run_id,
                        "fence": grant.fence,
                        "reason": "no longer wanted",
                        "end": "cancelled",
                    },
                )
            else:
                self._spawn(self._run(record, grant))
        for data in news["ended"]:
            record = self._records.get(data["run_id"])
            if record is not None and record.status == QUEUED:
                await self._end(record, RunEnd(data["end"]), data["reason"])

    async def _tell(self, message: str, body: dict[str, Any]) -> dict[str, Any]:
        """Say something that the gate may already know, or no longer."""
        try:
            return await self._gate.insist(message, body)
        except GateRefused as error:
            self._log.debug("%s: %s", message, error)
            return {}

    # -- attempts -------------------------------------------------------------------------------

    async def _run(self, record: Record, grant: Grant) -> None:
        """Start an attempt and see it through."""
        record.fence = grant.fence
        launch = launch_of(record, grant, self._socket, self._grace_s)
        # On disk, an attempt's launch.json is what makes a run active.
        record.summary = {**record.summary, "status": ACTIVE, **granted_part(launch)}
        try:
            record.supervisor = await begin(record, grant.attempt, launch)
        except OSError as error:
            reason = f"cannot be started: {error.strerror or error}"
            body = {
                "run_id": record.run_id,
                "fence": grant.fence,
                "reason": reason,
                "end": "failed",
            }
            await self._tell("decline", body)
            await self._end(record, RunEnd.FAILED, reason)
            return
        await self._see_through(record)

    async def _adopt(self, record: Record) -> None:
        """Go on with an attempt of an earlier process of this user."""
        launch = await asyncio.to_thread(directory.launch_of, record.attempt_path)
        record.fence = launch.get("fence") if launch else None
        record.summary = {**record.summary, "status": ACTIVE, **granted_part(launch or {})}
        if record.fence is not None:
            self._known_fences.add(record.fence)
        record.supervisor = await asyncio.to_thread(supervisor_of, record)
        started = (record.attempt_path / "tree.json").exists()
        done = (record.attempt_path / "_DONE").exists()
        if record.supervisor is None and not started and not done:
            # Nothing of it ever ran: its grant, if it still stands, comes again.
            self._known_fences.discard(record.fence or -1)
            record.summary = {**record.summary, "status": QUEUED}
            return
        self._spawn(self._see_through(record))

    async def _see_through(self, record: Record) -> None:
        """Wait for the supervisor's end, then read how the attempt ended."""
        if record.supervisor is not None:
            await ended(record.supervisor)
        outcome = await asyncio.to_thread(directory.outcome_of, record.attempt_path)
        if outcome is None:
            outcome = await self._lost(record)
        report = from_json(EndReport, outcome["end"], "end")
        told = await self._tell(
            "finished", {"run_id": record.run_id, "fence": record.fence, "end": outcome["end"]}
        )
        record.summary = {
            **record.summary,
            "peaks": told.get("peaks") or _reported_peaks(report),
        }
        again = report.outcome in (AttemptOutcome.NOT_STARTED, AttemptOutcome.EVICTED)
        if again and not record.cancelled:
            await self._back_to_queue(record)
            return
        end = (
            RunEnd.CANCELLED
            if report.outcome is AttemptOutcome.NOT_STARTED
            else RunEnd(report.outcome.value)
        )
        await self._end(record, end, report.reason, outcome)

    async def _lost(self, record: Record) -> dict[str, Any]:
        """The supervisor is gone without a word: stop what is left, and say so."""
        known = await asyncio.to_thread(directory.tree_of, record.attempt_path)
        left = await kill_all(record.run_id, [ProcessName(*key) for key in known])
        reason = "its supervisor was killed"
        if left:
            reason += f"; still there: {', '.join(str(p.pid) for p in left)}"
        outcome = {"end": to_json(EndReport(AttemptOutcome.LOST, reason)), "kill": None}
        await asyncio.to_thread(directory.write_outcome, record.attempt_path, outcome)
        return outcome

    async def _back_to_queue(self, record: Record) -> None:
        record.supervisor = record.fence = None
        record.summary = {**record.summary, "status": QUEUED}

    async def _end(
        self,
        record: Record,
        end: RunEnd,
        reason: str,
        outcome: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a run's end down; it never changes after."""
        if record.status == ENDED or record.ending:
            return
        record.ending = True
        told: dict[str, Any] = {}
        if record.attempt:
            told = await asyncio.to_thread(directory.told_by_run, record.attempt_path)
        summary = {
            **record.summary,
            **told,
            "status": ENDED,
            "end": end.value,
            "reason": reason,
            "ended": time.time(),
            "outcome": outcome,
        }
        # Nobody is told of an end that is not on the disk yet.
        await self._save(record, summary)
        await asyncio.to_thread(directory.forget_environment, record.path)
        record.summary = summary
        record.end.set()

    async def _save(self, record: Record, summary: Mapping[str, Any]) -> None:
        try:
            await asyncio.to_thread(directory.write_summary, record.path, summary)
        except OSError as error:
            self._log.error("%s: the summary cannot be written: %s", record.run_id, error)

    async def _mind_kernel(self, record: Record) -> None:
        """A cell that waits in a kernel which is gone takes its run back."""
        kernel = record.request.kernel
        if kernel is None:
            return
        await ended(ProcessName(kernel.pid, kernel.start_ticks))
        if record.status == QUEUED and not record.request.detached:
            await self._withdraw(record, "the notebook's kernel is gone")

    # -- what people ask ------------------------------------------------------------------------

    def known(self, run_id: str) -> Record:
        """The record of a run; `Refused` (404) where there is none."""
        record = self._records.get(run_id)
        if record is None:
            raise Refused(404, "not_found", f"there is no run {run_id}", run_id=run_id)
        return record

    def rows(self) -> list[dict[str, Any]]:
        """All runs, newest first."""
        return [record.row() for record in reversed(self._records.values())]

    def newest(self, name: str) -> Record | None:
        """The run of this name that was submitted last."""
        same = (r for r in reversed(self._records.values()) if r.spec["name"] == name)
        return next(same, None)

    async def output(self, run_id: str, start: int) -> dict[str, Any]:
        """The newest attempt's output from a byte on, at most 64 KiB of it."""
        record = self.known(run_id)
        text, following = await asyncio.to_thread(
            directory.read_output, record.attempt_path, start, OUTPUT_TAIL_BYTES
        )
        over = record.status == ENDED and not text
        return {"from": start, "next": following, "text": text, "ended": over}

    def output_tail(self, record: Record) -> str:
        """The end of a live run's output."""
        return directory.output_tail(record.attempt_path) if record.attempt else ""

    async def episodes(self, run_id: str) -> list[dict[str, Any]]:
        """Finished episodes of every attempt."""
        record = self.known(run_id)
        return await asyncio.to_thread(directory.read_episodes, record.path)

    async def export(self, run_id: str) -> dict[str, Any]:
        """Spec, summary, episodes and output."""
        record = self.known(run_id)
        output = await self.output(run_id, 0)
        return {
            "spec": dict(record.spec),
            "summary": record.summary,
            "episodes": await self.episodes(run_id),
            "output": output["text"],
        }

    async def delete(self, run_id: str) -> None:
        """Remove an ended run and its directory."""
        record = self.known(run_id)
        if record.status != ENDED:
            raise Refused(409, "state", f"{run_id} is {record.status}: cancel it first")
        await asyncio.to_thread(directory.remove, record.path)
        del self._records[run_id]
        self._by_key = {k: r for k, r in self._by_key.items() if r != run_id}

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Stop a run and wait until nothing of it is left: by what means, in how many ms."""
        record = self.known(run_id)
        begun = time.monotonic()
        if record.status == ENDED:
            raise Refused(409, "state", f"{run_id} has ended: {record.summary.get('end')}")
        record.cancelled = True
        means = await self._stop(record)
        kill = (record.summary.get("outcome") or {}).get("kill") or {}
        return {
            "cancelled": record.summary.get("end") == RunEnd.CANCELLED.value,
            "end": record.summary.get("end"),
            "means": kill.get("means") or means,
            "ms": kill.get("ms") or int(1000 * (time.monotonic() - begun)),
            "survivors": kill.get("survivors") or [],
        }

    async def _stop(self, record: Record) -> str:
        if record.supervisor is None and await self._withdraw(record, "cancelled"):
            return "withdrawn"
        stop = {"reason": "cancelled", "at": time.clock_gettime(time.CLOCK_BOOTTIME)}
        await asyncio.to_thread(directory.write_stop, record.attempt_path, stop)
        if record.supervisor is not None:
            send(record.supervisor, signal.SIGTERM)
        try:
            await asyncio.wait_for(record.end.wait(), self._grace_s + OVERTIME_S)
        except asyncio.TimeoutError:
            if record.supervisor is not None:
                send(record.supervisor, signal.SIGKILL)
            await record.end.wait()
            return "supervisor killed"
        return "signal"

    async def _withdraw(self, record: Record, reason: str) -> bool:
        """Take a run back that has not started; False when it has."""
        try:
            await self._gate.ask("withdraw", {"run_id": record.run_id, "reason": reason})
        except (GateRefused, GateAway):
            return False
        await self._end(record, RunEnd.CANCELLED, reason)
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("the run side failed", exc_info=task.exception())


def _reported_peaks(report: EndReport) -> dict[str, int]:
    """What the run's own side measured, where no gate was there to measure it."""
    ram = {"ram": report.peaks.ram_bytes} if report.peaks.ram_bytes else {}
    return {**report.peaks.vram_bytes, **ram}
