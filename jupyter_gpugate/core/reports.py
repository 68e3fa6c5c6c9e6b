"""Reports of a run's supervisor: its phase, its memory, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, Optional

#: The status of a run, and the names of `RunEnd`, as they are in JSON.
Status = Literal["queued", "active", "ended"]
EndName = Literal["completed", "failed", "cancelled", "expired", "rejected", "oom", "lost"]


#: The reason of a service that was ready and was stopped: it has completed.
STOPPED: Final = "stopped"


class Phase(str, Enum):
    """The phase of a live attempt."""

    GRANTED = "granted"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class AttemptOutcome(str, Enum):
    """The end of an attempt."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    OOM = "oom"
    EVICTED = "evicted"
    LOST = "lost"
    NOT_STARTED = "not_started"


class RunEnd(str, Enum):
    """The end of a run, which never changes."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"
    OOM = "oom"
    LOST = "lost"


@dataclass(frozen=True)
class RunReport:
    """A supervisor's measurements of its own run; None or absent: not measurable."""

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

    def merged(self, later: Peaks) -> Peaks:
        """The greater of two reports, number by number; the later one says what is covered."""
        ram = [p for p in (self.ram_bytes, later.ram_bytes) if p is not None]
        vram = dict(self.vram_bytes)
        for uuid, peak in later.vram_bytes.items():
            vram[uuid] = max(peak, vram.get(uuid, 0))
        return Peaks(
            ram_bytes=max(ram) if ram else None,
            ram_meter=later.ram_meter or self.ram_meter,
            ram_covered=later.ram_covered,
            vram_bytes=vram,
            vram_covered=later.vram_covered,
        )


@dataclass(frozen=True)
class EndReport:
    """The end of a run as its supervisor reports it."""

    outcome: AttemptOutcome
    reason: str = ""  # "time_limit", "exit 3", "signal 9", ...
    exit_code: Optional[int] = None
    episodes_done: int = 0
    episodes_resumed: int = 0  # that earlier attempts have kept
    peaks: Peaks = Peaks()
    duration_s: Optional[float] = None
    oom_resource: Optional[str] = None  # "vram", "ram" or "shm" when the evidence says so
    oom_evidence: str = ""  # "own_cap", "device_full", "host_oom_killer", "shm_full"
    ready: Optional[bool] = None  # of a service: whether it had become ready
