"""Runs of which nothing is known, through a real server with stand-in GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.evaluations import MB, evaluation, vram
from tests.fake_nvml import GB, StandIn
from tests.kit.real_server import Served, until
from tests.kit.torch_with_memory import install


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


def waits_for(path: Path) -> str:
    """A line of a cell that goes on once a file appears."""
    return f"while not os.path.exists({str(path)!r}): time.sleep(0.05)\n"


@pytest.mark.behaviour(162)
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_first_run_is_not_ended_by_its_cap_on_an_empty_gpu(
    server: Served, tmp_path: Path, workers: int
) -> None:
    """A torch cell that needs 15 of 24 GB, all of it in one worker, completes: it is charged half
    of the GPU, and capped at all that nobody was promised. What it takes beyond its charge is
    charged at once.
    """
    release = tmp_path / "release"
    cell = install(tmp_path / "library") + "if worker == 0: torch.cuda.allocate(15 << 30)\n"
    run = server.submit("large", cell + waits_for(release), workers=workers)
    row = server.active(run)
    assert row["enforcement"] == "enforced"
    assert vram(row["caps"]) == 24 * GB - 256 * MB
    until(lambda: vram(server.run(run)["charges"]) == int(1.25 * 15 * GB), "it is charged for it")
    release.touch()
    ended = server.ended(run)
    assert (ended["end"], vram(ended["peaks"])) == ("completed", 15 * GB), server.output(run)


@pytest.mark.behaviour(70, 162)
@pytest.mark.usefixtures("stand_in")
def test_a_first_run_makes_way_for_a_neighbour_and_spreads_again(
    server: Served, tmp_path: Path
) -> None:
    """A neighbour's charge is taken out of its cap, in its own process as well, and comes back."""
    steps = [tmp_path / name for name in ("neighbour", "first")]
    cell = install(tmp_path / "library") + (
        "torch.cuda.allocate(1 << 30)\n"
        "for change in range(2):\n"
        "    before = torch.cuda.limit(0)\n"
        "    while torch.cuda.limit(0) == before: time.sleep(0.05)\n"
        "    print(int(torch.cuda.limit(0)) >> 20)\n"
    )
    cell += waits_for(steps[1])
    first = server.submit("first", cell)
    server.active(first)
    neighbour = server.submit(
        "second", evaluation(2, steps[0]), hints={"vram_bytes": 4 * GB, "ram_bytes": GB}
    )
    promised = vram(server.active(neighbour)["charges"])
    whole = 24 * GB - 256 * MB
    until(lambda: vram(server.run(first)["caps"]) == whole - promised, "its cap makes way")
    until(lambda: str((whole - promised) >> 20) in server.output(first), "its torch is told")
    steps[0].touch()
    server.ended(neighbour)
    until(lambda: str(whole >> 20) in server.output(first).split()[-1], "its torch is told again")
    assert vram(server.run(first)["caps"]) == whole
    steps[1].touch()
    assert server.ended(first)["end"] == "completed"
