"""How soon ticks follow one another."""

from __future__ import annotations

import pytest

from jupyter_gpugate.gate.pace import BURST, COALESCE_S, Pace


def test_a_burst_is_taken_at_once_and_then_paced() -> None:
    """After a quiet while several ticks may follow at once; the next one waits for its share."""
    pace = Pace()
    assert [pace.pause(100.0) for _ in range(BURST)] == [0.0] * BURST
    assert pace.pause(100.0) == pytest.approx(COALESCE_S)


def test_in_the_long_run_there_is_one_tick_per_share_of_time() -> None:
    """However many are asked for, those that have waited their turn come no closer together."""
    pace, now = Pace(), 100.0
    ticks = []
    for _ in range(10 * BURST):
        now += pace.pause(now)
        ticks.append(now)
    assert ticks[-1] - ticks[0] == pytest.approx(9 * BURST * COALESCE_S)
    assert pace.pause(now + BURST * COALESCE_S) == 0.0
