"""The lease protocol of the run side, on the gate's socket: requests, presence, withdrawals."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tornado.web import RequestHandler

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.choices import pinned
from jupyter_gpugate.core.admission.impossible import impossible
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.messages import (
    LEASE_PATH,
    PRESENCE_S,
    DeclineMessage,
    Defaults,
    DefaultsMessage,
    Differences,
    Gone,
    LiveLease,
    News,
    PresenceMessage,
    Queued,
    RegisterMessage,
    RequestMessage,
    RunEnded,
    WithdrawMessage,
)
from jupyter_gpugate.core.parameters import without_words
from jupyter_gpugate.core.requests import Grant, Request
from jupyter_gpugate.gate.door import Door
from jupyter_gpugate.gate.known_gpus import come_to_know_gpus, default_gpus
from jupyter_gpugate.gate.lease_handler import LeaseHandler
from jupyter_gpugate.gate.loop import LONGEST_PAUSE_S, GateLoop
from jupyter_gpugate.gate.supervisor_api import SUPERVISOR_HANDLERS

#: The characters of a folder name.
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class LeaseRequestHandler(LeaseHandler):
    """``request``: into the queue, or a refusal that names the field."""

    message = RequestMessage

    async def post(self) -> None:
        message = self.read(RequestMessage)
        request = message.request
        if not _RUN_ID.fullmatch(request.run_id):
            self._refuse(
                400, "bad_message", "request.run_id: is not a run id", field="request.run_id"
            )
            return
        request = replace(
            request,
            family=replace(request.family, owner=self.caller.name),
            setting=without_words(request.setting),
        )
        if request.gpus and not await come_to_know_gpus(self.gate):
            self.fail(503, "starting", "the driver has not listed the GPUs yet")
            return
        problem = impossible(self.gate.state, self.gate.sample, request)
        if problem is not None:
            detail = {"field": problem.field_name, **problem.numbers}
            self._refuse(400, "impossible", problem.message, **detail)
            return
        request = pinned(request, self.gate.state)
        full = self._queue_is_full(request)
        if full is not None:
            self.set_header("Retry-After", "30")
            self._refuse(429, "queue_full", full)
            return
        # Those that are just being written down count as well: many may ask at once.
        self._asking[request.run_id] = request
        try:
            run_side = self.caller.run_side(message.run_side)
            await self.gate.record(ev.Requested(self.gate.now(), request, run_side))
        finally:
            self._asking.pop(request.run_id, None)
        self.reply(message, Queued())

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
            return f"{len(queued)} runs are queued here, the maximum of this gate"
        own = sum(1 for other in queued.values() if other.owner == request.owner)
        if own >= state.traits.max_queued_per_user:
            return f"{own} of your runs are queued, the maximum per user"
        return None


class DefaultsHandler(LeaseHandler):
    """``defaults``: the default options of a run, requested before its spec is written."""

    message = DefaultsMessage

    async def post(self) -> None:
        message = self.read(DefaultsMessage)
        gpus, managed = await default_gpus(self.gate, message.visible)
        self.reply(message, Defaults(gpus, managed))


class PresenceHandler(LeaseHandler):
    """``presence``: keeps requests from being parked, and brings grants and ends."""

    message = PresenceMessage

    async def post(self) -> None:
        message = self.read(PresenceMessage)
        run_side, deadline = self.caller.run_side(message.run_side), self.gate.now() + PRESENCE_S
        while True:
            self.gate.post(ev.Present(self.gate.now(), run_side, message.run_ids))
            version = self.gate.version
            news = self._news(message)
            left = deadline - self.gate.now()
            if news or left <= 0 or self._misses_a_run(message):
                self.reply(message, news)
                return
            # With the first tick after the deadline, so that an idle gate does not wake once more.
            await self.gate.changed(version, left + LONGEST_PAUSE_S)

    def _misses_a_run(self, message: PresenceMessage) -> bool:
        """A run was queued since: its run side is to ask again with it on the list."""
        queue, run_side = self.gate.state.queue, self.caller.run_side(message.run_side)
        listed = set(message.run_ids)
        return any(q.run_side == run_side and r not in listed for r, q in queue.items())

    def _news(self, message: PresenceMessage) -> News:
        state, run_side = self.gate.state, self.caller.run_side(message.run_side)
        granted = [
            lease
            for lease in state.leases.values()
            if lease.attempt.queued.run_side == run_side
            and lease.live is None
            and lease.terms.fence not in message.known
        ]
        ended = (
            RunEnded(r, state.ended[r].end.kind, state.ended[r].end.reason)
            for r in message.run_ids
            if r in state.ended
        )
        return News(
            grants=tuple(self._grant_of(lease) for lease in granted),
            estimates={lease.run_id: lease.attempt.estimate for lease in granted},
            ended=tuple(ended),
        )

    def _grant_of(self, lease: RunLease) -> Grant:
        """A lease as the `Grant` that made it."""
        inventory, terms = self.gate.state.inventory, lease.terms
        return Grant(
            run_id=lease.run_id,
            attempt=lease.attempt.number,
            fence=terms.fence,
            devices=terms.devices,
            charges=terms.charges,
            basis=terms.basis,
            caps=lease.caps,
            enforcement=terms.enforcement,
            device_totals={u: inventory[u].total_bytes for u in terms.devices if u in inventory},
            retry=lease.attempt.queued.retry_with(terms.charges),
        )


class WithdrawHandler(LeaseHandler):
    """``withdraw``: a queued or granted run is gone."""

    message = WithdrawMessage

    async def post(self) -> None:
        message = self.read(WithdrawMessage)
        if not self._is_live(message.run_id):
            event = ev.Withdrawn(self.gate.now(), message.run_id, message.end, message.reason)
            await self.gate.record(event)
        if self._is_live(message.run_id):  # perhaps it has started in the very same tick
            self.fail(409, "state", "the run has started; stop it instead")
            return
        self.reply(message, Gone())

    def _is_live(self, run_id: str) -> bool:
        lease = self.gate.state.leases.get(run_id)
        return lease is not None and lease.live is not None


class DeclineHandler(LeaseHandler):
    """``decline``: a grant goes back to the queue, or ends a run that cannot be started."""

    message = DeclineMessage

    async def post(self) -> None:
        message = self.read(DeclineMessage)
        if self.lease(message.run_id, message.fence) is None:
            return
        await self.gate.record(
            ev.Declined(self.gate.now(), message.run_id, message.fence, message.reason, message.end)
        )
        self.reply(message, Gone())


class RegisterHandler(LeaseHandler):
    """``register``: both sides report the runs that the other does not have."""

    message = RegisterMessage

    def post(self) -> None:
        message = self.read(RegisterMessage)
        state, run_side = self.gate.state, self.caller.run_side(message.run_side)
        self.gate.post(ev.Present(self.gate.now(), run_side, message.run_ids))
        known = set(state.queue) | set(state.leases) | set(state.ended)
        leased = [lease.attempt.queued for lease in state.leases.values()]
        mine = {
            queued.request.run_id
            for queued in (*state.queue.values(), *leased)
            if queued.run_side == run_side
        }
        unneeded = sorted(mine - set(message.run_ids))
        live = {
            run_id: LiveLease(lease.request.family.name, lease.attempt.number, lease.terms.fence)
            for run_id in unneeded
            if (lease := state.leases.get(run_id)) and lease.live is not None
        }
        unknown = tuple(run_id for run_id in message.run_ids if run_id not in known)
        self.reply(message, Differences(unknown, tuple(unneeded), live))


HANDLERS: tuple[type[LeaseHandler], ...] = (
    LeaseRequestHandler,
    DefaultsHandler,
    PresenceHandler,
    WithdrawHandler,
    DeclineHandler,
    RegisterHandler,
    *SUPERVISOR_HANDLERS,
)


def lease_routes(
    gate: GateLoop, door: Door
) -> list[tuple[str, type[RequestHandler], dict[str, object]]]:
    """The routes of the lease protocol, for those whom the door admits."""
    shared = {"gate": gate, "door": door}
    return [(f"{LEASE_PATH}/{h.message.name}", h, shared) for h in HANDLERS]
