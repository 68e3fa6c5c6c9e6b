"""Submitting: a run's directory whole, then its request at the gate, then the answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from jupyter_gpugate.core.admission.masks import mask_of
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.messages import (
    DefaultsMessage,
    Message,
    RequestMessage,
    WithdrawMessage,
)
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.runs import directory
from jupyter_gpugate.runs.fingerprinting import Fingerprinter
from jupyter_gpugate.runs.folder import TooLarge, in_words
from jupyter_gpugate.runs.ids import new_run_id
from jupyter_gpugate.runs.inventory import Inventory
from jupyter_gpugate.runs.lease_client import GateAway, GateRefused, LeaseClient
from jupyter_gpugate.runs.life import QUEUED, Life
from jupyter_gpugate.runs.machine import Machine
from jupyter_gpugate.runs.notebook_cgroup import notebook_cgroup_of
from jupyter_gpugate.runs.pending_submits import body_digest
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Record, Refused, listed_of
from jupyter_gpugate.runs.removal import remove_run
from jupyter_gpugate.runs.repeating import is_repetition, repetition_of
from jupyter_gpugate.runs.requests import (
    environment_of,
    refuse_half_a_service,
    request_of,
    spec_of,
)
from jupyter_gpugate.runs.staging import NotStaged
from jupyter_gpugate.runs.tasks import Tasks

A = TypeVar("A")

#: The gate may first have to learn whether there is a GPU.
ANSWER_S = 30.0


class Submissions:
    """Turns submits into runs: exactly one for each idempotency key."""

    def __init__(
        self,
        inventory: Inventory,
        gate: LeaseClient,
        tasks: Tasks,
        *,
        owner: str,
        root: Path,
        machine: Machine,
        programs: Programs,
        cache: Path | None = None,
    ) -> None:
        self._inventory = inventory
        self._groups = inventory.groups
        self._records = inventory.records
        self._machine = machine
        self._programs = programs
        self._gate = gate
        self._tasks = tasks
        self._runs = inventory.root
        self._owner = owner
        self._root = root
        self._fingerprinter = Fingerprinter(programs, cache)
        self._reading: Counter[str] = Counter()  # by idempotency key
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.under_way: set[str] = set()  # ids that the gate may know before anybody else does

    async def submit(self, body: Mapping[str, Any]) -> tuple[Record, bool]:
        """Queue a run: its record, and whether it is a new one.  Raises `Refused`."""
        digest = body_digest(body)
        key = body.get("idempotency_key")
        if not key:
            return await self._queue(body, digest), True
        await self._inventory.whole.wait()  # it may be that of a run that has ended
        # Of an execution that is sent twice at once the second waits for what the first becomes.
        async with self._turns.setdefault(key, asyncio.Lock()):
            earlier = self._records.with_key(key)
            if earlier is None:
                return await self._queue(body, digest), True
        if earlier.spec.get("digest") != digest:
            raise Refused(
                409,
                "key_reused",
                "idempotency_key: was used with another body",
                field="idempotency_key",
                run_id=earlier.run_id,
            )
        return earlier, False

    def reads(self, key: str) -> bool:
        """Return whether the sources of the submit with this key are being read."""
        return key in self._reading

    async def whole(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a body with everything that it leaves to the run that it repeats, if any."""
        if not is_repetition(body):
            return body
        await self._inventory.whole.wait()  # the newest run of that name may have ended
        return repetition_of(body, self._records.newest(body["name"]))

    async def request_of(self, body: Mapping[str, Any]) -> Request:
        """The request that a body would become; nothing is queued."""
        _, _, request = await self._prepared("estimate", body, "")
        return request

    async def again(self, record: Record) -> str:
        """Ask for a run that the gate does not know until it answers; why it refused, or ""."""
        while record.status == QUEUED:
            try:
                await self._gate.insist(RequestMessage(record.request))
                break
            except GateRefused as error:
                if error.retry_after is None:
                    return str(error)
                await asyncio.sleep(float(error.retry_after))
        return ""

    async def _queue(self, body: Mapping[str, Any], digest: str) -> Record:
        run_id = new_run_id()
        if body.get("group") or body.get("after"):
            await self._inventory.whole.wait()  # they may have ended
        self._groups.begin(run_id, body)
        self.under_way.add(run_id)
        try:
            return await self._tasks.unbroken(self._queued(run_id, body, digest))
        finally:
            self.under_way.discard(run_id)
            self._groups.finish(run_id)

    async def _queued(self, run_id: str, body: Mapping[str, Any], digest: str) -> Record:
        spec, environ, request = await self._prepared(run_id, body, digest)
        spec["machine"] = self._machine.to_json()
        summary = _first_summary(spec)
        try:
            await asyncio.to_thread(self._programs.ready)  # without them no run can start
            path = await asyncio.to_thread(
                directory.create, self._runs, run_id, spec, environ, summary, spec["staged"]
            )
        except NotStaged as error:
            raise Refused(400, "bad_request", f"inputs: {error}", field="inputs") from None
        except TooLarge as error:
            raise Refused(413, "too_large", f"the run's record cannot be kept: {error}") from None
        except OSError as error:
            raise Refused(
                503, "disk", f"the run directory cannot be written: {in_words(error)}"
            ) from None
        try:
            await self._asked(RequestMessage(request))
        except GateAwayRefused:
            # It may have received the request all the same.
            self._tasks.spawn(self._withdraw(run_id))
            await asyncio.to_thread(remove_run, path)
            raise
        except BaseException:
            await asyncio.to_thread(remove_run, path)
            raise
        life = Life(detached=request.detached)
        record = Record(run_id, path, spec, summary, request, life)
        self._records.add(record)
        return record

    async def _prepared(
        self, run_id: str, body: Mapping[str, Any], digest: str
    ) -> tuple[dict[str, Any], dict[str, str], Request]:
        body = await self.whole(body)
        if body.get("gpus") is None:
            mask = mask_of(environment_of(body))
            body = {**body, **to_json(await self._asked(DefaultsMessage(mask)))}
            if body.get("device") or body.get("device_model"):
                # Where there is no such device, that is to be said.
                body["gpus"] = max(1, body["gpus"])
        refuse_half_a_service(body)
        spec, environ = spec_of(run_id, body, self._root, digest)
        spec["after_runs"] = self._groups.awaited(body)
        source = await self._read(spec, environ, body)
        _refuse_unreadable(source)
        fields = ("source_hash", "files", "packages", "runtime", "python")
        spec.update({name: source[name] for name in fields})
        cgroup = notebook_cgroup_of(spec["kernel"])
        spec.update(cgroups=dict(cgroup.joins), cgroup=cgroup.memory, cgroup_note=cgroup.note)
        return spec, environ, request_of(spec, self._owner)

    async def _read(
        self, spec: Mapping[str, Any], environ: Mapping[str, str], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        key = body.get("idempotency_key") or ""
        kernel = str((body.get("kernel") or {}).get("pid", ""))
        self._reading[key] += 1
        try:
            return await self._fingerprinter.read(
                spec["interpreter"], spec["question"], environ, kernel
            )
        finally:
            self._reading[key] -= 1
            self._reading += Counter()  # what is 0 goes

    async def _asked(self, message: Message[A]) -> A:
        try:
            return await self._gate.ask(message, ANSWER_S)
        except GateAway as error:
            raise GateAwayRefused(503, "gate_away", f"nothing can be queued now: {error}") from None
        except GateRefused as error:
            raise Refused(
                error.status,
                error.refusal.error,
                str(error),
                retry_after=error.retry_after,
                **error.refusal.detail,
            ) from None

    async def _withdraw(self, run_id: str) -> None:
        await self._gate.tell(WithdrawMessage(run_id, reason="its submit was refused"))


class GateAwayRefused(Refused):
    """The gate did not answer; it may have received the request."""


def _first_summary(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A run as it is at its submit, with what lists need of its spec."""
    fields = {field: spec[field] for field in ("run_id", "machine", "submitted")}
    state = {"key": spec.get("idempotency_key"), "status": QUEUED, "attempt": 0}
    return {**fields, **listed_of(spec)._asdict(), **state}


def _refuse_unreadable(source: Mapping[str, Any]) -> None:
    """Refuse source that is not Python, or that contains a notebook's own commands."""
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
        raise Refused(400, "bad_request", f"argv: {source['error']}", field="argv")
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
