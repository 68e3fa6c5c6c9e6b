"""The gate's whole state as one frozen value; `lifecycle.apply` makes the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from jupyter_gpugate.core.endings import End
from jupyter_gpugate.core.evidence import Calibration
from jupyter_gpugate.core.leases import Lingering, RunLease
from jupyter_gpugate.core.queued import Queued, RequestKey
from jupyter_gpugate.core.samples import Device, ProcessBytes, ProcessKey
from jupyter_gpugate.core.shares import Attribution, Growth, Rise, Share


@dataclass(frozen=True)
class Traits:
    """The settings of admission; a site changes them through its configuration."""

    head_after_s: float = 600.0
    watch_wait_s: float = 300.0
    watch_slot_s: float = 600.0  # of zero use, until the slot passes on
    watch_vram_share: float = 0.5
    watch_ram_share: float = 0.25
    settle_s: float = 60.0
    settle_early_s: float = 10.0  # after several whole episodes
    settle_unmoved_s: float = 600.0  # without episodes
    settle_ram_unmoved_s: float = 120.0  # without episodes, of RAM
    ready_unmoved_s: float = 60.0  # of a service without a URL
    linger_s: float = 30.0
    stale_after_s: float = 3.0
    absent_after_s: float = 30.0
    lease_ttl_s: float = 15.0
    start_by_s: float = 30.0
    max_running_per_user: Optional[int] = None
    max_runs_per_device: int = 8
    placement: str = "spread"
    device_mask: str = "index"
    max_queued: int = 2000
    max_queued_per_user: int = 1000
    #: UUID -> bytes an administrator declares usable where a device cannot be sampled.
    usable_vram_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lock:
    """A lock: a user works on a device, or on the machine, by hand."""

    resource: str
    owner: str
    since: float
    until: float
    kernel: Optional[ProcessKey] = None


@dataclass(frozen=True)
class Ended:
    """The end of a run at the gate, kept for a while for its run side."""

    end: End
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
class GateState:
    """Everything that decisions rest on, beside the newest sample."""

    traits: Traits = Traits()
    queue: Mapping[str, Queued] = field(default_factory=dict)  # in submission order
    #: The queue once more: runs whose requests are equal to admission.
    alike: Mapping[RequestKey, Mapping[str, None]] = field(default_factory=dict)
    leases: Mapping[str, RunLease] = field(default_factory=dict)
    lingering: Mapping[tuple[str, str], Lingering] = field(default_factory=dict)
    locks: Mapping[str, Lock] = field(default_factory=dict)
    draining: Optional[str] = None  # the reason, while the gate takes no new runs
    ended: Mapping[str, Ended] = field(default_factory=dict)
    run_sides: Mapping[str, float] = field(default_factory=dict)  # last seen
    expiries: Mapping[str, float] = field(default_factory=dict)  # queued runs with a max wait
    #: Queued runs that start only after others have completed.
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inventory: Mapping[str, Device] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    growth: Mapping[str, Growth] = field(default_factory=dict)
    #: Model -> the least that one process was seen to hold beyond its framework's own memory.
    device_overhead: Mapping[str, int] = field(default_factory=dict)
    attribution: Attribution = Attribution({}, {})
    utilisation: Mapping[str, float] = field(default_factory=dict)
    #: Device -> how many others than its leases hold memory there.
    strangers: Mapping[str, int] = field(default_factory=dict)
    #: Device -> the fence of the last grant there: equal devices are taken in turn.
    last_fences: Mapping[str, int] = field(default_factory=dict)
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
