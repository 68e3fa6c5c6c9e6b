"""Requests of the run side, and the grants that answer them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Optional

from jupyter_gpugate.core.resources import RAM
from jupyter_gpugate.core.samples import ProcessKey


class Basis(str, Enum):
    """The rung of the trust ladder that a run was admitted by, per resource."""

    CHOSEN = "chosen"
    CALIBRATED = "calibrated"
    HINT = "hint"
    WATCH = "watch"
    DECLARED = "declared"


class Enforcement(str, Enum):
    """The enforcement of a cap."""

    ENFORCED = "enforced"
    ADVISED = "advised"
    NONE = "none"


@dataclass(frozen=True)
class Family:
    """The subject of a group of observations."""

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
class Hints:
    """The author's own numbers."""

    vram_bytes: Optional[int] = None
    ram_bytes: Optional[int] = None

    def of(self, resource: str) -> Optional[int]:
        return self.ram_bytes if resource == RAM else self.vram_bytes


@dataclass(frozen=True)
class Chosen:
    """The amounts that the author has fixed: GPU memory is per device."""

    vram_bytes: Optional[int] = None
    ram_bytes: Optional[int] = None

    def of(self, resource: str) -> Optional[int]:
        return self.ram_bytes if resource == RAM else self.vram_bytes


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


class Choice(NamedTuple):
    """The devices that a run may have: those that pass all three."""

    mask: Optional[tuple[str, ...]] = None  # of its notebook; None: no mask
    named: tuple[str, ...] = ()  # numbers and UUIDs; empty: any
    model: str = ""  # a part of the model's name


@dataclass(frozen=True)
class Request:
    """A run side's request to the gate: names, hashes and numbers, never source or paths."""

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
    chosen: Chosen = Chosen()
    device: tuple[str, ...] = ()  # numbers and UUIDs of which it is to get some; empty: any
    model: str = ""  # a part of the model's name, in whatever case
    service: bool = False  # it ends by being stopped
    by_url: bool = False  # a service that is ready when its URL answers
    group: str = ""  # of several runs that were submitted as one
    at_most: Optional[int] = None  # active runs of the group at a time
    after: tuple[str, ...] = ()  # the runs that have to complete before it starts

    @property
    def owner(self) -> str:
        return self.family.owner

    @property
    def gpus(self) -> int:
        return self.family.gpus

    @property
    def choice(self) -> Choice:
        return Choice(self.visible, self.device, self.model)


class RetryCause(str, Enum):
    """The evidence for which a run that ran out of memory is tried again."""

    OWN_CAP = "own_cap"  # it hit its own cap
    DEVICE_FULL = "device_full"  # it needed more than was reserved, and there was no more
    PUSHED_OUT = "pushed_out"  # others took what was reserved for it


@dataclass(frozen=True)
class Retry:
    """An attempt that ran out of memory, and the reservation of the next one."""

    cause: RetryCause
    resource: str
    where: str  # the resource in words
    at_bytes: int  # the cap, or what the attempt held, or by how much others grew
    charge_bytes: int  # of the next attempt, on that resource
    fence: int  # of the attempt that ended


@dataclass(frozen=True)
class Grant:
    """A grant: the permission to start and to use the charges, with a fence."""

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
    retry: Optional[Retry] = None  # of an attempt that ran out of memory
