"""Memory of runs that belongs to no process: shared memory, locked pages, files in memory.

A supervisor reports such bytes, and a sample shows only how much of them there is in all.  So a
run's part is its last report, less all such memory that was freed since: an exit or a deleted file
counts as soon as a sample shows it, whatever its owner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

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
    there, taken_at = sample.ram.unmovable_bytes, sample.ram.taken_at
    before = there if state.unmovable_seen is None else state.unmovable_seen
    leases = dict(state.leases)
    for run_id, lease in state.leases.items():
        live = lease.live
        at = live.reported.report_at if live else None
        if live and at is not None and at <= taken_at and live.measured.unmovable_from != at:
            # Memory freed between the last two samples may still be in the report.
            most = max(there, before)
            measured = replace(live.measured, unmovable_from=at, unmovable_bytes=most)
            leases[run_id] = replace(lease, stage=replace(live, measured=measured))
    return replace(state, leases=leases, unmovable_seen=there)


def reports(state: GateState, sample: Sample) -> Reports:
    """Each run's own report, in two parts."""
    found = Reports({}, {})
    for run_id, lease in state.leases.items():
        if lease.live is None or sample.ram is None:
            continue
        reported, measured = lease.live.reported, lease.live.measured
        held, at = reported.report.ram_held_bytes, reported.report_at
        if held is None or at is None or at > sample.ram.taken_at:
            continue
        unmovable = min(held, max(0, reported.report.ram_shared_bytes))
        found.private[run_id] = held - unmovable
        gone = max(0, measured.unmovable_bytes - sample.ram.unmovable_bytes)
        if unmovable > gone:
            found.unmovable[run_id] = unmovable - gone
    return found
