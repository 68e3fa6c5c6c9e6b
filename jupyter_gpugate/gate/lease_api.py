"""The lease protocol on the gate's unix socket: ``POST /lease/v1/<message>``.

The operating system's word on who is calling is the identity; there are no tokens here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tornado.web import HTTPError, RequestHandler

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.impossible import impossible
from jupyter_gpugate.core.codec import (
    HEARTBEAT_S,
    LEASE_PATH,
    PRESENCE_S,
    ProtocolError,
    from_json,
    to_json,
)
from jupyter_gpugate.core.leases import Lease, RunLease
from jupyter_gpugate.core.private import without_values
from jupyter_gpugate.core.reports import (
    EndReport,
    Peaks,
    Phase,
    RunEnd,
    RunReport,
)
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.gate.claims import Claims
from jupyter_gpugate.gate.journal.journal import JournalError
from jupyter_gpugate.gate.known_gpus import come_to_know_gpus, default_gpus
from jupyter_gpugate.gate.loop import GateLoop

T = TypeVar("T")

#: The characters of a folder name.
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class RequestMessage:
    """A run side asks for a lease."""

    request: Request
    run_side: str


@dataclass(frozen=True)
class DefaultsMessage:
    """A run side asks for the defaults of a run with this mask of devices."""

    visible: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PresenceMessage:
    """A run side is there, and knows of these grants already."""

    run_side: str
    run_ids: tuple[str, ...] = ()
    known: tuple[int, ...] = ()


@dataclass(frozen=True)
class WithdrawMessage:
    """A run that has not started is taken back."""

    run_id: str
    end: RunEnd = RunEnd.CANCELLED
    reason: str = ""


@dataclass(frozen=True)
class DeclineMessage:
    """A grant cannot be used; with an end, the run cannot be started at all."""

    run_id: str
    fence: int
    reason: str = ""
    end: RunEnd | None = None


@dataclass(frozen=True)
class StartedMessage:
    """A supervisor asks to go."""

    run_id: str
    fence: int
    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class HeartbeatMessage:
    """A supervisor's beat."""

    run_id: str
    fence: int
    tree: tuple[ProcessKey, ...] = ()
    report: RunReport = RunReport()
    peaks: Peaks = Peaks()
    episode: int = 0
    phase: Phase = Phase.RUNNING
    stop_reason: str = ""


@dataclass(frozen=True)
class FinishedMessage:
    """A run's attempt has ended."""

    run_id: str
    fence: int
    end: EndReport


@dataclass(frozen=True)
class RegisterMessage:
    """A run side says, after any reconnect, what it knows."""

    run_side: str
    fences: dict[str, int]
    run_ids: tuple[str, ...] = ()


def peer_uid(handler: RequestHandler) -> int | None:
    """The uid of whoever is at the other end of a unix socket; None over TCP."""
    return _peer(handler)[1]


def _peer(handler: RequestHandler) -> tuple[int | None, int | None]:
    stream = getattr(handler.request.connection, "stream", None)
    connection = getattr(stream, "socket", None)
    if connection is None or connection.family != socket.AF_UNIX:
        return None, None
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


class SocketHandler(RequestHandler):
    """Answers JSON, to the socket's own user and to root alone."""

    def initialize(self, gate: GateLoop, owner: str) -> None:
        self.gate = gate
        self.owner = owner

    def prepare(self) -> None:
        if peer_uid(self) not in (os.getuid(), 0):
            raise HTTPError(403, "this socket belongs to another user")

    def read(self, kind: type[T]) -> T:
        """The body as a message, or a 400 that names the field."""
        try:
            return from_json(kind, json.loads(self.request.body or b"{}"), "message")
        except ProtocolError as error:
            raise HTTPError(
                400, f"{error.field.removeprefix('message.')}: {error.problem}"
            ) from None
        except (ValueError, RecursionError):
            raise HTTPError(400, "the body is not JSON") from None

    def fail(self, status: int, error: str, message: str, /, **detail: Any) -> None:
        self.set_status(status)
        self.finish({"error": error, "message": message, "detail": detail})

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, JournalError):
            self.fail(503, "journal", f"the gate cannot write its journal: {error}")
            return
        message = getattr(error, "log_message", None) or self._reason
        words = {400: "bad_message", 403: "forbidden", 404: "not_found"}
        self.fail(status_code, words.get(status_code, "internal"), str(message))

    def lease(self, run_id: str, fence: int) -> RunLease | None:
        """The live lease of this fence; otherwise the caller is told that it is fenced."""
        lease = self.gate.state.leases.get(run_id)
        if lease is None or lease.terms.fence != fence:
            newest = lease.terms.fence if lease else None
            self.fail(409, "fence", "this lease is over", fence=fence, newest=newest)
            return None
        return lease


class LeaseRequestHandler(SocketHandler):
    """``request``: into the queue, or a refusal that names the field."""

    async def post(self) -> None:
        message = self.read(RequestMessage)
        request = message.request
        if not _RUN_ID.fullmatch(request.run_id):
            self._refuse(400, "bad_message", "request.run_id: is no id", field="request.run_id")
            return
        request = replace(
            request,
            family=replace(request.family, owner=self.owner),
            setting=without_values(request.setting),
        )
        if request.gpus and not await come_to_know_gpus(self.gate):
            self.fail(503, "starting", "the driver has not said yet which GPUs there are")
            return
        problem = impossible(self.gate.state, self.gate.sample, request)
        if problem is not None:
            told = {"field": problem.field_name, **problem.numbers}
            self._refuse(400, "impossible", problem.message, **told)
            return
        full = self._queue_is_full(request)
        if full is not None:
            self.set_header("Retry-After", "30")
            self._refuse(429, "queue_full", full)
            return
        # Those that are just being written down count as well: many may ask at once.
        self._asking[request.run_id] = request
        try:
            await self.gate.record(ev.Requested(self.gate.now(), request, message.run_side))
        finally:
            self._asking.pop(request.run_id, None)
        self.finish({"status": "queued"})

    def _refuse(self, status: int, error: str, message: str, /, **detail: Any) -> None:
        self.gate.counts.refused[error] += 1
        self.fail(status, error, message, **detail)

    @property
    def _asking(self) -> dict[str, Request]:
        asking: dict[str, Request] = self.settings.setdefault("asking", {})
        return asking

    def _queue_is_full(self, request: Request) -> str | None:
        state = self.gate.state
        if request.run_id in state.queue or request.run_id in state.leases:
            return None
        queued = {r: waiting.request for r, waiting in state.queue.items()} | self._asking
        if len(queued) >= state.traits.max_queued:
            return f"{len(queued)} runs are queued here, the most this gate takes"
        own = sum(1 for other in queued.values() if other.owner == request.owner)
        if own >= state.traits.max_queued_per_user:
            return f"{own} of your runs are queued, the most that one user may have"
        return None


class DefaultsHandler(SocketHandler):
    """``defaults``: what a run gets that does not say; asked before its spec is written."""

    async def post(self) -> None:
        gpus, managed = await default_gpus(self.gate, self.read(DefaultsMessage).visible)
        self.finish({"gpus": gpus, "managed": managed})


class PresenceHandler(SocketHandler):
    """``presence``: keeps requests from being parked, and brings grants and ends."""

    async def post(self) -> None:
        message = self.read(PresenceMessage)
        deadline = self.gate.now() + PRESENCE_S
        while True:
            self.gate.post(ev.Present(self.gate.now(), message.run_side, message.run_ids))
            version = self.gate.version
            news = self._news(message)
            left = deadline - self.gate.now()
            if news["grants"] or news["ended"] or left <= 0 or self._misses_a_run(message):
                self.finish(news)
                return
            await self.gate.changed(version, min(left, PRESENCE_S))

    def _misses_a_run(self, message: PresenceMessage) -> bool:
        """A run was queued since: its run side is to ask again with it on the list."""
        queue = self.gate.state.queue
        listed = set(message.run_ids)
        return any(q.run_side == message.run_side and r not in listed for r, q in queue.items())

    def _news(self, message: PresenceMessage) -> dict[str, Any]:
        state = self.gate.state
        granted = [
            lease
            for lease in state.leases.values()
            if lease.attempt.queued.run_side == message.run_side
            and lease.live is None
            and lease.terms.fence not in message.known
        ]
        ended = [
            {"run_id": r, "end": state.ended[r].end.value, "reason": state.ended[r].reason}
            for r in message.run_ids
            if r in state.ended
        ]
        return {
            "grants": [self.grant_of(lease) for lease in granted],
            "estimates": {lease.run_id: to_json(lease.attempt.estimate) for lease in granted},
            "ended": ended,
        }

    def grant_of(self, lease: RunLease) -> dict[str, Any]:
        """A lease as the `Grant` that made it."""
        terms = lease.terms
        return {
            "run_id": lease.run_id,
            "attempt": lease.attempt.number,
            "fence": terms.fence,
            "devices": list(terms.devices),
            "charges": dict(terms.charges),
            "basis": to_json(terms.basis),
            "caps": dict(terms.caps),
            "enforcement": terms.enforcement.value,
            "device_totals": self._totals(lease),
        }

    def _totals(self, lease: Lease) -> dict[str, int]:
        inventory = self.gate.state.inventory
        return {u: inventory[u].total_bytes for u in lease.terms.devices if u in inventory}


class WithdrawHandler(SocketHandler):
    """``withdraw``: a queued or granted run is gone."""

    async def post(self) -> None:
        message = self.read(WithdrawMessage)
        lease = self.gate.state.leases.get(message.run_id)
        if lease is not None and lease.live is not None:
            self.fail(409, "state", "the run has started; stop it instead")
            return
        event = ev.Withdrawn(self.gate.now(), message.run_id, message.end, message.reason)
        await self.gate.record(event)
        self.finish({"gone": True})


class DeclineHandler(SocketHandler):
    """``decline``: a grant goes back to the queue, or ends a run that cannot be started."""

    async def post(self) -> None:
        message = self.read(DeclineMessage)
        if self.lease(message.run_id, message.fence) is None:
            return
        await self.gate.record(
            ev.Declined(self.gate.now(), message.run_id, message.fence, message.reason, message.end)
        )
        self.finish({"gone": True})


class StartedHandler(SocketHandler):
    """``started``: the one place that lets user code run."""

    async def post(self) -> None:
        message = self.read(StartedMessage)
        lease = self.lease(message.run_id, message.fence)
        if lease is None:
            return
        process = ProcessKey(message.pid, message.start_ticks)
        if lease.live is None:
            event = ev.Started(
                self.gate.now(), message.run_id, message.fence, process, message.boot_id
            )
            # Of two that ask in one tick the journal has one, and the other is told so.
            await self.gate.record(event)
            lease = self.lease(message.run_id, message.fence)
            if lease is None:
                return
        if lease.live is None or lease.live.process != process:
            self.fail(409, "fence", "another supervisor holds this lease", fence=message.fence)
            return
        self.finish({"verdict": "go"})


class HeartbeatHandler(SocketHandler):
    """``heartbeat``: continue, or stop with a reason."""

    def post(self) -> None:
        message = self.read(HeartbeatMessage)
        if self._is_forgotten(message.run_id):
            # This gate's journal was lost.  The run is nobody's now, but it is not to be stopped.
            self.finish({"verdict": "continue", "reason": "", "next_in": HEARTBEAT_S})
            return
        lease = self.lease(message.run_id, message.fence)
        if lease is None:
            return
        tree = self._vetted(message, lease)
        if lease.live is None and tree:
            # The gate was killed between its "go" and the record of it.
            self.gate.post(
                ev.Started(
                    self.gate.now(),
                    message.run_id,
                    message.fence,
                    tree[0],
                    self.gate.sample.boot_id,
                )
            )
        self.gate.post(
            ev.Beat(
                at=self.gate.now(),
                run_id=message.run_id,
                fence=message.fence,
                tree=tree,
                report=message.report,
                peaks=message.peaks,
                episode=message.episode,
                phase=message.phase,
                stop_reason=message.stop_reason,
            )
        )
        self.finish({"verdict": "continue", "reason": "", "next_in": HEARTBEAT_S})

    def _vetted(self, message: HeartbeatMessage, lease: Lease) -> tuple[ProcessKey, ...]:
        """Return the processes of the named tree that are, or may be, the run's."""
        if not message.tree:
            return ()
        claims: Claims = self.settings.setdefault("claims", Claims())
        state = self.gate.state
        claims.forget(state.leases)
        uid = peer_uid(self)
        return claims.of_run(
            message.run_id,
            lease.live.process if lease.live else message.tree[0],
            message.tree,
            os.getuid() if uid is None else uid,
            self.gate.sample.processes,
        )

    def _is_forgotten(self, run_id: str) -> bool:
        state = self.gate.state
        return not any(run_id in known for known in (state.leases, state.queue, state.ended))


class FinishedHandler(SocketHandler):
    """``finished``: recorded before it is answered."""

    async def post(self) -> None:
        message = self.read(FinishedMessage)
        if not self._is_recorded(message):
            if self.lease(message.run_id, message.fence) is None:
                return
            await self.gate.record(
                ev.Finished(self.gate.now(), message.run_id, message.fence, message.end)
            )
        ended = self.gate.state.ended.get(message.run_id)
        shown = (ended.peaks, ended.elsewhere) if ended else ({}, {})
        told = {"recorded": True, "peaks": dict(shown[0]), "elsewhere": dict(shown[1])}
        self.finish({**told, "grown": self.gate.growth_beside(message.run_id)})

    def _is_recorded(self, message: FinishedMessage) -> bool:
        ended = self.gate.state.ended.get(message.run_id)
        return ended is not None and ended.fence == message.fence


class RegisterHandler(SocketHandler):
    """``register``: both sides learn what the other does not know."""

    def post(self) -> None:
        message = self.read(RegisterMessage)
        state = self.gate.state
        self.gate.post(ev.Present(self.gate.now(), message.run_side, message.run_ids))
        known = set(state.queue) | set(state.leases) | set(state.ended)
        leased = [lease.attempt.queued for lease in state.leases.values()]
        mine = {
            queued.request.run_id
            for queued in (*state.queue.values(), *leased)
            if queued.run_side == message.run_side
        }
        unneeded = sorted(mine - set(message.run_ids))
        live = {
            run_id: {
                "name": lease.request.family.name,
                "attempt": lease.attempt.number,
                "fence": lease.terms.fence,
            }
            for run_id in unneeded
            if (lease := state.leases.get(run_id)) and lease.live is not None
        }
        unknown = [run_id for run_id in message.run_ids if run_id not in known]
        self.finish({"unknown": unknown, "unneeded": unneeded, "live": live})


def lease_routes(
    gate: GateLoop, owner: str
) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """The routes of the lease protocol for a gate of one user, ``owner``."""
    handlers: dict[str, type[RequestHandler]] = {
        "request": LeaseRequestHandler,
        "defaults": DefaultsHandler,
        "presence": PresenceHandler,
        "withdraw": WithdrawHandler,
        "decline": DeclineHandler,
        "started": StartedHandler,
        "heartbeat": HeartbeatHandler,
        "finished": FinishedHandler,
        "register": RegisterHandler,
    }
    shared = {"gate": gate, "owner": owner}
    return [(f"{LEASE_PATH}/{name}", handler, shared) for name, handler in handlers.items()]
