"""Events as a gate journals them, short to write down."""

from __future__ import annotations

from pathlib import Path

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.requests import (
    Basis,
    Enforcement,
    Family,
    Grant,
    Request,
    Setting,
)
from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.core.samples import Device, ProcessKey
from jupyter_gpugate.gate.journal.journal import Journal

BOOT = "3f0e1d2c-0000-4000-8000-000000000001"
GPU = "GPU-aaaa"


class Clocks:
    """A boot clock and a wall clock that stand still until a test moves them."""

    def __init__(self, now: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self.now = now
        self.wall = wall

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


def opened(path: Path, clocks: Clocks | None = None, boot_id: str = BOOT) -> Journal:
    """Open a journal on clocks that only a test moves."""
    clocks = clocks or Clocks()
    return Journal.open(path, boot_id=boot_id, clock=lambda: clocks.now, wall=lambda: clocks.wall)


def family(name: str = "resnet-val", owner: str = "ada") -> Family:
    """Name a body of observations."""
    return Family(owner, name, "hash", 1)


def requested(run_id: str, at: float = 10.0) -> ev.Requested:
    """Ask for a lease."""
    return ev.Requested(at, Request(run_id, family(), Setting(1)), "side")


def granted(run_id: str, fence: int, at: float = 20.0) -> ev.Granted:
    """Grant a lease."""
    charges, basis = {RAM: GB, GPU: 2 * GB}, {RAM: Basis.HINT, GPU: Basis.WATCH}
    grant = Grant(run_id, 1, fence, (GPU,), charges, basis, {GPU: 2 * GB}, Enforcement.ENFORCED)
    return ev.Granted(at, grant)


def started(run_id: str, fence: int, at: float = 30.0, boot_id: str = BOOT) -> ev.Started:
    """Say that a supervisor was told to go."""
    return ev.Started(at, run_id, fence, ProcessKey(4711, 99), boot_id)


def finished(
    run_id: str,
    fence: int,
    at: float = 40.0,
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED,
) -> ev.Finished:
    """Say how an attempt ended."""
    return ev.Finished(at, run_id, fence, EndReport(outcome), 5.0)


def released(run_id: str, at: float = 41.0) -> list[ev.Event]:
    """Say that the memory of a gone run was seen free."""
    return [ev.Released(at, run_id, resource) for resource in (RAM, GPU)]


def completed(run_id: str, fence: int, at: float = 10.0) -> list[ev.Event]:
    """Tell the whole story of a run that completed."""
    return [
        requested(run_id, at),
        granted(run_id, fence, at + 1),
        started(run_id, fence, at + 2),
        finished(run_id, fence, at + 3),
        *released(run_id, at + 4),
    ]


def sedimented(
    peak: int = GB, name: str = "resnet-val", owner: str = "ada", run_id: str = "run"
) -> ev.Sedimented:
    """Add to the calibration."""
    seen = Observation(family(name, owner), Setting(1), RAM, peak, True, 5.0, run_id=run_id)
    return ev.Sedimented(50.0, seen)


def device(uuid: str = GPU, index: int = 0) -> Device:
    """Name a board."""
    return Device(uuid, "H200", 141 * GB, index)
