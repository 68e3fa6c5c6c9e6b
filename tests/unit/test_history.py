"""How much of what was read is kept, in memory and on disk."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate.journal.history import DAYS_KEPT, KEPT, History, write
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.port import SampleRow
from tests.kit.core_builders import sample

DAY = 86400.0
NOON = 1_790_000_000.0


def row(at: float) -> SampleRow:
    """A reading at a time of the wall clock."""
    return SampleRow(1, at, 0, 0, {}, {}, {}, {})


@pytest.mark.behaviour(73)
def test_the_last_ten_minutes_are_kept(tmp_path: Path) -> None:
    """Of more than 600 readings the newest 600 are there; one that is no new one does not count."""
    gate = SimpleNamespace(state=GateState(), sample=sample())
    history = History(cast("GateLoop", gate), tmp_path / "samples")
    for second in range(KEPT + 50):
        gate.sample = sample(float(second))
        history.look()
        history.look()
    kept = history.since(0)
    assert (KEPT, len(kept.samples), kept.last) == (600, 600, 650)
    assert [one.seq for one in kept.samples] == list(range(51, 651))
    assert [one.seq for one in history.since(648).samples] == [649, 650]
    assert len(history.since(999).samples) == 600
    asyncio.run(history.close())
    assert not (tmp_path / "samples").exists()


@pytest.mark.behaviour(73)
def test_seven_days_are_kept(tmp_path: Path) -> None:
    """Each day has its log; with an eighth one the oldest goes, and nothing else in the folder."""
    logs = tmp_path / "samples"
    logs.mkdir()
    (logs / "notes.txt").write_text("a person's own")
    for day in range(10):
        write(logs, [row(NOON + day * DAY), row(NOON + day * DAY + 1)])
    found = sorted(logs.glob("*.jsonl"))
    assert len(found) == DAYS_KEPT == 7
    assert [len(path.read_text().splitlines()) for path in found] == 7 * [2]
    assert json.loads(found[-1].read_text().splitlines()[0])["at"] == NOON + 9 * DAY
    assert (logs / "notes.txt").exists()


def test_rows_of_two_days_go_to_two_logs(tmp_path: Path) -> None:
    """What was read before midnight lies with its own day, though written after it."""
    write(tmp_path / "samples", [row(NOON), row(NOON + DAY)])
    assert len(list((tmp_path / "samples").glob("*.jsonl"))) == 2
