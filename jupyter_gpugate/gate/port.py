"""The port: everything that a server may ask of a gate in any process.

Every answer is a value that no later tick changes.  `version`, `follow` and `figures` answer at
once, from the gate's last report to this process; any other call may wait for another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jupyter_gpugate.core.codec import JsonObject
from jupyter_gpugate.core.endings import End
from jupyter_gpugate.core.evidence import Track
from jupyter_gpugate.core.explaining.rows import (
    ByResource,
    DeviceName,
    Forecast,
    QueuedRow,
    RunningRow,
    Snapshot,
)
from jupyter_gpugate.core.reports import Phase, Status
from jupyter_gpugate.core.requests import Grant, Request
from jupyter_gpugate.core.samples import Accelerator, ProcessKey, RamReading
from jupyter_gpugate.proc import Caller

#: An event of a run's story: the wall time, the kind, and the fields that this kind has.
StoryEvent = JsonObject


class Rejected(Exception):
    """An order that the gate does not carry out, and why."""

    def __init__(self, error: str, message: str, /, **detail: Any) -> None:
        super().__init__(message)
        self.error = error  # "bad_request", or "state" where the same order may succeed later
        self.detail = detail


class Unrecorded(Exception):
    """The gate could not read or write its journal, so that nothing was done."""


@dataclass(frozen=True)
class Standing:
    """The status of an unfinished run, with the phase of its attempt if it is active."""

    name: str
    status: Status
    phase: Phase | None = None
    attempt: int = 0


@dataclass(frozen=True)
class GateEnd:
    """The end of a run as recorded by the gate."""

    end: End
    attempt: int


@dataclass(frozen=True)
class Change:
    """One run at the gate after a tick that changed it."""

    run_id: str
    standing: Standing | None  # None: the gate has it no more
    waits_for: str = ""  # the kind of its first reason, while it is queued
    ended: GateEnd | None = None


Listener = Callable[[Sequence[Change]], None]


@dataclass(frozen=True)
class RunView:
    """One run at the gate; at most one row, since it is queued, active or neither."""

    queued: QueuedRow | None
    running: RunningRow | None
    devices: tuple[DeviceName, ...]  # those that were asked for, by name
    elsewhere: tuple[DeviceName, ...]  # those that it uses without having been given them
    visible: str  # the choice of devices in words
    advice: tuple[str, ...]


@dataclass(frozen=True)
class Decided:
    """A snapshot, all that its decisions rested on, and the grants among them."""

    snapshot: Snapshot
    inputs: JsonObject  # read back by `replay`
    grants: tuple[Grant, ...]


@dataclass(frozen=True)
class Machine:
    """The machine as far as the gate measures it, and the accelerators that it does not manage."""

    snapshot: Snapshot
    ram: RamReading | None
    unmanaged: tuple[Accelerator, ...]


@dataclass(frozen=True)
class SampleRow:
    """One reading of the machine, per resource."""

    seq: int
    at: float
    running: int
    queued: int
    free_bytes: ByResource
    used_total: ByResource
    attributed: ByResource
    external: ByResource


@dataclass(frozen=True)
class Samples:
    """The newest readings, oldest first."""

    samples: tuple[SampleRow, ...]
    last: int


@dataclass(frozen=True)
class LockRequest:
    """A device, or the whole machine, to be used by hand."""

    resource: str  # a UUID, the beginning of one, a number, or empty for the machine
    seconds: float
    kernel: ProcessKey | None = None  # the lock ends with it
    visible: str | None = None  # the caller's device mask


@dataclass(frozen=True)
class ActiveRun:
    """A run on a locked resource."""

    run_id: str
    name: str


@dataclass(frozen=True)
class Locked:
    """A lock, and its effect on the runs of this gate."""

    locked: str
    for_s: float
    name: str
    closes: tuple[str, ...] = field(
        metadata={"description": "The resources where no run of this gate starts."}
    )
    opened: tuple[str, ...] = field(
        metadata={"description": "The locks that this one replaced, in words."}
    )
    at_work: tuple[ActiveRun, ...] = field(
        metadata={"description": "Runs that are active there; they go on."}
    )


@dataclass(frozen=True)
class Unlocked:
    """A resource whose lock was released."""

    unlocked: str
    name: str
    was_locked: bool


@dataclass(frozen=True)
class Totals:
    """Counts since the gate started."""

    submitted: int
    admitted: int
    evicted: int
    refused: Mapping[str, int]


@dataclass(frozen=True)
class Figures:
    """The newest snapshot and the counts, for monitoring."""

    snapshot: Snapshot
    totals: Totals


class Gate(Protocol):
    """A gate, as one of its users may use it."""

    def for_caller(self, caller: Caller) -> Gate:
        """The same gate, for whoever makes one request."""

    @property
    def version(self) -> int:
        """Return the newest tick that was reported to this process."""

    def follow(self, listener: Listener) -> Mapping[str, Standing]:
        """Call the listener after every tick; return the unfinished runs as they are now."""

    def figures(self) -> Figures | None:
        """Return the newest figures that were reported to this process."""

    async def changed(self, version: int, timeout_s: float) -> int:
        """Wait until a tick later than ``version``, at most ``timeout_s``; the newest version."""

    # -- answers --------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        """Return active runs, waiting runs with their reasons, and the holders of memory."""

    async def decided(self) -> Decided:
        """The snapshot, with all that its decisions rested on."""

    async def run(self, request: Request, devices: Sequence[str]) -> RunView:
        """One run, with the names of devices and the words for its choice of them."""

    async def story(self, run_id: str) -> list[StoryEvent]:
        """The events of one run, in order, with their wall times."""

    async def estimate(self, request: Request) -> Forecast:
        """Return the need of a run, and whether it would start now."""

    async def machine(self) -> Machine:
        """The machine."""

    async def samples(self, since: int) -> Samples:
        """The newest readings, or those after an earlier answer."""

    async def calibrations(self) -> Mapping[str, tuple[Track, ...]]:
        """Return the observations of the caller's runs, by their names."""

    # -- orders; each is in the journal when it returns -------------------------------------------

    async def lock(self, wanted: LockRequest) -> Locked:
        """Keep runs off a device or the machine; the caller's other locks end."""

    async def unlock(self, resource: str) -> Unlocked:
        """End a lock; without a resource, a lock of the caller."""

    async def drain(self, reason: str) -> tuple[str, ...]:
        """Start no more runs; return those that are active."""

    async def end_drain(self) -> None:
        """Start runs again."""

    async def forget_device(self, name: str) -> str:
        """Forget a missing device; return its UUID."""

    async def forget_calibration(self, name: str) -> None:
        """Forget the observations of the caller's runs of a name."""
