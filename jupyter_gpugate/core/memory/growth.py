"""The growth of memory outside the runs, which the floor of a GPU follows."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_gpugate.core.resources import HolderKind
from jupyter_gpugate.core.shares import Growth, ResourceAttribution

WINDOW_S = 60.0
MEMORY_S = 600.0
BUCKET_S = 10.0


def grown(growth: Growth, shares: ResourceAttribution, at: float) -> Growth:
    """Take in what others hold at ``at``; a reading that is known already changes nothing."""
    if growth.recent and at <= growth.recent[-1][0]:
        return growth
    held = _others_bytes(shares)
    recent = _since(growth.recent, at - WINDOW_S)
    rise = held - min((before for _, before in recent), default=held)
    bucket = at - at % BUCKET_S
    rises = _since(growth.rises, at - MEMORY_S)
    if rises and rises[-1][0] == bucket:
        rises[-1] = (bucket, max(rise, rises[-1][1]))
    else:
        rises.append((bucket, rise))
    return Growth((*recent, (at, held)), tuple(rises))


def can_be_told(shares: ResourceAttribution) -> bool:
    """Return whether memory of others can be distinguished from memory of runs."""
    return not shares.fault and all(h.kind is not HolderKind.RUN for h in shares.unknown)


def _others_bytes(shares: ResourceAttribution) -> int:
    """Return the bytes of others, without the memory that gone runs have left."""
    runs = sum(held for holder, held in shares.by_holder.items() if holder.kind is HolderKind.RUN)
    return max(0, shares.used_bytes - runs)


def _since(points: Iterable[tuple[float, int]], begin: float) -> list[tuple[float, int]]:
    return [point for point in points if point[0] >= begin]
