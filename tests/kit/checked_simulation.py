"""A simulated machine for tests, with every invariant of the gate checked at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.caps import watched_caps
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.explaining.snapshot import inputs_of, replay, snapshot
from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.core.requests import Basis, Grant
from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.gate.simulation.machine import SimulatedMachine
from jupyter_gpugate.gate.simulation.twins import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyter_gpugate.core.flow.tick import Tick
    from jupyter_gpugate.core.state import Traits

L4 = "NVIDIA L4"
#: The driver's word for a device that is off the bus.
GPU_IS_LOST = "nvml-15"
#: To decide again from a snapshot costs more than all other checks together: one tick in so many.
SNAPSHOT_TICKS = 50
#: And one in so many of those that grant something.
GRANTING_TICKS = 12


def devices(count: int = 1, total_bytes: int = 24 * GB, model: str = L4) -> list[Device]:
    """So many equal devices."""
    return [Device(f"GPU-{index}", model, total_bytes, index) for index in range(count)]


class CheckedSimulation(Simulation):
    """Fails at the step that breaks an invariant."""

    def __init__(
        self,
        boards: Iterable[Device] = (),
        traits: Traits | None = None,
        ram_bytes: int = 64 * GB,
    ) -> None:
        super().__init__(SimulatedMachine(ram_bytes, boards), traits)
        self.submitted: set[str] = set()
        self._fence = 0
        self._ended: dict[str, str] = {}
        self._granting_ticks = 0

    def submit(self, *args: Any, **fields: Any) -> str:
        run_id = super().submit(*args, **fields)
        self.submitted.add(run_id)
        return run_id

    def step(self, seconds: float = 1.0) -> Tick:
        before = len(self.granted)
        tick = super().step(seconds)
        self._charges_fit_measured_room(tick)
        self._nothing_starts_beside_a_service_that_loads(tick)
        self._caps_leave_what_is_promised(tick)
        self._one_live_attempt_each()
        self._every_submit_exists_once()
        self._ends_stand()
        self._fences_grow([grant for _, grant in self.granted[before:]])
        self._whoever_waits_is_told_why(tick)
        self._shares_add_up()
        self._groups_keep_to_their_limits(tick)
        self._granting_ticks += bool(tick.decisions.grants)
        granting = tick.decisions.grants and self._granting_ticks % GRANTING_TICKS == 1
        if granting or len(self.ticks) % SNAPSHOT_TICKS == 0:
            self._the_snapshot_decides_the_same(tick)
        return tick

    def _charges_fit_measured_room(self, tick: Tick) -> None:
        """Grants of a tick, with all that was promised before, fit into what is measured free."""
        sample = tick.happened.sample
        free = {r.device.uuid: r.free_bytes or 0 for r in sample.devices}
        if sample.ram is not None:
            free[RAM] = sample.ram.free_bytes
        promised: dict[str, int] = {}
        for lease in tick.decided.leases.values():
            for resource in lease.charges:
                promised[resource] = promised.get(resource, 0) + lease.reservation(resource)
        for grant in tick.decisions.grants:
            for resource, charge in grant.charges.items():
                assert charge > 0, grant
                promised[resource] = promised.get(resource, 0) + charge
                if grant.basis[resource] is not Basis.DECLARED:  # nothing is measured there
                    assert promised[resource] <= free[resource], (grant, promised, free)

    def _nothing_starts_beside_a_service_that_loads(self, tick: Tick) -> None:
        """Neither beside one that has loaded for a while, nor beside one of the same tick."""
        loading = [one.terms.devices for one in tick.decided.leases.values() if one.is_loading]
        closed = {uuid for uuids in loading for uuid in uuids}
        for grant in tick.decisions.grants:
            assert closed.isdisjoint(grant.devices), (grant, closed)
            if tick.decided.queue[grant.run_id].request.service:
                closed.update(grant.devices)

    def _caps_leave_what_is_promised(self, tick: Tick) -> None:
        """Where a run was admitted, no first run there may grow into what others are promised."""
        joined = {uuid for grant in self.decisions.grants for uuid in grant.devices}
        free = {r.device.uuid: r.free_bytes or 0 for r in tick.happened.sample.devices}
        leases = self.state.leases.values()
        for lease, uuid in ((one, u) for one in leases for u in watched_caps(one) if u in joined):
            promised = sum(other.reservation(uuid) for other in leases)
            own = max(lease.charges[uuid], lease.held(uuid))
            contexts = sum(self.state.device_overhead.values()) * lease.request.setting.workers
            assert lease.caps[uuid] <= own + max(0, free[uuid] - promised), (lease, free)
            assert lease.caps[uuid] >= lease.charges[uuid] - contexts, lease

    def _one_live_attempt_each(self) -> None:
        assert not set(self.state.queue) & set(self.state.leases)
        alive = {run_id for run_id, run in self.runs.items() if run.going}
        assert alive <= set(self.state.leases), "a run lives without a lease"

    def _every_submit_exists_once(self) -> None:
        waiting = {e.request.run_id for e in self.posted if isinstance(e, ev.Requested)}
        known = set(self.state.queue) | set(self.state.leases) | set(self.state.ended) | waiting
        assert self.submitted <= known, self.submitted - known

    def _ends_stand(self) -> None:
        for run_id, ended in self.state.ended.items():
            assert self._ended.setdefault(run_id, ended.end.kind) is ended.end.kind
            assert run_id not in self.state.queue
            assert run_id not in self.state.leases

    def _fences_grow(self, granted: list[Grant]) -> None:
        for grant in granted:
            assert grant.fence > self._fence
            self._fence = grant.fence

    def _whoever_waits_is_told_why(self, tick: Tick) -> None:
        granted = {grant.run_id for grant in self.decisions.grants}
        for run_id, queued in tick.decided.queue.items():
            if run_id not in granted:
                assert self.decisions.reasons_of(queued.key), f"{run_id} waits without a reason"

    def _groups_keep_to_their_limits(self, tick: Tick) -> None:
        """At most so many of a group are active, and nothing starts before what it waits for."""
        requests = {r: queued.request for r, queued in tick.decided.queue.items()}
        active = [lease.request for lease in tick.decided.leases.values()]
        for grant in tick.decisions.grants:
            request = requests[grant.run_id]
            active.append(request)
            assert not set(request.after) & (set(requests) | set(tick.decided.leases)), request
            ends = [tick.decided.ended[r].end.kind for r in request.after]
            assert set(ends) <= {RunEnd.COMPLETED}, (request, ends)
            mates = [r for r in active if (r.owner, r.group) == (request.owner, request.group)]
            assert request.at_most is None or len(mates) <= request.at_most, mates

    def _shares_add_up(self) -> None:
        for shares in self.state.attribution.resources.values():
            explained = shares.attributed_bytes + shares.external_bytes - shares.overlap_bytes
            assert explained == shares.used_bytes, shares

    def _the_snapshot_decides_the_same(self, tick: Tick) -> None:
        sample = tick.happened.sample
        shown = snapshot(tick.decided, sample, tick.decisions, tick.at)
        assert len(shown.queued) == len(tick.decided.queue)
        again = decide(*replay(inputs_of(tick.decided, sample, tick.at)))
        assert again == tick.decisions
