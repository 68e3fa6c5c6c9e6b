"""The nouns of the gate: frozen dataclasses, one per word of the glossary.

Bytes are plain ``int``; times are ``float`` seconds that the machine has been awake since boot,
unless a name says otherwise; a resource is ``"ram"`` or the UUID of a GPU or MIG slice.  What
could not be read is ``None`` or absent, never 0.  Everything here works on CPython 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Optional

RAM: Final = "ram"
VRAM: Final = "vram"  # the kind of every GPU resource, before a run is placed on a device

MB: Final = 1 << 20
GB: Final = 1 << 30


class HolderKind(str, Enum):
    """Whose memory it is."""

    RUN = "run"
    KERNEL = "kernel"
    MODEL_SERVER = "model_server"
    EXTERNAL = "external"


class Holder(NamedTuple):
    """One owner of memory: a run id, a kernel's notebook, a model server's name."""

    kind: HolderKind
    name: str


class ProcessKey(NamedTuple):
    """A process of this boot: a pid alone is no identity."""

    pid: int
    start_ticks: int


class ProcessBytes(NamedTuple):
    """What one process holds of a resource."""

    process: ProcessKey
    held_bytes: int


class Origin(str, Enum):
    """Where a number of an estimate comes from."""

    MEASURED = "measured"
    FITTED = "fitted"
    SCALED = "scaled"
    HINT = "hint"


class Basis(str, Enum):
    """The rung of the trust ladder that a run was admitted by, per resource."""

    CALIBRATED = "calibrated"
    HINT = "hint"
    WATCH = "watch"
    DECLARED = "declared"


class Enforcement(str, Enum):
    """How far a cap binds the run."""

    ENFORCED = "enforced"
    ADVISED = "advised"
    NONE = "none"


class Phase(str, Enum):
    """Where a live attempt stands."""

    GRANTED = "granted"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class AttemptOutcome(str, Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    OOM = "oom"
    EVICTED = "evicted"
    LOST = "lost"
    NOT_STARTED = "not_started"


class RunEnd(str, Enum):
    """How a run ended; a terminal state never changes."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"
    OOM = "oom"
    LOST = "lost"


# -- what was read off the machine ------------------------------------------------------------


class Process(NamedTuple):
    """One row of the process table; ``private_bytes`` is resident - shared of ``statm``."""

    pid: int
    start_ticks: int
    parent_pid: int
    uid: int
    private_bytes: int

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_ticks)


class GpuProcess(NamedTuple):
    """One process on one device; ``held_bytes`` is None where the driver does not tell."""

    pid: int
    held_bytes: Optional[int]
    kinds: str  # any of C(ompute), G(raphics), M(PS)


@dataclass(frozen=True)
class Fault:
    """Why something cannot be read: an error code, its text, and since when."""

    code: str
    text: str
    since: float


@dataclass(frozen=True)
class Device:
    """A GPU or a MIG slice, as the inventory remembers it."""

    uuid: str
    model: str  # the board's name, or the MIG profile for a slice
    total_bytes: int
    index: int
    parent: Optional[str] = None  # the board of a MIG slice
    mig_enabled: bool = False  # a board cut into slices is no resource itself
    unified: bool = False  # shares the machine's RAM: no resource of its own
    bus: str = ""


@dataclass(frozen=True)
class DeviceReading:
    """What one device showed; ``free_bytes`` None means that it cannot be gated on."""

    device: Device
    taken_at: float
    free_bytes: Optional[int]
    driver_reserved_bytes: Optional[int] = None
    processes: Optional[tuple[GpuProcess, ...]] = None  # None: nobody can be named
    processes_fault: Optional[Fault] = None
    utilisation: Optional[float] = None  # 0..1; None where it cannot be read, which is not idle
    fault: Optional[Fault] = None
    source: str = ""  # the driver call that gave ``free_bytes``, such as "nvml-v2"

    @property
    def used_bytes(self) -> Optional[int]:
        """Total - free - what the driver keeps for itself."""
        if self.free_bytes is None:
            return None
        return self.device.total_bytes - self.free_bytes - (self.driver_reserved_bytes or 0)

    @property
    def contradiction(self) -> str:
        """Why the numbers cannot all be true; empty where they can."""
        used, total = self.used_bytes, self.device.total_bytes
        if used is None or self.device.mig_enabled or self.device.unified:
            return ""
        if total > 0 and 0 <= used <= total and 0 <= (self.free_bytes or 0) <= total:
            return ""
        return (
            f"its numbers contradict each other: {self.free_bytes} bytes free and "
            f"{self.driver_reserved_bytes or 0} kept by the driver, of {total}"
        )


@dataclass(frozen=True)
class CgroupReading:
    """The RAM that the limits above a cgroup leave, and the cgroup whose limit binds."""

    free_bytes: int
    bound_by: str  # "machine" where no limit does


@dataclass(frozen=True)
class RamReading:
    """The machine's RAM; ``free_bytes`` is bounded by every cgroup level above the gate."""

    taken_at: float
    total_bytes: int
    available_bytes: int  # MemAvailable + reclaimable ARC
    free_bytes: int
    bound_by: str = "machine"  # or the cgroup whose limit binds
    shm_free_bytes: Optional[int] = None
    shared_bytes: int = 0  # shared memory, and files in memory
    #: The most that the kernel can neither drop nor find in a process's private pages: shared
    #: memory, locked pages, and huge pages beyond the reserved pool.
    unmovable_bytes: int = 0
    huge_pool_bytes: int = 0  # reserved for huge pages, used or not
    cgroup: str = ""  # the gate's own
    cgroups: Mapping[str, CgroupReading] = field(
        default_factory=dict
    )  # of runs that live in others

    @property
    def used_bytes(self) -> int:
        return max(0, self.total_bytes - self.available_bytes)


@dataclass(frozen=True)
class ReaderHealth:
    """How a reader is: when it last answered, and what is wrong."""

    name: str  # "gpu" or "machine"
    present: bool  # False: this machine has no such hardware
    taken_at: Optional[float]
    fault: Optional[Fault] = None
    detail: Mapping[str, str] = field(default_factory=dict)  # driver version, struct in use, ...
    took_s: float = 0.0  # how long its newest reading took


@dataclass(frozen=True)
class KernelProcess:
    """A notebook kernel found in the process table."""

    key: ProcessKey
    name: str  # the notebook's path where it is known, else "pid N"
    owner: str


@dataclass(frozen=True)
class Sample:
    """The newest readings of both readers; what could not be read is absent."""

    ram: Optional[RamReading] = None
    processes: Mapping[int, Process] = field(default_factory=dict)
    devices: tuple[DeviceReading, ...] = ()
    readers: tuple[ReaderHealth, ...] = ()
    kernels: tuple[KernelProcess, ...] = ()
    pids_are_ours: bool = True  # False: the driver speaks of another PID namespace
    boot_id: str = ""

    def device(self, uuid: str) -> Optional[DeviceReading]:
        for reading in self.devices:
            if reading.device.uuid == uuid:
                return reading
        return None


# -- attribution ------------------------------------------------------------------------------


class ExternalProcess(NamedTuple):
    """A holder that is nobody of ours."""

    pid: int
    start_ticks: Optional[int]  # None: listed by the driver, not in the process table
    held_bytes: Optional[int]
    note: str = ""  # "ghost", "unlisted", ...


@dataclass(frozen=True)
class ResourceAttribution:
    """One resource's bytes shared out: ``attributed + external - overlap == used``."""

    resource: str
    used_bytes: int
    by_holder: Mapping[Holder, int]
    external_bytes: int
    overlap_bytes: int
    unknown: tuple[Holder, ...] = ()  # on the device, but the driver tells no bytes
    external: tuple[ExternalProcess, ...] = ()
    fault: Optional[str] = None  # why nobody can be named

    @property
    def attributed_bytes(self) -> int:
        return sum(self.by_holder.values())


@dataclass(frozen=True)
class Attribution:
    """A sample's bytes shared out among holders."""

    resources: Mapping[str, ResourceAttribution]
    holder_of: Mapping[ProcessKey, Holder]  # remembered for the next sample


# -- calibration and estimates ----------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """What one body of observations is about."""

    owner: str
    name: str
    source_hash: str
    gpus: int


@dataclass(frozen=True)
class Setting:
    """The circumstances of an observation; ``device_model`` counts for GPU terms only."""

    workers: int
    parameters: tuple[tuple[str, str], ...] = ()  # sorted by name; irrelevant ones left out
    episodes: int = 1
    device_model: Optional[str] = None
    runtime: str = ""  # torch / JAX version and driver major


@dataclass(frozen=True)
class Observation:
    """What one attempt showed on one kind of resource (``"ram"`` or ``"vram"``, per device)."""

    family: Family
    setting: Setting
    resource: str  # RAM or VRAM
    peak_bytes: int
    complete: bool  # may set or lower a need; else a lower bound
    at: float  # wall clock, for people and for order
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED
    charge_bytes: Optional[int] = None
    cap_bytes: Optional[int] = None
    enforcement: Enforcement = Enforcement.NONE
    oom_at_bytes: Optional[int] = None
    device_total_bytes: Optional[int] = None
    duration_s: Optional[float] = None
    neighbours: int = 0
    run_id: str = ""
    #: Memory of others that grew and shrank with the run: then it teaches nothing.
    elsewhere_bytes: Optional[int] = None


@dataclass(frozen=True)
class Hints:
    """The author's own numbers."""

    vram_bytes: Optional[int] = None
    ram_bytes: Optional[int] = None

    def of(self, resource: str) -> Optional[int]:
        return self.ram_bytes if resource == RAM else self.vram_bytes


@dataclass(frozen=True)
class EstimateTerm:
    """The need of one holder on one kind of resource; ``need_bytes`` None is a gap."""

    resource: str  # RAM or VRAM (per device)
    holder: HolderKind
    need_bytes: Optional[int]
    origin: Optional[Origin] = None
    peak_bytes: Optional[int] = None
    margin_bytes: int = 0
    n: int = 0  # complete observations behind it
    note: str = ""  # "fitted over workers 1, 2, 4"; "saturated: the peak itself"; ...
    lower_bound_bytes: int = 0  # greatest peak of attempts that do not set a need
    prior_bytes: Optional[int] = None  # what older sources of the same name needed
    device_model: str = ""  # of which kind of device it is told, where the machine has several


@dataclass(frozen=True)
class Estimate:
    """Need per term; a term without a number makes the total of its resource None."""

    terms: tuple[EstimateTerm, ...]
    ignored_parameters: tuple[str, ...] = ()  # shown not to matter

    def total_bytes(self, resource: str) -> Optional[int]:
        needs = [t.need_bytes for t in self.terms if t.resource == resource]
        known = [n for n in needs if n is not None]
        return sum(known) if len(known) == len(needs) else None

    def known_bytes(self, resource: str) -> int:
        return sum(t.need_bytes or 0 for t in self.terms if t.resource == resource)

    def gaps(self) -> tuple[str, ...]:
        return tuple(f"{t.resource}:{t.holder.value}" for t in self.terms if t.need_bytes is None)

    def term(self, resource: str) -> EstimateTerm:
        """The run's own term on one kind of resource."""
        for term in self.terms:
            if term.resource == resource and term.holder is HolderKind.RUN:
                return term
        raise KeyError(resource)


# -- requests, leases -------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelRef:
    """The notebook kernel that waits for a run."""

    pid: int
    start_ticks: int
    boot_id: str
    notebook: str = ""

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_ticks)


@dataclass(frozen=True)
class Request:
    """What a run side asks of the gate; names, hashes and numbers, never source or paths."""

    run_id: str
    family: Family
    setting: Setting
    idempotency_key: str = ""
    hints: Hints = Hints()
    kind: str = "cell"  # "cell" or "program"; decides how far a cap can bind
    exclusive: bool = False
    job_class: str = "normal"
    evictable: bool = False
    max_wait_s: Optional[float] = None
    time_limit_s: Optional[float] = None
    cgroup: str = ""  # of its notebook, where the run is to live; "": in the gate's
    kernel: Optional[KernelRef] = None
    detached: bool = False
    submitted_wall: float = 0.0
    visible: Optional[tuple[str, ...]] = None  # the mask of its notebook's devices; None: no mask

    @property
    def owner(self) -> str:
        return self.family.owner

    @property
    def gpus(self) -> int:
        return self.family.gpus


@dataclass(frozen=True)
class Grant:
    """What the gate grants: the right to start and to use the charges, with a fence."""

    run_id: str
    attempt: int
    fence: int
    devices: tuple[str, ...]
    charges: Mapping[str, int]  # resource -> bytes
    basis: Mapping[str, Basis]  # resource -> rung
    caps: Mapping[str, int]  # resource -> bytes for the whole run on that device
    enforcement: Enforcement
    start_by_s: float = 30.0
    device_totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunReport:
    """What a supervisor measured of its own run; None or absent: it could not."""

    #: Over the tree: Pss_Anon + Pss_Shmem + SwapPss, locked file pages, files in memory.
    ram_held_bytes: Optional[int] = None
    ram_shared_bytes: int = 0  # of that: what `statm` does not tell from files on a disk
    ram_age_s: float = 0.0
    mapped_bytes: Optional[int] = None  # shown, never charged
    vram_held_bytes: Mapping[str, int] = field(default_factory=dict)  # framework's own, by UUID
    device_overhead_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Peaks:
    """The greatest a run held, by the meters of its own side."""

    ram_bytes: Optional[int] = None
    ram_meter: str = ""  # "pss" or "rss"
    ram_covered: bool = False  # a high-water mark covers any stretch without a reading
    vram_bytes: Mapping[str, int] = field(default_factory=dict)  # framework's own peak, by UUID
    vram_covered: bool = False


@dataclass(frozen=True)
class EndReport:
    """How a supervisor says that its run ended."""

    outcome: AttemptOutcome
    reason: str = ""  # "time_limit", "exit 3", "signal 9", ...
    exit_code: Optional[int] = None
    episodes_done: int = 0
    peaks: Peaks = Peaks()
    duration_s: Optional[float] = None
    oom_resource: Optional[str] = None  # "vram", "ram" or "shm" when the evidence says so
    oom_evidence: str = ""  # "own_cap", "device_full", "host_oom_killer", "shm_full"
