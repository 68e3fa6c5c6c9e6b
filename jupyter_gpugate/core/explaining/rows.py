"""The rows of a snapshot.

Amounts are bytes, times are seconds.  ``alias`` is the name of a field in JSON, where Python has
another use for that word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from jupyter_gpugate.core.decisions import Earmark
from jupyter_gpugate.core.estimates import Estimate, EstimateTerm
from jupyter_gpugate.core.reports import Phase
from jupyter_gpugate.core.requests import Basis, Enforcement, Retry
from jupyter_gpugate.core.samples import Fault, ProcessKey
from jupyter_gpugate.core.state import Lock, Traits

#: Resource ("ram", or the UUID of a device) to bytes.
ByResource = Mapping[str, int]


@dataclass(frozen=True)
class DeviceName:
    """A device with its unique name."""

    uuid: str
    model: str
    index: Optional[int]
    name: str


@dataclass(frozen=True)
class DeviceRow(DeviceName):
    """A device, its memory, and whether runs start there."""

    total_bytes: int
    free_bytes: Optional[int]
    floor_bytes: int
    reserved_bytes: int
    leases: int
    neighbours: int
    driver_reserved_bytes: Optional[int]
    utilisation: Optional[float]
    source: str
    fault: Optional[Fault]
    state: str
    message: str


@dataclass(frozen=True)
class EpisodeCount:
    """The finished episodes of a run, of all that it has."""

    done: int
    of: int


@dataclass(frozen=True)
class RunningRow:
    """A live attempt: its charges, what it holds of them, and what is reserved for it."""

    run_id: str
    name: str
    group: str
    owner: str
    phase: Phase
    attempt: int
    fence: int
    devices: tuple[DeviceName, ...]
    elsewhere: tuple[str, ...]
    charges: ByResource
    held: ByResource
    meters: Mapping[str, str]
    peaks: ByResource
    reservations: ByResource
    settled: Mapping[str, bool]
    overrun: tuple[str, ...]
    admit_basis: Mapping[str, Basis]
    caps: ByResource
    enforcement: Enforcement
    exclusive: bool
    service: bool
    ready: Optional[bool]  # of a service
    pid: Optional[int]
    tree: tuple[ProcessKey, ...]
    overdue: bool
    stop_reason: str
    cancel_requested: bool
    kill_pending: bool
    episodes: EpisodeCount
    started_s: Optional[float]
    mapped_bytes: Optional[int]
    estimate: Estimate
    retry: Optional[Retry]


@dataclass(frozen=True)
class Reason:
    """A check that a request does not pass."""

    kind: str
    resource: Optional[str]
    message: str
    numbers: Mapping[str, int]


@dataclass(frozen=True)
class WaitReason(Reason):
    """A check that a queued request does not pass, with the runs or owners that it waits for."""

    who: tuple[str, ...]


@dataclass(frozen=True)
class QueuedRow:
    """A request in the queue, with its reasons, the dominant one first."""

    run_id: str
    name: str
    group: str
    owner: str
    position: int
    waited_s: float
    gpus: int
    job_class: str = field(metadata={"alias": "class"})
    exclusive: bool
    attempts: int
    parked: bool
    estimate: Estimate
    reasons: tuple[WaitReason, ...]
    eta_s: Optional[float]
    retry: Optional[Retry]


@dataclass(frozen=True)
class LingeringRow:
    """Memory that a gone run still holds or is reserved."""

    run_id: str
    owner: str
    resource: str
    held_bytes: int
    reserved_bytes: int
    kill_pending: bool


@dataclass(frozen=True)
class DeclaredRow:
    """A device that cannot be measured, by declared amounts."""

    usable: int
    declared: int
    left: int


@dataclass(frozen=True)
class Shares:
    """The bytes of a resource by holder: attributed + external - overlap = used_total."""

    used_total: int
    attributed: int
    external: int
    overlap: int
    runs: ByResource
    kernels: ByResource
    model_servers: ByResource
    fault: Optional[str]


@dataclass(frozen=True)
class AttributionRow:
    """The bytes of every resource by holder."""

    resources: Mapping[str, Shares]
    devices: Mapping[str, Shares]
    pids_are_ours: bool


@dataclass(frozen=True)
class ExternalRow:
    """Memory that a process outside of all runs and kernels holds."""

    resource: str
    pid: int
    start_ticks: Optional[int]
    uid: Optional[int]
    age_s: Optional[float]
    held_bytes: Optional[int]
    note: str
    user: Optional[str] = None
    command: Optional[str] = None


@dataclass(frozen=True)
class ReaderRow:
    """The health of a reader."""

    name: str
    present: bool
    age_s: Optional[float]
    fault: Optional[Fault]
    detail: Mapping[str, str]


@dataclass(frozen=True)
class Snapshot:
    """Everything that people and programs may know of one tick."""

    tick: int
    now: float
    reach: str
    running: tuple[RunningRow, ...]
    queued: tuple[QueuedRow, ...]
    lingering: tuple[LingeringRow, ...]
    free_bytes: ByResource
    floors: ByResource
    reservations: ByResource
    room_bytes: ByResource
    earmarks: tuple[Earmark, ...]
    attribution: AttributionRow
    devices: tuple[DeviceRow, ...]
    unified: tuple[DeviceName, ...]
    external: tuple[ExternalRow, ...]
    readers: tuple[ReaderRow, ...]
    locks: tuple[Lock, ...]
    draining: Optional[str]
    ignored_settings: tuple[str, ...]
    declared: Mapping[str, DeclaredRow]
    traits: Traits
    journal_fault: Optional[str]
    sample_fault: str


@dataclass(frozen=True)
class Forecast:
    """The need of a run, and whether it would start now."""

    name: str
    gpus: int
    workers: int
    terms: tuple[EstimateTerm, ...]
    level_parameters: tuple[str, ...]
    total_bytes: Mapping[str, Optional[int]]
    known_bytes: ByResource
    missing: tuple[str, ...]
    max_workers: Optional[int]
    would_start: bool
    reasons: tuple[Reason, ...]
