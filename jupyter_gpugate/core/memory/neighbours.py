"""Holders of a device's memory beside the runs that are placed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.memory.attribution import IDLE_BYTES_WITH_RESERVE
from jupyter_gpugate.core.resources import MB, RAM
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.shares import Attribution, ResourceAttribution

#: A holder of more than this is a neighbour: a CUDA context alone needs about as much.
NEIGHBOUR_BYTES = 256 * MB


def strangers(
    attribution: Attribution, leases: Mapping[str, RunLease], sample: Sample
) -> dict[str, int]:
    """Count, per device, the notebooks, processes and other runs that hold memory there."""
    placed = {(lease.holder, uuid) for lease in leases.values() for uuid in lease.terms.devices}
    counts = {}
    for uuid, shares in attribution.resources.items():
        if uuid != RAM:
            others = (b for h, b in shares.by_holder.items() if (h, uuid) not in placed)
            held = (*others, *_external(shares, sample))
            counts[uuid] = sum(size > NEIGHBOUR_BYTES for size in held)
    return {uuid: count for uuid, count in counts.items() if count}


def _external(shares: ResourceAttribution, sample: Sample) -> Iterator[int]:
    """Return what each external process holds, and what no process accounts for."""
    reading = sample.device(shares.resource)
    reserve_is_known = reading is not None and reading.driver_reserved_bytes is not None
    for row in shares.external:
        held = row.held_bytes or 0
        if row.pid or reserve_is_known or held > IDLE_BYTES_WITH_RESERVE:
            yield held
