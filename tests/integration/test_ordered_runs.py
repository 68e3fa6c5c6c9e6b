"""Runs that start after others, on the run side: the gate's grant alone does not start them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import Record
from tests.integration.run_side import GateOfRuns, program, run_side, served, until


@pytest.fixture
def side(gate: GateOfRuns, tmp_path: Path) -> Launcher:
    """A run side, its gate still silent."""
    return run_side(gate.path, tmp_path)


async def submitted(side: Launcher, code: str, **fields: Any) -> Record:
    """Submit a program."""
    run_id, _ = await side.intake.submit(program(code, **fields))
    return side.records.known(run_id)


@pytest.mark.parametrize(
    ("code", "end"), [("pass", "completed"), ("raise SystemExit(3)", "failed")]
)
def test_a_grant_starts_a_run_only_once_the_one_before_has_completed(
    gate: GateOfRuns, side: Launcher, code: str, end: str
) -> None:
    """A gate that has lost its journal grants it too early: it waits, and then runs or is over."""

    async def test() -> None:
        first = await submitted(side, code)
        second = await submitted(side, "print('ran')", after=[first.run_id])
        gate.grant(second.run_id, fence=1)
        await until(lambda: second.life.fence == 1, "the grant is there")
        assert second.life.supervisor is None
        gate.grant(first.run_id, fence=2)
        await second.end.wait()
        assert first.summary["end"] == end
        if end == "completed":
            assert second.summary["end"] == "completed"
            assert first.summary["ended"] <= second.summary["ended"]
        else:
            assert second.summary["end"] == "rejected"
            assert second.summary["reason"] == f"after: {first.run_id} failed"
            (declined,) = gate.all("decline")
            assert (declined["fence"], declined["end"]) == (1, "rejected")

    served(side, test)


def test_runs_of_a_group_that_are_submitted_at_once_agree(gate: GateOfRuns, side: Launcher) -> None:
    """The second of two submits is refused for another limit while the first is under way."""

    async def test() -> None:
        group = {"group": "g20260914-101502-kqzfa"}
        groups = side.inventory.groups
        groups.begin("a", {**group, "at_most": 2})
        with pytest.raises(Exception, match=r"at_most: the group .* has 2"):
            groups.begin("b", {**group, "at_most": 1})
        groups.finish("a")
        groups.begin("b", {**group, "at_most": 1})

    served(side, test)
    assert gate.all("request") == []
