"""The lease protocol of supervisors, on the gate's socket: to start, to go on and to end."""

from __future__ import annotations

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.caps import watched_caps
from jupyter_gpugate.core.admission.masks import entries
from jupyter_gpugate.core.admission.readings import unread_of
from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.endings import read_stop
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.leases import Lease
from jupyter_gpugate.core.messages import (
    FinishedMessage,
    Go,
    HeartbeatMessage,
    Recorded,
    StartedMessage,
    Verdict,
)
from jupyter_gpugate.core.requests import Retry
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.gate.claims import Claims
from jupyter_gpugate.gate.lease_handler import LeaseHandler


class StartedHandler(LeaseHandler):
    """``started``: the one place that lets user code run."""

    message = StartedMessage

    async def post(self) -> None:
        message = self.read(StartedMessage)
        lease = self.lease(message.run_id, message.fence)
        if lease is None or self._lacks_device(lease):
            return
        process = ProcessKey(message.pid, message.start_ticks)
        if lease.live is None:
            event = ev.Started(
                self.gate.now(), message.run_id, message.fence, process, message.boot_id
            )
            # Of two requests in one tick the journal has one, and the other is answered so.
            await self.gate.record(event)
            lease = self.lease(message.run_id, message.fence)
            if lease is None:
                return
        if lease.live is None or lease.live.process != process:
            self.fail(409, "fence", "another supervisor holds this lease", fence=message.fence)
            return
        gate = self.gate
        mask = entries(gate.state, gate.sample, lease.terms.devices, gate.now())
        self.reply(message, Go(visible_devices=mask))

    def _lacks_device(self, lease: Lease) -> bool:
        """Refuse to start a run if one of its devices has gone since the grant.

        Its number may be that of another board by now.  The run queues again.
        """
        gate = self.gate
        for uuid in lease.terms.devices if lease.live is None else ():
            reading = gate.sample.device(uuid)
            unread = unread_of(gate.state, gate.sample, reading, uuid, gate.now())
            if unread is not None and unread.check is Check.MISSING:
                self.fail(410, "device_missing", explain(gate.state, unread), device=uuid)
                return True
        return False


class HeartbeatHandler(LeaseHandler):
    """``heartbeat``: continue, or stop with a reason."""

    message = HeartbeatMessage

    def post(self) -> None:
        message = self.read(HeartbeatMessage)
        if self._is_forgotten(message.run_id):
            # This gate's journal was lost.  The run has no lease, but must not be stopped.
            self.reply(message, Verdict())
            return
        lease = self.lease(message.run_id, message.fence)
        if lease is None:
            return
        tree = self._vetted(message, lease)
        stop, survivors = read_stop(message.stop_reason)
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
                resumed=message.resumed,
                phase=message.phase,
                stop=stop,
                survivors=survivors,
                ready=message.ready,
            )
        )
        caps = {uuid: lease.caps[uuid] for uuid in watched_caps(lease)}
        ready = lease.terms.service and not lease.is_loading
        self.reply(message, Verdict(caps=caps, ready=ready))

    def _vetted(self, message: HeartbeatMessage, lease: Lease) -> tuple[ProcessKey, ...]:
        """Return the processes of the named tree that are, or may be, the run's."""
        if not message.tree:
            return ()
        claims: Claims = self.settings.setdefault("claims", Claims())
        state = self.gate.state
        claims.forget(state.leases)
        return claims.of_run(
            message.run_id,
            lease.live.process if lease.live else message.tree[0],
            message.tree,
            self.caller.uid,
            self.gate.sample.processes,
        )

    def _is_forgotten(self, run_id: str) -> bool:
        state = self.gate.state
        return not any(run_id in known for known in (state.leases, state.queue, state.ended))


class FinishedHandler(LeaseHandler):
    """``finished``: recorded before it is answered."""

    message = FinishedMessage

    async def post(self) -> None:
        message = self.read(FinishedMessage)
        if not self._is_recorded(message):
            if self.lease(message.run_id, message.fence) is None:
                return
            await self.gate.record(
                ev.Finished(self.gate.now(), message.run_id, message.fence, message.end)
            )
        ended = self.gate.state.ended.get(message.run_id)
        self.reply(
            message,
            Recorded(
                peaks=ended.peaks if ended else {},
                elsewhere=ended.elsewhere if ended else {},
                grown=tuple(self.gate.growth_beside(message.run_id)),
                retry=self._retry_after(message),
            ),
        )

    def _is_recorded(self, message: FinishedMessage) -> bool:
        ended = self.gate.state.ended.get(message.run_id)
        is_over = ended is not None and ended.fence == message.fence
        return is_over or self._retry_after(message) is not None

    def _retry_after(self, message: FinishedMessage) -> Retry | None:
        """Return the retry of a run whose attempt has ended, though it may have started again."""
        state = self.gate.state
        lease = state.leases.get(message.run_id)
        queued = lease.attempt.queued if lease else state.queue.get(message.run_id)
        retry = queued.retry if queued else None
        return retry if retry is not None and retry.fence == message.fence else None


SUPERVISOR_HANDLERS: tuple[type[LeaseHandler], ...] = (
    StartedHandler,
    HeartbeatHandler,
    FinishedHandler,
)
