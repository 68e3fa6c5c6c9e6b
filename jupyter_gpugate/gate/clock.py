"""The one clock of the gate: seconds since boot, without those that the machine slept."""

from __future__ import annotations

import time


def awake_time() -> float:
    """Seconds that the machine has been awake since boot; no step of the wall clock moves it.

    All processes of a boot read the same value.  A suspended machine runs nothing, so a wait, a
    limit or a lease that time asleep could use up would end work that never had its chance.
    """
    return time.monotonic()
