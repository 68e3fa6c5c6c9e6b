"""Leases of live attempts, and what gone runs leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional, Union

from jupyter_gpugate.core.endings import Stop
from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.queued import Queued
from jupyter_gpugate.core.reports import Peaks, Phase, RunReport
from jupyter_gpugate.core.requests import Basis, Enforcement, Request
from jupyter_gpugate.core.resources import RAM, Holder
from jupyter_gpugate.core.samples import ProcessBytes, ProcessKey
from jupyter_gpugate.core.shares import Rise, Share


@dataclass(frozen=True)
class Usage:
    """The gate's measurements of one run on one resource."""

    held_bytes: int = 0
    meter: str = ""  # "pss", "statm", "nvml", "report", "by_delta"
    peak_bytes: int = 0
    read_at: Optional[float] = None
    longest_gap_s: float = 0.0
    first_used_at: Optional[float] = None
    episode_at_first_use: int = 0
    peak_moved_at: float = 0.0
    plateau_bytes: int = 0  # the last peak that rose noticeably above the one before
    plateau_at: float = 0.0
    episode_at_peak: int = 0  # episodes that had ended when the peak last moved
    settled: bool = False
    overrun_at: Optional[float] = None
    process_peak_bytes: int = 0  # the greatest of any one process of the tree
    summed_peak_bytes: int = 0  # the greatest sum over the tree, whatever its run reports
    journalled_peak_bytes: int = 0  # what a restart would still know
    free_at_grant: Optional[int] = None
    overhead_bytes: Optional[int] = None  # the least held beyond what the framework reports


@dataclass(frozen=True)
class Terms:
    """The terms of a lease: what was granted, and when."""

    fence: int
    devices: tuple[str, ...]
    charges: Mapping[str, int]  # resource -> bytes
    basis: Mapping[str, Basis]
    caps: Mapping[str, int]
    enforcement: Enforcement
    granted_at: float
    exclusive: bool = False
    service: bool = False
    cgroup: str = ""  # in which its holder lives; "": in the gate's


@dataclass(frozen=True)
class Reported:
    """The newest heartbeat of a lease's holder, and what lasts of the ones before."""

    at: float
    tree: tuple[ProcessKey, ...]
    is_running: bool = False  # its workers have started
    report: RunReport = RunReport()
    report_at: Optional[float] = None
    report_gap_s: float = 0.0  # the longest that its supervisor went without a reading
    peaks: Peaks = Peaks()
    episode: int = 0
    resumed: int = 0  # episodes that earlier attempts have kept
    episode_at: Optional[float] = None
    longest_episode_s: float = 0.0
    ready: bool = False  # of a service: its URL has answered


@dataclass(frozen=True)
class Measured:
    """The gate's own measurements of a lease's holder, and of those beside it."""

    usage: Mapping[str, Usage]
    #: The other holders on each resource when it began, and those that grew where it ran short.
    others: Mapping[str, tuple[Share, ...]]
    grown: Mapping[str, tuple[Rise, ...]] = field(default_factory=dict)
    #: Resource -> what processes that were no run's held there when this one was first seen.
    others_at_start: Mapping[str, tuple[ProcessBytes, ...]] = field(default_factory=dict)
    neighbours: int = 0
    unmovable_from: Optional[float] = None  # the report that `unmovable_bytes` goes with
    unmovable_bytes: int = 0  # the machine's, when that report was new


@dataclass(frozen=True)
class Granted:
    """The stage of a lease that no supervisor has taken up."""

    others: Mapping[str, tuple[Share, ...]]  # as in `Measured`, at the grant


@dataclass(frozen=True)
class Live:
    """The stage of a lease from its supervisor's start on."""

    process: ProcessKey  # the supervisor
    boot_id: str
    started_at: float
    reported: Reported
    measured: Measured
    ready_at: Optional[float]  # of a service; None: it loads


@dataclass(frozen=True)
class Stopping(Live):
    """The last stage of a lease: its processes are being stopped."""

    stop: Stop
    survivors: tuple[int, ...]  # pids that SIGKILL has not ended yet


Stage = Union[Granted, Live, Stopping]


@dataclass(frozen=True)
class Lease:
    """The permission to start and to use its charge."""

    holder: Holder
    terms: Terms
    charges: Mapping[str, int]  # as of now: they settle, or overrun
    caps: Mapping[str, int]  # as of now: those of a watch run follow its neighbours
    widest_caps: Mapping[str, int]  # the greatest so far
    stage: Stage

    @property
    def live(self) -> Optional[Live]:
        """Its stage, if a supervisor has started."""
        return self.stage if isinstance(self.stage, Live) else None

    @property
    def phase(self) -> Phase:
        """Its stage as a word; a live one distinguishes whether its workers have started."""
        if isinstance(self.stage, Stopping):
            return Phase.STOPPING
        if isinstance(self.stage, Live):
            return Phase.RUNNING if self.stage.reported.is_running else Phase.STARTING
        return Phase.GRANTED

    @property
    def is_loading(self) -> bool:
        """Whether it is a service that is not ready yet."""
        return self.terms.service and (self.live is None or self.live.ready_at is None)

    @property
    def usage(self) -> Mapping[str, Usage]:
        return self.stage.measured.usage if isinstance(self.stage, Live) else {}

    @property
    def others(self) -> Mapping[str, tuple[Share, ...]]:
        """The other holders on each resource when it began."""
        return self.stage.measured.others if isinstance(self.stage, Live) else self.stage.others

    @property
    def grown(self) -> Mapping[str, tuple[Rise, ...]]:
        """The processes that grew on each resource that ran short."""
        return self.stage.measured.grown if isinstance(self.stage, Live) else {}

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The devices that it has used without having been given them."""
        given = (RAM, *self.terms.devices)
        return tuple(u for u, usage in self.usage.items() if u not in given and usage.peak_bytes)

    def held(self, resource: str) -> int:
        usage = self.usage.get(resource)
        return usage.held_bytes if usage else 0

    def reservation(self, resource: str) -> int:
        return max(0, self.charges.get(resource, 0) - self.held(resource))

    def unsettled_watch(self, resource: str) -> bool:
        usage = self.usage.get(resource)
        return self.terms.basis.get(resource) is Basis.WATCH and not (usage and usage.settled)


@dataclass(frozen=True)
class Attempt:
    """The attempt of a run that a lease is for, with the run's place in the queue."""

    queued: Queued
    number: int
    estimate: Estimate


@dataclass(frozen=True)
class RunLease(Lease):
    """The lease of a run."""

    attempt: Attempt

    @property
    def run_id(self) -> str:
        return self.holder.name

    @property
    def request(self) -> Request:
        return self.attempt.queued.request


@dataclass(frozen=True)
class Lingering:
    """The memory of a gone run that is still occupied on one resource."""

    run_id: str
    owner: str
    resource: str
    charge_bytes: int
    held_bytes: int
    last_held_bytes: int  # when a process of the tree was last seen
    ended_at: float
    supervisor: Optional[ProcessKey] = None  # it says that the rest is gone, and goes last
    tree: tuple[ProcessKey, ...] = ()
    tree_alive: bool = True  # until a sample shows that no process of the tree is left
    most_free_bytes: Optional[int] = None  # since the tree is gone: what is beyond came back

    def reservation(self) -> int:
        """While a process of the tree lives, the whole charge counts."""
        return max(0, self.charge_bytes - self.held_bytes) if self.tree_alive else 0
