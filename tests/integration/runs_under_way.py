"""Runs under way, and what they leave."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import Record
from tests.integration.run_side import GateOfRuns, until


async def begun(side: Launcher, gate: GateOfRuns, body: dict[str, Any], fence: int = 1) -> Record:
    """Submit a run and let it start; its record, once its program lives."""
    run_id, _ = await side.intake.submit(body)
    gate.grant(run_id, fence)
    record = side.records.known(run_id)
    await until(lambda: tree_of(record), "the run's program")
    return record


def tree_of(record: Record) -> list[ProcessKey]:
    """The processes that a run's supervisor has written down."""
    with contextlib.suppress(OSError, ValueError):
        tree = json.loads((record.attempt_path / "tree.json").read_text())
        return [ProcessKey(*pair) for pair in tree["tree"]]
    return []


def written(path: Path) -> str:
    """What a run wrote into a file, up to a full stop; "" before."""
    text = path.read_text() if path.exists() else ""
    return text if text.endswith(".") else ""


# -- torn records ----------------------------------------------------------------------------------


async def cancelled(side: Launcher, run_id: str, name: str) -> None:
    """Cancel an adopted run, which is active under this name; nothing of it is left."""
    record = side.records.known(run_id)
    assert (record.status, record.spec["name"]) == ("active", name)
    told = await side.orders.cancel(run_id)
    assert (told.end, told.survivors) == ("cancelled", [])
    assert not (record.path / "env.json").exists()
