"""Limits the pace of ticks that events request."""

from __future__ import annotations

#: In the long run one tick in so many seconds: what comes closer together shares one.
COALESCE_S = 0.05
#: So many are taken at once after a quiet while: more than a run's start and end call for.
BURST = 10


class Pace:
    """Lets a burst through at once and holds back what would go on like that."""

    def __init__(self) -> None:
        self._used_until = 0.0  # what the ticks so far have used up of the long run

    def pause(self, now: float) -> float:
        """Seconds that the next tick, which is asked for at ``now``, has to wait."""
        self._used_until = max(self._used_until, now) + COALESCE_S
        return max(0.0, self._used_until - now - BURST * COALESCE_S)
