"""The clock of limits and graces: it stops while the machine sleeps.

Wall-clock time is recorded for people only.
"""

from __future__ import annotations

import time


def awake_time() -> float:
    """Return the seconds since boot, without those that the machine slept: no run works then."""
    return time.monotonic()
