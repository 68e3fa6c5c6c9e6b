"""Share a sample's bytes out among holders: ``attribute(sample, roots, ...) -> Attribution``.

The used memory of a resource is its reading, never a sum over processes.  Processes explain
a part of it, claims that no process proves may explain more of it, and the rest is external.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from jupyter_gpugate.core.memory.holders import HolderOf, Holders
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    Holder,
    HolderKind,
)
from jupyter_gpugate.core.samples import (
    DeviceReading,
    GpuProcess,
    Process,
    Sample,
)
from jupyter_gpugate.core.shares import Attribution, ExternalProcess, ResourceAttribution

#: How many external processes are listed one by one.
EXTERNAL_LISTED = 50
#: Used memory of a device whose list is rightly empty: little, or what the driver keeps
#: for itself where it does not tell that apart.
IDLE_BYTES = 256 * MB
IDLE_BYTES_WITH_RESERVE = 1 * GB + 512 * MB

#: Notes of rows that no process accounts for.
SHARED_MEMORY = "shared_memory"
HUGE_PAGES = "huge_pages"

NO_PROCESS_TABLE = "the process table cannot be read"
FOREIGN_PIDS = "the driver counts processes in another PID namespace"
NO_LIST = "the driver lists no processes for this device"
EMPTY_LIST = "memory is in use, but the driver lists no process: they are hidden from here"

Claims = Mapping[Holder, int]


def attribute(  # noqa: PLR0917 - the sources that a share can rest on
    sample: Sample,
    roots: HolderOf,
    remembered: HolderOf = {},  # noqa: B006 - only read
    lingering: Mapping[str, Claims] = {},
    run_ram: Mapping[str, int] = {},
    run_vram: Mapping[str, Mapping[str, int]] = {},
    run_unmovable: Mapping[str, int] = {},
) -> Attribution:
    """Share out every resource of the sample that could be read.

    ``roots`` names processes with a known holder; ``remembered`` is ``holder_of`` of
    the last attribution.  In bytes: ``lingering`` (resource -> holder) is what gone runs left
    behind, ``run_ram`` (run id) and ``run_vram`` (run id -> UUID) are runs' own reports.  A report
    of RAM can only lower what the run's processes show; one of a device counts only where the
    driver reports no bytes.  ``run_unmovable`` (run id) is memory of a live run that no process
    shows as its own, such as shared memory.  Claims never exceed what is left unexplained.
    """
    holders = Holders(sample, roots, remembered)
    resources = {}
    if sample.ram is not None:
        shares = _Shares(RAM, sample.ram.used_bytes)
        reported = _Reports(run_ram, run_unmovable)
        resources[RAM] = _ram(shares, sample, holders, lingering.get(RAM, {}), reported)
    for reading in sample.devices:
        used = _used(reading)
        if used is not None:
            uuid = reading.device.uuid
            reports = {run: own[uuid] for run, own in run_vram.items() if uuid in own}
            lists = _Lists(sample, reading, holders, lingering.get(uuid, {}))
            resources[uuid] = _vram(_Shares(uuid, used), lists, reports)
    return Attribution(resources, holders.to_remember(sample))


def _used(reading: DeviceReading) -> Optional[int]:
    """Return the used memory of a device; None for no resource, and for impossible numbers."""
    device = reading.device
    if device.mig_enabled or device.unified or reading.contradiction:
        return None
    return reading.used_bytes


class _Shares:
    """One resource's bytes while they are shared out."""

    def __init__(self, resource: str, used: int) -> None:
        self.resource = resource
        self.used = used
        self.by_holder: dict[Holder, int] = {}
        self.unknown: set[Holder] = set()
        self.external: list[ExternalProcess] = []
        self.ghosts: list[ExternalProcess] = []  # of processes that are gone
        self.nobodys: list[tuple[str, int]] = []  # by name, memory that no process can show

    def give(self, holder: Holder, held: int) -> None:
        self.by_holder[holder] = self.by_holder.get(holder, 0) + held

    def unexplained(self) -> int:
        """Return what neither a holder nor a living process of others accounts for."""
        return max(0, self.used - sum(self.by_holder.values()) - _total(self.external))

    def claim(self, claims: Iterable[tuple[Holder, int]]) -> int:
        """Attribute memory that no process shows, as far as plausible; return the amount."""
        before = left = self.unexplained()
        for holder, claimed in sorted(claims):
            held = min(max(0, claimed), left)
            if held:
                self.give(holder, held)
                left -= held
        return before - left

    def done(self, fault: Optional[str]) -> ResourceAttribution:
        attributed = sum(self.by_holder.values())
        external = max(0, self.used - attributed)
        return ResourceAttribution(
            resource=self.resource,
            used_bytes=self.used,
            by_holder=dict(sorted(self.by_holder.items())),
            external_bytes=external,
            overlap_bytes=max(0, attributed - self.used),
            unknown=tuple(sorted(self.unknown)),
            external=self._listed(external),
            fault=fault,
        )

    def _listed(self, external: int) -> tuple[ExternalProcess, ...]:
        """List the external processes, and in one row what none of them accounts for."""
        rows = list(self.external)
        left = external - _total(rows)
        for ghost in sorted(self.ghosts, key=_largest_first):
            # Lingering memory of a gone run is not listed a second time.
            held = ghost.held_bytes and max(0, min(ghost.held_bytes, left))
            if held != 0:
                rows.append(ghost._replace(held_bytes=held))
                left -= held or 0
        listed = heapq.nsmallest(EXTERNAL_LISTED, rows, key=_largest_first)
        if len(rows) > EXTERNAL_LISTED:
            note = f"{len(rows) - EXTERNAL_LISTED} more processes"
            listed.append(ExternalProcess(0, None, _total(rows) - _total(listed), note))
        for note, there in (*self.nobodys, ("unlisted", left)):
            held = min(there, left)
            if held > 0:
                listed.append(ExternalProcess(0, None, held, note))
                left -= held
        return tuple(listed)


def _total(rows: Iterable[ExternalProcess]) -> int:
    return sum(row.held_bytes or 0 for row in rows)


def _largest_first(row: ExternalProcess) -> tuple[bool, int, int]:
    return (row.held_bytes is None, -(row.held_bytes or 0), row.pid)


# -- RAM ----------------------------------------------------------------------------------------


class _Reports(NamedTuple):
    """The reports of runs, by run id."""

    private: Mapping[str, int]
    unmovable: Mapping[str, int]


def _ram(
    shares: _Shares, sample: Sample, holders: Holders, lingering: Claims, reports: _Reports
) -> ResourceAttribution:
    private: dict[Holder, int] = {}
    for pid, process in sample.processes.items():
        holder = holders.of.get(pid)
        if holder is not None:
            private[holder] = private.get(holder, 0) + process.private_bytes
        elif process.private_bytes:
            shares.external.append(ExternalProcess(*process.key, process.private_bytes))
    for holder, held in private.items():
        report = reports.private.get(holder.name) if holder.kind is HolderKind.RUN else None
        shares.give(holder, held if report is None else min(report, held))
    # Of a run without a process nothing is left but what it may have left behind.
    runs = [holder for holder in private if holder.kind is HolderKind.RUN]
    reported = reports.unmovable
    claimed = shares.claim((run, reported[run.name]) for run in runs if run.name in reported)
    if sample.ram is not None:
        shared = max(0, sample.ram.shared_bytes - claimed)
        shares.nobodys = [(HUGE_PAGES, sample.ram.huge_pool_bytes), (SHARED_MEMORY, shared)]
    shares.claim(_on_unified_boards(sample, holders).items())
    shares.claim(lingering.items())
    if sample.processes:
        return shares.done(None)
    shares.unknown.update(holders.live_runs)
    return shares.done(NO_PROCESS_TABLE)


def _on_unified_boards(sample: Sample, holders: Holders) -> dict[Holder, int]:
    """Return the GPU bytes on boards that share the machine's RAM: they are that RAM."""
    held: dict[Holder, int] = {}
    if not sample.pids_are_ours:
        return held
    for reading in sample.devices:
        for row in _rows(reading) if reading.device.unified else ():
            holder = holders.of.get(row.pid)
            if holder is not None:
                held[holder] = held.get(holder, 0) + (row.held_bytes or 0)
    return held


# -- one device ---------------------------------------------------------------------------------


class _Lists:
    """The content of a device's process list, by holder."""

    def __init__(
        self, sample: Sample, reading: DeviceReading, holders: Holders, lingering: Claims
    ) -> None:
        self._processes = sample.processes
        self.holders = holders
        self.lingering = lingering
        self.fault = _why_nobody_can_be_named(sample, reading)
        self.rows = () if self.fault else _rows(reading)
        reserve_is_known = reading.driver_reserved_bytes is not None
        self.idle_bytes = IDLE_BYTES if reserve_is_known else IDLE_BYTES_WITH_RESERVE

    def give(self, row: GpuProcess, shares: _Shares) -> None:
        """Give one row to its holder, or count it as external."""
        process = self._processes.get(row.pid)
        holder = self._of_gone(row.pid) if process is None else self.holders.of.get(row.pid)
        if holder is not None and row.held_bytes is not None:
            shares.give(holder, row.held_bytes)
        elif holder is not None:
            shares.unknown.add(holder)
        elif process is None:
            shares.ghosts.append(ExternalProcess(row.pid, None, row.held_bytes, "ghost"))
        else:
            shares.external.append(_external(process, row.held_bytes))

    def _of_gone(self, pid: int) -> Optional[Holder]:
        """Return the holder of a gone process, unless its remaining memory is claimed already."""
        holder = self.holders.of_ghost(pid)
        return None if holder in self.lingering else holder


def _external(process: Process, held: Optional[int]) -> ExternalProcess:
    # A zombie has no memory of its own left; the driver has not let go of it.
    return ExternalProcess(*process.key, held, "" if process.private_bytes else "ghost")


def _vram(shares: _Shares, lists: _Lists, reports: Mapping[str, int]) -> ResourceAttribution:
    for row in lists.rows:
        lists.give(row, shares)
    shares.claim(lists.lingering.items())
    fault = lists.fault
    if fault is None and not lists.rows and shares.unexplained() > lists.idle_bytes:
        fault = EMPTY_LIST
    if fault is not None:
        shares.unknown.update(lists.holders.live_runs)
    runs = [h for h in shares.unknown if h.kind is HolderKind.RUN]
    shares.claim((h, reports[h.name]) for h in runs if h.name in reports)
    return shares.done(fault)


def _why_nobody_can_be_named(sample: Sample, reading: DeviceReading) -> Optional[str]:
    if not sample.pids_are_ours:
        return FOREIGN_PIDS
    if reading.processes is None:
        return reading.processes_fault.text if reading.processes_fault else NO_LIST
    return None if sample.processes else NO_PROCESS_TABLE


def _rows(reading: DeviceReading) -> tuple[GpuProcess, ...]:
    """Return a device's list with one row a process; a number that cannot be true is none."""
    held: dict[int, GpuProcess] = {}
    for listed in reading.processes or ():
        row = listed
        if row.held_bytes is not None and not 0 <= row.held_bytes <= reading.device.total_bytes:
            row = listed._replace(held_bytes=None)
        if row.pid > 0 and (row.pid not in held or _told(held[row.pid]) < _told(row)):
            held[row.pid] = row
    return tuple(held.values())


def _told(row: GpuProcess) -> int:
    return -1 if row.held_bytes is None else row.held_bytes
