"""Memory that a daemon or a server outside its process tree holds for a run.

It cannot be traced, but it can be inferred: the run itself held next to nothing, and processes
outside all runs grew considerably during the run and released that memory at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core.leases import Live
from jupyter_gpugate.core.resources import MB, RAM, HolderKind
from jupyter_gpugate.core.samples import ProcessBytes, ProcessKey, Sample
from jupyter_gpugate.core.shares import Attribution
from jupyter_gpugate.core.state import GateState

#: The least total, the least per process, and the least multiple of what the run held.
LEAST_BYTES = 256 * MB
LEAST_OF_ONE = 64 * MB
FACTOR = 4
#: Memory held within this time before the end counts as held at the end.
LAST_S = 5.0


def follow(state: GateState, sample: Sample) -> GateState:
    """Record what processes outside all runs hold, while a run is live, from ``state``'s sample."""
    if not any(lease.live for lease in state.leases.values()):
        return replace(state, others={}) if state.others else state
    now = {r: _others(sample, state.attribution, r) for r in state.attribution.resources}
    others = dict(state.others)
    for resource, (at, held) in now.items():
        recent = [row for row in others.get(resource, ()) if at - LAST_S <= row[0] < at]
        others[resource] = (*recent, (at, held))
    leases = dict(state.leases)
    for run_id, lease in state.leases.items():
        live = lease.live
        if live is None:
            continue
        known = live.measured.others_at_start
        new = {r: held for r, (_, held) in now.items() if r not in known}
        if new:
            older = {r: _older(held, live.process) for r, held in new.items()}
            measured = replace(live.measured, others_at_start={**known, **older})
            leases[run_id] = replace(lease, stage=replace(live, measured=measured))
    return replace(state, others=others, leases=leases)


def risen_elsewhere(
    state: GateState, live: Live, resource: str, peak_bytes: int, sample: Sample
) -> Optional[int]:
    """Return by how much other processes grew and shrank with an ended run; None if negligible.

    ``state`` is that before the end, ``sample`` was taken after it.
    """
    if resource not in live.measured.others_at_start:
        return None
    began = dict(live.measured.others_at_start[resource])
    last: dict[ProcessKey, int] = {}
    for at, held in state.others.get(resource, ()):
        if at >= live.started_at:
            for key, size in held:
                last[key] = max(size, last.get(key, 0))
    now = _holding(sample, resource)
    moved = (min(top - began.get(key, 0), top - now.get(key, 0)) for key, top in last.items())
    total = sum(size for size in moved if size >= LEAST_OF_ONE)
    return total if total >= max(LEAST_BYTES, FACTOR * peak_bytes) else None


def _older(held: tuple[ProcessBytes, ...], supervisor: ProcessKey) -> tuple[ProcessBytes, ...]:
    """Select the processes that are older than the run: a younger one held nothing before."""
    return tuple(one for one in held if one.process.start_ticks < supervisor.start_ticks)


def _others(
    sample: Sample, attribution: Attribution, resource: str
) -> tuple[float, tuple[ProcessBytes, ...]]:
    """The time of a reading, and what each notable process outside all runs held."""
    reading = sample.device(resource)
    taken_at = reading.taken_at if reading else sample.ram.taken_at if sample.ram else 0.0
    runs = HolderKind.RUN
    found = []
    for key, held in _holding(sample, resource).items():
        if held >= LEAST_OF_ONE:
            holder = attribution.holder_of.get(key)
            if holder is None or holder.kind is not runs:
                found.append(ProcessBytes(key, held))
    return taken_at, tuple(found)


def _holding(sample: Sample, resource: str) -> Mapping[ProcessKey, int]:
    """Return what each live process holds on a resource, as far as the driver reports it."""
    if resource == RAM:
        least = LEAST_OF_ONE // 2  # a fall below it is whole
        return {
            p.key: p.private_bytes for p in sample.processes.values() if p.private_bytes > least
        }
    reading = sample.device(resource)
    listed = reading.processes if reading and reading.processes and sample.pids_are_ours else ()
    return {
        sample.processes[row.pid].key: row.held_bytes
        for row in listed
        if row.held_bytes is not None and row.pid in sample.processes
    }
