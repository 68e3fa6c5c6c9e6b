"""Time asleep is not time run: whatever bounds work counts the seconds awake."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import jupyter_gpugate
from jupyter_gpugate.faces import tables
from jupyter_gpugate.gate import clock
from jupyter_gpugate.programs.supervisor import clock as supervisor

PACKAGE = Path(jupyter_gpugate.__file__).parent


@pytest.mark.parametrize("read", [clock.awake_time, supervisor.awake_time, tables.awake_time])
def test_all_sides_read_one_clock_that_stops_in_sleep(read: object) -> None:
    """The gate, a supervisor and a page compare times, so all read the kernel's monotonic clock."""
    assert callable(read)
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert before <= read() <= time.clock_gettime(time.CLOCK_MONOTONIC)


def test_no_part_counts_time_asleep() -> None:
    """No module reads the clock that runs on while the machine is suspended."""
    clock_of_sleepers = re.compile(r"CLOCK_BOOTTIME|/proc/uptime")
    readers = [p.name for p in PACKAGE.rglob("*.py") if clock_of_sleepers.search(p.read_text())]
    assert readers == []
