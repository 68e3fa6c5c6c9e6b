"""Memory of runs that no process shows as its own: shared memory, locked pages, files in memory.

A supervisor reports such bytes, and a sample shows only how much of them there is in all.  So a
run's part is its last report, less all such memory that was freed since: an exit or a deleted file
counts as soon as a sample shows it, whoever owned it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from jupyter_gpugate.core.leases import Lease
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState


class Reports(NamedTuple):
    """Runs' own reports of RAM, by run id, where they are no younger than the sample."""

    private: dict[str, int]  # what their processes show as their own
    unmovable: dict[str, int]  # the rest, as far as the sample can still hold it


def follow(state: GateState, sample: Sample) -> GateState:
    """Record, for each report that counts from this sample on, the total of such memory."""
    if sample.ram is None:
        return state
    there = sample.ram.unmovable_bytes
    before = there if state.unmovable_seen is None else state.unmovable_seen
    leases = {}
    for run_id, known in state.leases.items():
        lease = known
        if _counts(lease, sample) and lease.unmovable_from != lease.report_at:
            # Memory freed between the last two samples may still be in the report.
            most = max(there, before)
            lease = replace(lease, unmovable_from=lease.report_at, unmovable_bytes=most)
        leases[run_id] = lease
    return replace(state, leases=leases, unmovable_seen=there)


def reports(state: GateState, sample: Sample) -> Reports:
    """Each run's own report, in two parts."""
    found = Reports({}, {})
    for lease in state.leases.values():
        held = lease.report.ram_held_bytes
        if held is None or sample.ram is None or not _counts(lease, sample):
            continue
        unmovable = min(held, max(0, lease.report.ram_shared_bytes))
        found.private[lease.run_id] = held - unmovable
        gone = max(0, lease.unmovable_bytes - sample.ram.unmovable_bytes)
        if unmovable > gone:
            found.unmovable[lease.run_id] = unmovable - gone
    return found


def _counts(lease: Lease, sample: Sample) -> bool:
    at = lease.report_at
    return at is not None and sample.ram is not None and at <= sample.ram.taken_at
