"""Runs of which nothing is known, through a real server with stand-in GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.evaluations import evaluation
from tests.fake_nvml import GB, StandIn
from tests.kit.real_server import Served


@pytest.mark.behaviour(165)
def test_an_unknown_run_starts_at_once_on_every_empty_gpu(
    stand_in: StandIn, start: Callable[..., Served], tmp_path: Path
) -> None:
    """With four GPUs four unknown runs start: together they take half of the RAM, not all of it."""
    for _ in range(3):
        stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    server = start()
    total = server.ask("GET", "/machine").json["ram"]["total_bytes"]
    release = tmp_path / "release"
    runs = [server.submit(f"new-{n}", evaluation(1, release)) for n in range(4)]
    rows = [server.active(run) for run in runs]
    assert len({row["devices"][0]["uuid"] for row in rows}) == 4
    for row in rows:
        assert set(row["basis"].values()) == {"watch"}
        assert row["charges"]["ram"] == total // 8
    release.touch()
    assert [server.ended(run)["end"] for run in runs] == ["completed"] * 4
