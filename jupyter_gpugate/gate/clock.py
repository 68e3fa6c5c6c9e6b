"""The one clock of the gate: seconds since boot, sleep included."""

from __future__ import annotations

import time
from pathlib import Path


def boot_time() -> float:
    """Seconds on the boot clock: no step of the wall clock moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
