"""Faults of a GPU reader and its child process."""

from __future__ import annotations

from pathlib import Path

from jupyter_gpugate.core.samples import Fault
from tests.integration.gpu_reading import Reader


def fault_of(reader: Reader) -> Fault:
    """Read, and return what must be wrong with the reader."""
    devices, health, _ = reader.read()
    assert devices == ()
    assert health.present
    assert health.fault is not None
    return health.fault


def child_of(reader: Reader) -> int:
    """Return the pid of the live child."""
    assert reader.reader._child is not None
    return reader.reader._child._process.pid


def is_there(pid: int) -> bool:
    """Tell whether a process runs, zombies not counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def comes_back(reader: Reader) -> None:
    """Assert that devices are read again, at the latest after the longest pause."""
    devices, health, _ = reader.read_until(lambda reading: bool(reading[0]))
    assert health.fault is None
    assert all(device.free_bytes is not None for device in devices)
