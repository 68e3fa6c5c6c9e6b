"""Leases of live attempts, and what gone runs leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from jupyter_gpugate.core.estimates import Estimate, Needs
from jupyter_gpugate.core.reports import Peaks, Phase, RunReport
from jupyter_gpugate.core.requests import Basis, Enforcement, Request
from jupyter_gpugate.core.samples import ProcessBytes, ProcessKey
from jupyter_gpugate.core.shares import Rise, Share


@dataclass(frozen=True)
class Usage:
    """What the gate has seen of one run on one resource."""

    held_bytes: int = 0
    meter: str = ""  # "pss", "statm", "nvml", "report", "by_delta"
    peak_bytes: int = 0
    read_at: Optional[float] = None
    longest_gap_s: float = 0.0
    first_used_at: Optional[float] = None
    episode_at_first_use: int = 0
    peak_moved_at: float = 0.0
    settled: bool = False
    overrun_at: Optional[float] = None
    process_peak_bytes: int = 0  # the greatest of any one process of the tree
    summed_peak_bytes: int = 0  # the greatest sum over the tree, whatever its run reports
    journalled_peak_bytes: int = 0  # what a restart would still know
    free_at_grant: Optional[int] = None
    overhead_bytes: Optional[int] = None  # the least held beyond what the framework reports


@dataclass(frozen=True)
class Lease:
    """A live attempt: the right to start and to use its charges."""

    request: Request
    order: int
    submitted_at: float
    run_side: str
    attempt: int
    fence: int
    devices: tuple[str, ...]
    charges: Mapping[str, int]
    granted_charges: Mapping[str, int]
    basis: Mapping[str, Basis]
    caps: Mapping[str, int]
    enforcement: Enforcement
    granted_at: float
    needs: Needs
    estimate: Estimate
    unstarted_grants: int = 0
    phase: Phase = Phase.GRANTED
    started_at: Optional[float] = None
    process: Optional[ProcessKey] = None
    boot_id: str = ""
    tree: tuple[ProcessKey, ...] = ()
    beat_at: Optional[float] = None
    report: RunReport = RunReport()
    report_at: Optional[float] = None
    unmovable_from: Optional[float] = None  # the report that `unmovable_bytes` goes with
    unmovable_bytes: int = 0  # the machine's, when that report was new
    report_gap_s: float = 0.0  # the longest that its supervisor went without a reading
    peaks: Peaks = Peaks()
    episode: int = 0
    episode_at: Optional[float] = None
    longest_episode_s: float = 0.0
    stop_reason: str = ""
    usage: Mapping[str, Usage] = field(default_factory=dict)
    #: Resource -> what processes that were no run's held there when this one was first seen.
    others_at_start: Mapping[str, tuple[ProcessBytes, ...]] = field(default_factory=dict)
    neighbours: int = 0
    #: Who else held what on each resource when it began, and who has grown where that ran short.
    others: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    grown: Mapping[str, tuple[Rise, ...]] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return self.request.run_id

    def held(self, resource: str) -> int:
        usage = self.usage.get(resource)
        return usage.held_bytes if usage else 0

    def reservation(self, resource: str) -> int:
        return max(0, self.charges.get(resource, 0) - self.held(resource))

    def unsettled_watch(self, resource: str) -> bool:
        usage = self.usage.get(resource)
        return self.basis.get(resource) is Basis.WATCH and not (usage and usage.settled)


@dataclass(frozen=True)
class Lingering:
    """What a gone run's memory still shows on one resource."""

    run_id: str
    owner: str
    resource: str
    charge_bytes: int
    held_bytes: int
    last_held_bytes: int  # when somebody of the tree was last seen
    ended_at: float
    supervisor: Optional[ProcessKey] = None  # it says that the rest is gone, and goes last
    tree: tuple[ProcessKey, ...] = ()
    tree_alive: bool = True  # until a sample shows that nobody of the tree is left
    most_free_bytes: Optional[int] = None  # since the tree is gone: what is beyond came back

    def reservation(self) -> int:
        """While somebody of the tree lives, the whole charge stands."""
        return max(0, self.charge_bytes - self.held_bytes) if self.tree_alive else 0
