"""Decides whether a GPU reader misses devices, and when to start a second one.

A session with the driver can lose boards: it lists them and reads none, or lists none, while a
process that opens the library anew sees them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_gpugate.core.samples import DeviceReading, Fault, ReaderHealth

#: A short gap may end by itself; starting a process costs more.
FIRST_LOOK_S = 3.0
LONGEST_LOOK_S = 600.0
#: Faults of the driver or the board that a new session would also have.
LASTING = frozenset({"nvml-3", "bad_rows"})


def clear(devices: Iterable[DeviceReading]) -> set[str]:
    """Return the devices of which a new session could show no more."""
    return {
        reading.device.uuid
        for reading in devices
        if not _is_mendable(reading.fault) and not _is_mendable(reading.processes_fault)
    }


def _is_mendable(fault: Fault | None) -> bool:
    return fault is not None and fault.code not in LASTING


class MissedDevices:
    """Tracks how long a reader has missed something, and the pauses between attempts."""

    def __init__(self) -> None:
        self._boards: set[str] = set()  # that have ever been seen
        self._due_at: float | None = None
        self._pause_s = FIRST_LOOK_S

    def misses(self, devices: Iterable[DeviceReading], health: ReaderHealth) -> bool:
        """Return whether a new session might see more than this answer shows."""
        readings = list(devices)
        listed = {reading.device.uuid for reading in readings}
        self._boards |= {r.device.uuid for r in readings if r.device.parent is None}
        opened_in_vain = "driver" in health.detail and not readings
        nameless = any(what.startswith("device ") for what in health.detail)
        faulty = len(clear(readings)) < len(readings)
        return faulty or nameless or opened_in_vain or bool(self._boards - listed)

    def look_is_due(self, *, misses: bool, now: float) -> bool:
        """Return whether to start a second reader now; pauses grow until nothing is missing."""
        if not misses:
            self._due_at, self._pause_s = None, FIRST_LOOK_S
        elif self._due_at is None:
            self._due_at = now + FIRST_LOOK_S
        elif now >= self._due_at:
            self._pause_s = min(LONGEST_LOOK_S, 2 * self._pause_s)
            self._due_at = now + self._pause_s
            return True
        return False
