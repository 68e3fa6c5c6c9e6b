"""Journals on a real disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.state import GateState

DAY = 86_400.0


def states_of(events: list[ev.Event]) -> GateState:
    """Fold events as a starting gate does."""
    return apply(GateState(), events)


def rows_in(path: Path) -> int:
    """Count the events in a file, without the journal's own code."""
    with closing(sqlite3.connect(path)) as connection:
        count: int = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    return count
