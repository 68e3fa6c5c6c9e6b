"""The gate's whole state as one frozen value; `lifecycle.apply` makes the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from jupyter_gpugate.core.learning.calibration import Calibration
from jupyter_gpugate.core.model import (
    Attribution,
    Basis,
    Device,
    Enforcement,
    Estimate,
    Peaks,
    Phase,
    ProcessBytes,
    ProcessKey,
    Request,
    RunEnd,
    RunReport,
)

MACHINE = "machine"  # the resource name of a lock on everything


@dataclass(frozen=True)
class Traits:
    """The settings of admission; a site changes them through its configuration."""

    head_after_s: float = 600.0
    watch_wait_s: float = 300.0
    watch_slot_s: float = 600.0  # of zero use, until the slot passes on
    watch_vram_share: float = 0.5
    watch_ram_share: float = 0.25
    settle_s: float = 60.0
    settle_unmoved_s: float = 600.0  # without episodes
    linger_s: float = 30.0
    stale_after_s: float = 3.0
    absent_after_s: float = 30.0
    lease_ttl_s: float = 15.0
    start_by_s: float = 30.0
    max_running_per_user: Optional[int] = None
    max_runs_per_device: int = 8
    placement: str = "spread"
    max_queued: int = 2000
    max_queued_per_user: int = 200
    #: UUID -> bytes an administrator declares usable where a device cannot be sampled.
    usable_vram_bytes: Mapping[str, int] = field(default_factory=dict)


class TermNeed(NamedTuple):
    """What admission must know of one term: a number with its rung, or what bounds a guess."""

    need_bytes: Optional[int]
    basis: Basis
    prior_bytes: Optional[int]
    lower_bound_bytes: int
    peak_bytes: Optional[int] = None  # the number without its margin


#: Nothing is known: the run is watched.
UNKNOWN = TermNeed(None, Basis.WATCH, None, 0)


class Needs(NamedTuple):
    """A request's need of RAM and, per device model, of each of its devices."""

    ram: TermNeed
    vram: tuple[tuple[str, TermNeed], ...]

    def on(self, model: str) -> TermNeed:
        for name, need in self.vram:
            if name == model:
                return need
        return UNKNOWN


NO_NEEDS = Needs(UNKNOWN, ())
NO_ESTIMATE = Estimate(())
#: The estimates of a request by kind of device; "" for RAM only.
Estimates = tuple[tuple[str, Estimate], ...]


class GroupKey(NamedTuple):
    """Everything that admission looks at: requests with equal keys share a verdict."""

    owner: str
    run_side: str
    gpus: int
    exclusive: bool
    needs: Needs
    visible: Optional[tuple[str, ...]] = None
    cgroup: str = ""


def key_of(request: Request, run_side: str, needs: Needs) -> GroupKey:
    """All of a request that admission looks at."""
    return GroupKey(
        owner=request.owner,
        run_side=run_side,
        gpus=request.gpus,
        exclusive=request.exclusive,
        needs=needs,
        visible=request.visible,
        cgroup=request.cgroup,
    )


@dataclass(frozen=True)
class Queued:
    """A request in the queue; ``order`` is its place for good."""

    request: Request
    order: int
    submitted_at: float
    run_side: str
    needs: Needs = NO_NEEDS  # as of now: what they rest on may change
    estimates: Estimates = ()
    attempts: int = 0
    unstarted_grants: int = 0

    @property
    def key(self) -> GroupKey:
        return key_of(self.request, self.run_side, self.needs)


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
class Who:
    """A holder of memory that is promised to no run."""

    kind: str  # "process", "notebook" or "run"; empty where nobody can be named
    name: str = ""
    pid: int = 0
    start_ticks: Optional[int] = None


@dataclass(frozen=True)
class Share:
    """Bytes in the hands of one holder."""

    who: Who
    held_bytes: int


@dataclass(frozen=True)
class Rise:
    """The growth of one holder."""

    who: Who
    rise_bytes: int
    uid: Optional[int] = None  # of a process


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


@dataclass(frozen=True)
class Lock:
    """Somebody uses a device, or the machine, by hand."""

    resource: str
    owner: str
    since: float
    until: float
    kernel: Optional[ProcessKey] = None


@dataclass(frozen=True)
class Ended:
    """How a run ended at the gate, kept for a while for its run side to read."""

    end: RunEnd
    reason: str
    at: float
    attempt: int = 0
    fence: int = 0
    peaks: Mapping[str, int] = field(default_factory=dict)  # resource -> bytes, as measured
    #: Kind of resource -> bytes of others that grew and shrank with the run.
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    evidence: str = ""  # of memory that was full, as its supervisor says
    charges: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)  # as of its lease
    grown: Mapping[str, tuple[Rise, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Growth:
    """How fast what others than runs hold has grown on one resource."""

    recent: tuple[tuple[float, int], ...] = ()  # (time, bytes) of the last minute
    rises: tuple[tuple[float, int], ...] = ()  # (bucket's time, greatest rise) of ten minutes


@dataclass(frozen=True)
class GateState:
    """Everything that decisions rest on, beside the newest sample."""

    traits: Traits = Traits()
    queue: Mapping[str, Queued] = field(default_factory=dict)  # in submission order
    groups: Mapping[GroupKey, Mapping[str, None]] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    lingering: Mapping[tuple[str, str], Lingering] = field(default_factory=dict)
    locks: Mapping[str, Lock] = field(default_factory=dict)
    draining: Optional[str] = None  # the reason, while the gate takes no new runs
    ended: Mapping[str, Ended] = field(default_factory=dict)
    run_sides: Mapping[str, float] = field(default_factory=dict)  # last seen
    expiries: Mapping[str, float] = field(default_factory=dict)  # queued runs with a max wait
    inventory: Mapping[str, Device] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    growth: Mapping[str, Growth] = field(default_factory=dict)
    #: Model -> the least that one process was seen to hold beyond its framework's own memory.
    device_overhead: Mapping[str, int] = field(default_factory=dict)
    attribution: Attribution = Attribution({}, {})
    utilisation: Mapping[str, float] = field(default_factory=dict)
    present: frozenset[str] = frozenset()  # the devices that the last sample showed
    free_seen: Mapping[str, int] = field(default_factory=dict)  # resource -> bytes, last sample
    unmovable_seen: Optional[int] = None  # in the last sample
    #: Resource -> (time, what processes that are no run's hold there), of the last seconds.
    others: Mapping[str, tuple[tuple[float, tuple[ProcessBytes, ...]], ...]] = field(
        default_factory=dict
    )
    fence: int = 0
    order: int = 0
    tick: int = 0
    ticked_at: Optional[float] = None
    patient_until: float = 0.0  # nothing expires before: the gate was away or stood still
    boot_id: str = ""
    driver: str = ""  # the driver's major version, a part of the runtime signature
