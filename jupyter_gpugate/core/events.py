"""Events that change the gate's state; each is journalled except heartbeats.

``at`` is in seconds on the gate's clock, which stands still while the machine sleeps.
``lifecycle.apply`` is the only reader that acts on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Optional, Union

from jupyter_gpugate.core.endings import Stop
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.reports import (
    EndReport,
    Peaks,
    Phase,
    RunEnd,
    RunReport,
)
from jupyter_gpugate.core.requests import Grant, Request, Retry
from jupyter_gpugate.core.samples import Device, ProcessKey


@dataclass(frozen=True)
class Requested:
    """A run side asked for a lease."""

    kind: ClassVar[str] = "requested"
    at: float
    request: Request
    run_side: str = ""


@dataclass(frozen=True)
class Withdrawn:
    """A queued or granted run was taken back before it started."""

    kind: ClassVar[str] = "withdrawn"
    at: float
    run_id: str
    end: RunEnd = RunEnd.CANCELLED
    reason: str = ""


@dataclass(frozen=True)
class Granted:
    """The gate granted a lease."""

    kind: ClassVar[str] = "granted"
    at: float
    grant: Grant


@dataclass(frozen=True)
class Declined:
    """A grant went back: the run side could not use it, or never started it in time."""

    kind: ClassVar[str] = "declined"
    at: float
    run_id: str
    fence: int
    reason: str = ""
    end: Optional[RunEnd] = None  # set: the run ends here instead of queueing again


@dataclass(frozen=True)
class Started:
    """A supervisor of this fence is alive and has been given `go`."""

    kind: ClassVar[str] = "started"
    at: float
    run_id: str
    fence: int
    process: ProcessKey
    boot_id: str


@dataclass(frozen=True)
class Beat:
    """A supervisor's heartbeat; never journalled."""

    kind: ClassVar[str] = "beat"
    at: float
    run_id: str
    fence: int
    tree: tuple[ProcessKey, ...]
    report: RunReport = RunReport()
    peaks: Peaks = Peaks()
    episode: int = 0
    resumed: int = 0  # episodes that earlier attempts have kept
    phase: Phase = Phase.RUNNING
    stop: Optional[Stop] = None
    survivors: tuple[int, ...] = ()  # pids that SIGKILL has not ended yet
    ready: bool = False  # of a service: its URL has answered


@dataclass(frozen=True)
class Ready:
    """A service is ready: its URL answers, or its peak stands still."""

    kind: ClassVar[str] = "ready"
    at: float
    run_id: str
    fence: int


@dataclass(frozen=True)
class Measured:
    """Peaks that the gate itself saw of a live run, kept so that a restart does not lose them."""

    kind: ClassVar[str] = "measured"
    at: float
    run_id: str
    fence: int
    peaks: Mapping[str, int]  # resource -> bytes


@dataclass(frozen=True)
class Recharged:
    """A live run's charges changed: settled downwards or overran upwards."""

    kind: ClassVar[str] = "recharged"
    at: float
    run_id: str
    fence: int
    charges: Mapping[str, int]
    reason: str  # "settled" or "overrun"


@dataclass(frozen=True)
class Recapped:
    """A live run's caps follow the memory that nobody was promised."""

    kind: ClassVar[str] = "recapped"
    at: float
    run_id: str
    fence: int
    caps: Mapping[str, int]  # device -> bytes


@dataclass(frozen=True)
class Finished:
    """A run's attempt ended: its supervisor said so, or the gate proved that it is gone."""

    kind: ClassVar[str] = "finished"
    at: float
    run_id: str
    fence: int
    end: EndReport
    wall: float = 0.0
    retry: Optional[Retry] = None  # set: the run queues again, after it ran out of memory


@dataclass(frozen=True)
class Released:
    """A gone run's memory was seen free, or its time to linger is over."""

    kind: ClassVar[str] = "released"
    at: float
    run_id: str
    resource: str


@dataclass(frozen=True)
class Present:
    """A run side is there; never journalled."""

    kind: ClassVar[str] = "present"
    at: float
    run_side: str
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceSeen:
    """A device joined the inventory, or changed; it is remembered across restarts."""

    kind: ClassVar[str] = "device_seen"
    at: float
    device: Device


@dataclass(frozen=True)
class DeviceForgotten:
    """An administrator took a device out of the inventory."""

    kind: ClassVar[str] = "device_forgotten"
    at: float
    uuid: str


@dataclass(frozen=True)
class DriverSeen:
    """The driver's major version, a part of every GPU setting; never journalled."""

    kind: ClassVar[str] = "driver_seen"
    at: float
    major: str


@dataclass(frozen=True)
class Locked:
    """A user locked a device (or, with resource "machine", everything) for interactive use."""

    kind: ClassVar[str] = "locked"
    at: float
    resource: str
    owner: str
    until: float
    kernel: Optional[ProcessKey] = None


@dataclass(frozen=True)
class Unlocked:
    """A lock was given back, ran out, or its kernel ended."""

    kind: ClassVar[str] = "unlocked"
    at: float
    resource: str


@dataclass(frozen=True)
class DrainChanged:
    """The gate starts no new runs, or starts them again."""

    kind: ClassVar[str] = "drain_changed"
    at: float
    draining: bool
    reason: str = ""


@dataclass(frozen=True)
class VerdictChanged:
    """A queued run's dominant reason changed; for its story, not for the state."""

    kind: ClassVar[str] = "verdict_changed"
    at: float
    run_id: str
    verdict: str


@dataclass(frozen=True)
class Sedimented:
    """An observation was added to the calibration."""

    kind: ClassVar[str] = "sedimented"
    at: float
    observation: Observation


@dataclass(frozen=True)
class CalibrationForgotten:
    """The owner deleted the observations of a name."""

    kind: ClassVar[str] = "calibration_forgotten"
    at: float
    owner: str
    name: str


@dataclass(frozen=True)
class Restarted:
    """A gate opened this journal; leases of another boot are lost."""

    kind: ClassVar[str] = "restarted"
    at: float
    boot_id: str
    detail: Mapping[str, str] = field(default_factory=dict)


Event = Union[
    Requested,
    Withdrawn,
    Granted,
    Declined,
    Started,
    Beat,
    Ready,
    Measured,
    Recharged,
    Recapped,
    Finished,
    Released,
    Present,
    DeviceSeen,
    DeviceForgotten,
    DriverSeen,
    Locked,
    Unlocked,
    DrainChanged,
    VerdictChanged,
    Sedimented,
    CalibrationForgotten,
    Restarted,
]

EVENT_TYPES: dict[str, type] = {cls.kind: cls for cls in Event.__args__}  # type: ignore[attr-defined]
UNJOURNALLED = (Beat, Present, DriverSeen)
#: These are synced to the disk before they are reported; others are synced with them.
DURABLE = (Requested, Withdrawn, Granted, Declined, Finished)
#: These do not exist unless they are written down; ends and releases count all the same, in memory.
REFUSED = (Requested, Started, Locked, DrainChanged, CalibrationForgotten, DeviceForgotten)
