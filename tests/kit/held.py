"""Samples that show what live runs hold."""

from __future__ import annotations

from typing import Any

from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Usage
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.core.samples import Process, Sample
from jupyter_gpugate.core.shares import ResourceAttribution
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
    finish,
    gate,
    key_of,
    process,
    request,
    sample,
    start,
)

SUPERVISOR, WORKER = key_of("run"), key_of("run", 1)


def tree(ram: int = 0, run_id: str = "run") -> list[Process]:
    """A run's supervisor and its worker, which holds so much."""
    return [process(key_of(run_id)), process(key_of(run_id, 1), ram, key_of(run_id).pid)]


def live(charge: int = 10 * GB, **fields: Any) -> GateState:
    """One live run charged so much of the GPU, whose heartbeat named its tree."""
    traits = fields.pop("traits", None)
    charges = {RAM: 4 * GB, GPU: charge}
    state = start(gate(request(**fields), traits=traits), charges=charges)
    return apply(state, [beat(state)])


def seen(at: float, vram: int | None = 0, ram: int = 0, **fields: Any) -> Sample:
    """A sample in which the run's worker holds so much."""
    held = vram or 0
    given = {
        "processes": tree(ram),
        "lists": {GPU: [(WORKER.pid, vram)]},
        "free": {GPU: 24 * GB - held},
        **fields,
    }
    return sample(at, **given)


def after(state: GateState, *samples: Sample) -> GateState:
    """The state after these samples, with all that follows from them applied."""
    for one in samples:
        at = one.devices[0].taken_at
        state, events = apply_sample(state, one, at)
        state = apply(state, events)
    return state


def usage(state: GateState, resource: str = GPU) -> Usage:
    """What the gate has seen of the run on one resource."""
    return state.leases["run"].usage[resource]


# -- what others do -------------------------------------------------------------------------------


def others(held: int) -> ResourceAttribution:
    """A device on which nobody of ours is."""
    return ResourceAttribution(GPU, held, {}, held, 0)


# -- memory of runs that are gone -----------------------------------------------------------------


def gone(*run_ids: str, held: int = 4 * GB) -> GateState:
    """Runs that each held so much of the GPU at the last sample, and ended after it."""
    state = gate(*(request(run_id) for run_id in run_ids))
    for run_id in run_ids:
        state = start(state, run_id, charges={RAM: GB, GPU: 6 * GB})
        state = apply(state, [beat(state, run_id)])
    rows = [(key_of(run_id, 1).pid, held) for run_id in run_ids]
    table = [row for run_id in run_ids for row in tree(run_id=run_id)]
    free = {GPU: 24 * GB - held * len(run_ids)}
    state = after(state, sample(NOW + 1, lists={GPU: rows}, processes=table, free=free))
    return apply(state, [finish(state, run_id, at=NOW + 1) for run_id in run_ids])
