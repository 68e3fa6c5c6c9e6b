"""Memory of runs that are gone: theirs until it is seen free, or for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jupyter_gpugate.core.leases import Lingering, Live, RunLease
from jupyter_gpugate.core.resources import Holder, HolderKind
from jupyter_gpugate.core.samples import ProcessKey, Sample
from jupyter_gpugate.core.shares import Attribution
from jupyter_gpugate.core.state import GateState

#: The share of a gone run's memory after whose release the rest counts as external.
RETURNED_SHARE = 0.95

Left = Mapping[tuple[str, str], Lingering]


def left_behind(
    lease: RunLease, live: Live, state: GateState, at: float
) -> dict[tuple[str, str], Lingering]:
    """Return the memory that a run holds when it ends, by run and resource."""
    return {
        (lease.run_id, resource): Lingering(
            run_id=lease.run_id,
            owner=lease.request.owner,
            resource=resource,
            charge_bytes=lease.charges.get(resource, 0),
            held_bytes=lease.held(resource),
            last_held_bytes=lease.held(resource),
            ended_at=at,
            supervisor=live.process,
            tree=tuple(key for key in live.reported.tree if key != live.process),
            most_free_bytes=state.free_seen.get(resource),
        )
        for resource in lease.usage
    }


def not_compared(left: Lingering) -> Lingering:
    """Return the same memory, with nothing seen free since: the gate did not measure meanwhile."""
    return replace(left, most_free_bytes=None)


def follow(
    state: GateState, sample: Sample, free: Mapping[str, int]
) -> dict[tuple[str, str], Lingering]:
    """Return the lingering memory of each gone run; ``free`` has the sample's free bytes.

    What has come free since is given to those that wait for it, the one that ended first in
    front: no byte comes back twice.
    """
    living = _living(state, sample) if state.lingering else set()
    given: dict[str, int] = {}
    followed = {}
    for key, known in sorted(state.lingering.items(), key=lambda item: item[1].ended_at):
        left = replace(known, tree_alive=known.tree_alive and known.run_id in living)
        if left.resource in free:
            left = _less_what_came_free(left, free[left.resource], given)
        followed[key] = left
    return followed


def claims(lingering: Left) -> dict[str, dict[Holder, int]]:
    """Return the memory of runs whose tree is gone, by resource."""
    held: dict[str, dict[Holder, int]] = {}
    for left in lingering.values():
        if left.held_bytes and not left.tree_alive:
            held.setdefault(left.resource, {})[_holder(left)] = left.held_bytes
    return held


def with_shares(lingering: Left, attribution: Attribution) -> dict[tuple[str, str], Lingering]:
    """Return the memory of a tree: as attributed if it lives, at most that if it is gone."""
    result = {}
    for key, left in lingering.items():
        result[key] = left
        shares = attribution.resources.get(left.resource)
        if shares is None:
            continue
        share = shares.by_holder.get(_holder(left), 0)
        if not left.tree_alive:
            result[key] = replace(left, held_bytes=min(left.held_bytes, share))
        elif not shares.fault:
            result[key] = replace(left, held_bytes=share, last_held_bytes=share)
    return result


def is_over(left: Lingering, linger_s: float, now: float) -> bool:
    """Whether nearly all is back or was waited for long enough; never while a process lives."""
    if left.tree_alive:
        return False
    returned = left.held_bytes <= (1 - RETURNED_SHARE) * left.last_held_bytes
    return returned or now - left.ended_at >= linger_s


def is_there(key: ProcessKey, sample: Sample) -> bool:
    """Whether this very process is in the sample's table."""
    process = sample.processes.get(key.pid)
    return process is not None and process.start_ticks == key.start_ticks


def _less_what_came_free(left: Lingering, free: int, given: dict[str, int]) -> Lingering:
    if left.tree_alive or left.most_free_bytes is None:
        return replace(left, most_free_bytes=free)
    spent = given.get(left.resource, 0)
    back = min(left.held_bytes, max(0, free - left.most_free_bytes - spent))
    given[left.resource] = spent + back
    most = max(free, left.most_free_bytes)
    return replace(left, held_bytes=left.held_bytes - back, most_free_bytes=most)


def _living(state: GateState, sample: Sample) -> set[str]:
    """The gone runs of which a process lives besides the supervisor, which goes last."""
    gone = {left.run_id: left for left in state.lingering.values()}
    if not sample.processes:
        return set(gone)
    living = {
        run_id for run_id, left in gone.items() if any(is_there(key, sample) for key in left.tree)
    }
    # A heartbeat names the tree of two seconds ago: younger processes are known by their parents.
    for key, holder in state.attribution.holder_of.items():
        left = gone.get(holder.name) if holder.kind is HolderKind.RUN else None
        if left is not None and key != left.supervisor and is_there(key, sample):
            living.add(left.run_id)
    return living


def _holder(left: Lingering) -> Holder:
    return Holder(HolderKind.RUN, left.run_id)
