"""Messages of a supervisor to a gate that is away."""

from __future__ import annotations

import threading
from pathlib import Path

from jupyter_gpugate.programs.supervisor.gate_link import GateLink


def test_a_gate_that_is_away_is_asked_less_and_less_often(tmp_path: Path) -> None:
    """Failures double the wait up to five seconds, with jitter; an answer ends it."""
    answered = threading.Event()
    link = GateLink(str(tmp_path / "nobody.sock"), answered.set)
    now, waits = 0.0, []
    for _ in range(7):
        assert link.ask("heartbeat", dict, now)
        assert not link.ask("heartbeat", dict, now)  # one at a time
        assert answered.wait(60)
        answered.clear()
        assert link.take(now) == ("heartbeat", 0, {})
        assert not link.ask("heartbeat", dict, now)
        waits.append(link._not_before - now)
        now = link._not_before
    limits = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
