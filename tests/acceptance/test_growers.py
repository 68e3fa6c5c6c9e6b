"""Runs whose device filled up: their ends say who grew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.external_processes import external_process
from tests.kit.real_server import Served, until


def grows(first: int, then: int, go_on: Path) -> str:
    """A program that holds some GB of its device, waits for a file, and takes more."""
    return (
        "import os, runpy, time\n"
        f"hold = runpy.run_path({str(HOLDER)!r})['hold_gpu']\n"
        f"hold(0, {first * GB})\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.05)\n"
        f"hold(0, {then * GB})\n"
        "raise SystemExit('a fault of its own')\n"
    )


@pytest.mark.parametrize("slowly", [True, False])
def test_a_run_whose_device_filled_up_is_told_who_grew(
    server: Served, stand_in: StandIn, tmp_path: Path, *, slowly: bool
) -> None:
    """Whoever took the memory that a failed run had been promised is named in its end."""
    go_on = tmp_path / "go on"
    uuid = stand_in.uuid(0)
    with external_process() as idle, external_process() as greedy:
        stand_in.hold(idle, uuid, 2 * GB)
        until(lambda: server.queue()["free_bytes"].get(uuid) == 22 * GB, "the idle one is seen")
        run_id = server.submit("victim", grows(5, 15, go_on), hints={"vram_bytes": 15 * GB})
        server.active(run_id)
        until(lambda: server.run(run_id)["held"].get(uuid) == 5 * GB, "it holds its first part")
        stand_in.hold(greedy, uuid, 12 * GB)
        if slowly:
            until(lambda: server.queue()["free_bytes"][uuid] == 5 * GB, "the growth is seen")
        go_on.touch()
        row = server.ended(run_id)
        assert row["end"] == "failed"
        (told,) = [line for line in row["warnings"] if "grew" in line]
        assert f"pid {greedy} of " in told
        assert "12,288 MB" in told
        assert "GPU 0 (NVIDIA L4)" in told
        assert str(idle) not in told


def test_a_run_that_failed_with_room_around_it_blames_nobody(
    server: Served, stand_in: StandIn, tmp_path: Path
) -> None:
    """Others may grow as long as what the run was promised is there."""
    go_on = tmp_path / "go on"
    uuid = stand_in.uuid(0)
    with external_process() as other:
        run_id = server.submit("clumsy", grows(2, 4, go_on), hints={"vram_bytes": 6 * GB})
        server.active(run_id)
        until(lambda: server.run(run_id)["held"].get(uuid) == 2 * GB, "it holds its first part")
        stand_in.hold(other, uuid, 10 * GB)
        until(lambda: server.queue()["free_bytes"][uuid] == 12 * GB, "the growth is seen")
        go_on.touch()
        assert server.ended(run_id)["warnings"] == []
