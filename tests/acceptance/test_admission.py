"""What starts, what waits and why, seen through a real server with a stand-in GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.evaluations import MB, evaluation, holds, vram
from tests.fake_nvml import GB, StandIn
from tests.kit.attribution_oracle import Oracle
from tests.kit.real_server import Served, until


def grant_of(server: Served, run_id: str) -> dict[str, Any]:
    """The grant of a run, as the journal has it."""
    story = server.ask("GET", f"/runs/{run_id}/story").json["story"]
    (granted,) = [entry for entry in story if entry["event"] == "granted"]
    grant: dict[str, Any] = granted["grant"] | {"at": granted["at"]}
    return grant


def start_together(server: Served, *submits: Callable[[], str]) -> list[str]:
    """Submit runs while nothing is admitted, so that one tick sees them all."""
    server.ask("POST", "/drain", {"reason": "to submit together"})
    runs = [submit() for submit in submits]
    server.ask("DELETE", "/drain")
    return runs


@pytest.mark.behaviour(20, 21, 24, 25, 29, 30, 34, 40, 45, 50, 123, 128)
@pytest.mark.usefixtures("stand_in")
def test_two_of_three_start_together_and_the_third_by_itself(
    server: Served, oracle: Oracle, tmp_path: Path
) -> None:
    """Measured at 10 GB on 24: of three evals two start in one tick; the third is told need, free,
    floor and what is reserved, and starts by itself when one ends.
    """
    release = tmp_path / "release"
    release.touch()
    source = evaluation(10, release)
    first = server.completed("resnet", source)
    assert set(first["basis"].values()) == {"watch"}
    assert vram(first["charges"]) == 12 * GB  # half the device
    assert vram(first["peaks"]) == 10 * GB
    server.completed("resnet", source)
    release.unlink()
    until(lambda: not any(server.queue()["reservations"].values()), "all is given back")

    runs = start_together(server, *[lambda: server.submit("resnet", source)] * 3)
    waiting = server.waiting(runs[2], "fit")
    grants = [grant_of(server, run) for run in runs[:2]]
    assert grants[0]["at"] == pytest.approx(grants[1]["at"], abs=1e-3)  # one transaction
    assert grants[1]["fence"] == grants[0]["fence"] + 1
    need = vram(grants[0]["charges"])
    assert abs(need - (10 * GB + int(0.07 * 10 * GB) + 64 * MB)) <= 1
    assert set(grants[0]["basis"].values()) == {"calibrated"}
    numbers = waiting["reasons"][0]["numbers"]
    assert numbers["need_bytes"] == need
    assert numbers["floor_bytes"] == 256 * MB
    left = numbers["free_bytes"] - numbers["floor_bytes"] - numbers["reserved_bytes"]
    assert left == numbers["room_bytes"] < need
    for word in ("needs", "free", "kept back", "promised"):
        assert word in waiting["reasons"][0]["message"]

    small = server.submit("small", evaluation(1, release), hints={"vram_bytes": GB})
    server.active(small)  # what does not fit is skipped and blocks nobody
    assert server.run(runs[2])["status"] == "queued"
    oracle.settle()
    release.touch()
    assert [server.ended(run)["end"] for run in (*runs, small)] == ["completed"] * 4


@pytest.mark.behaviour(37, 114, 124)
def test_two_devices_take_one_run_each(
    stand_in: StandIn, start: Callable[..., Served], tmp_path: Path
) -> None:
    """The first two runs are put on different GPUs, see only their own, and hold memory there; what
    is too much for one GPU is refused, though two have it, and what is too much for now waits.
    """
    other = stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    server = start()
    release = tmp_path / "release"
    hints = {"vram_bytes": 10 * GB}
    source = evaluation(10, release) + "print(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    runs = start_together(server, *[lambda: server.submit("eval", source, hints=hints)] * 2)
    rows = [server.active(run) for run in runs]
    placed = [row["devices"][0]["uuid"] for row in rows]
    assert len(set(placed)) == 2
    assert other in placed
    for run, uuid in zip(runs, placed, strict=True):
        until(partial(holds, server, run, uuid, 10 * GB))
        assert sum(stand_in.state().held_by_pid(uuid).values()) == 10 * GB
    never = {"name": "never", "source": "pass", "hints": {"vram_bytes": 25 * GB}}
    assert server.ask("POST", "/runs", never).json["detail"]["limit_bytes"] == 24 * GB
    says = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    later = server.submit("later", says, hints={"vram_bytes": 16 * GB})
    numbers = server.waiting(later, "fit")["reasons"][0]["numbers"]
    assert (numbers["total_bytes"], numbers["free_bytes"]) == (24 * GB, 14 * GB)
    for device in server.queue()["devices"]:
        assert (device["total_bytes"], device["free_bytes"]) == (24 * GB, 14 * GB)
    release.touch()
    runs.append(later)
    placed.append(server.ended(later)["devices"][0]["uuid"])
    for run, uuid in zip(runs, placed, strict=True):
        server.ended(run)
        assert server.output(run).split()[-1] == str(stand_in.state().part(uuid).board)


@pytest.mark.behaviour(32, 33)
@pytest.mark.usefixtures("stand_in")
def test_one_unmeasured_run_settles_on_a_device_at_a_time(server: Served, tmp_path: Path) -> None:
    """A second unmeasured run waits for the first to settle, even while that uses nothing yet."""
    release = tmp_path / "release"
    first = server.submit("first", evaluation(0, release))
    row = server.active(first)
    assert vram(row["charges"]) == 12 * GB
    assert row["basis"][row["devices"][0]["uuid"]] == "watch"
    second = server.submit("second", evaluation(1, release))
    waiting = server.waiting(second, "watch_slot")
    assert first in waiting["reasons"][0]["message"]
    without_gpu = server.submit("third", "pass", gpus=0)
    assert server.ended(without_gpu)["end"] == "completed"
    release.touch()
    assert server.ended(second)["end"] == "completed"


@pytest.mark.behaviour(22, 23)
@pytest.mark.usefixtures("stand_in")
def test_locks_and_exclusive_runs_keep_a_device_to_themselves(
    server: Served, tmp_path: Path
) -> None:
    """A lock admits nothing to its device; an exclusive run waits until it is alone there."""
    hints = {"vram_bytes": GB}
    release = tmp_path / "release"
    assert server.ask("POST", "/lock", {"resource": "0", "seconds": 600}).status == 200
    running = server.submit("shared", evaluation(1, release), hints=hints)
    server.waiting(running, "lock")
    assert server.ended(server.submit("ram", "pass", gpus=0))["end"] == "completed"
    assert server.ask("DELETE", "/lock?resource=0").status == 200
    server.active(running)

    alone = server.submit("alone", evaluation(1, release), hints=hints, exclusive=True)
    waiting = server.waiting(alone, "exclusive")
    assert running in waiting["reasons"][0]["message"]
    later = server.submit("later", evaluation(1, release), hints=hints)
    server.waiting(later, "exclusive")
    release.touch()
    server.ended(running)
    assert server.ended(alone)["end"] == "completed"
    assert server.ended(later)["end"] == "completed"
    order = [grant_of(server, run)["fence"] for run in (running, alone, later)]
    assert order == sorted(order)


@pytest.mark.behaviour(36, 132)
@pytest.mark.usefixtures("stand_in")
def test_a_large_run_is_not_passed_for_ever(start: Callable[..., Served], tmp_path: Path) -> None:
    """Once it has waited head_after_s, and not before, room is set aside for it: of the small runs
    that keep coming none starts before it that would take that room.
    """
    head_after_s = 2.0
    server = start(f"--GpuGate.head_after_s={head_after_s}")
    hints = {"vram_bytes": 9 * GB}
    release = tmp_path / "release"
    source = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.05)"
    server.active(server.submit("small", source, hints=hints))
    large = server.submit("large", "pass", hints={"vram_bytes": 18 * GB})
    server.waiting(large, "fit")
    shown = until(lambda: (q := server.queue())["earmarks"] and q, "room is set aside")
    (mark,) = shown["earmarks"]
    assert (mark["run_id"], shown["queued"][0]["run_id"]) == (large, large)
    assert shown["queued"][0]["waited_s"] >= head_after_s
    later = [server.submit("small", "pass", hints=hints) for _ in range(2)]
    for run in later:
        numbers = server.waiting(run, "fit")["reasons"][0]["numbers"]
        assert numbers["earmarked_bytes"] == vram(mark["bytes_by_resource"]) > 18 * GB
        # But for that there is room for it.
        assert numbers["need_bytes"] <= numbers["room_bytes"] + numbers["earmarked_bytes"]
    release.touch()
    assert [server.ended(run)["end"] for run in (large, *later)] == ["completed"] * 3
    order = [grant_of(server, run)["fence"] for run in (large, *later)]
    assert order == sorted(order)


@pytest.mark.behaviour(27)
def test_without_a_gpu_ram_alone_gates(server: Served) -> None:
    """On a machine without a GPU there is no GPU dimension: one is refused, none is the default.

    A mask hides devices only from a run that asked for none.
    """
    snapshot = server.queue()
    assert snapshot["devices"] == []
    assert list(snapshot["attribution"]["resources"]) == ["ram"]
    mask = "import os\nprint(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    row = server.completed("plain", mask)
    assert list(row["charges"]) == ["ram"]
    assert server.output(row["run_id"]).strip() == repr(os.environ.get("CUDA_VISIBLE_DEVICES"))
    row = server.completed("none", mask, gpus=0)
    assert server.output(row["run_id"]).strip() == "''"
    answer = server.ask("POST", "/runs", {"name": "gpu", "source": "pass", "gpus": 1})
    assert (answer.status, answer.json["detail"]["field"]) == (400, "gpus")


@pytest.mark.behaviour(64, 65)
def test_floors_are_never_given_away(server: Served, stand_in: StandIn) -> None:
    """2 GB or 4 % of RAM and 256 MB of a GPU stay free; the GPU's floor follows others' growth."""
    snapshot = server.queue()
    uuid = stand_in.uuid(0)
    total = server.ask("GET", "/machine").json["ram"]["total_bytes"]
    assert snapshot["floors"]["ram"] == max(2 * GB, int(0.04 * total))
    assert snapshot["floors"][uuid] == 256 * MB
    room = snapshot["free_bytes"][uuid] - 256 * MB
    source = evaluation(2)
    server.completed("sized", source)
    estimate = server.ask("GET", "/estimate?name=sized").json
    need = {t["resource"]: t["need_bytes"] for t in estimate["terms"]}
    assert estimate["max_workers"] >= 1
    assert need["vram"] * estimate["max_workers"] <= room + need["vram"]
    with subprocess.Popen(["sleep", "1000"]) as outsider:
        stand_in.hold(outsider.pid, 0, 2 * GB)
        until(lambda: server.queue()["floors"][uuid] == 2 * GB, "the floor follows others' rise")
        stand_in.hold(outsider.pid, 0, 12 * GB)
        until(lambda: server.queue()["floors"][uuid] == int(0.1 * 24 * GB), "a tenth at most")
        outsider.kill()


@pytest.mark.behaviour(70, 71)
def test_a_cap_and_its_enforcement_are_shown_as_they_are(server: Served, stand_in: StandIn) -> None:
    """The cap is the charge on the placed device, where that rests on a known need, and for a first
    run all the room; nothing claims to be enforced that is not.
    """
    row = server.completed("plain", "import os\nprint(os.environ['GPUGATE_CAPS'])")
    uuid = stand_in.uuid(0)
    assert row["caps"] == {uuid: 24 * GB - 256 * MB}
    hinted = server.completed("hinted", "pass", hints={"vram_bytes": GB})
    assert hinted["caps"] == {uuid: hinted["charges"][uuid]}
    assert row["enforcement"] == "none"
    source = "import os\nif False:\n    import torch\nprint(os.environ['GPUGATE_CAPS'])\n"
    row = server.completed("torch", source)
    assert row["enforcement"] == "enforced"
    assert str(row["caps"][uuid]) in server.output(row["run_id"])


def test_a_gpu_that_was_taken_out_for_good_can_be_forgotten(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """A missing device stays on the list until somebody says that it will not come back."""
    server = start()
    uuid = stand_in.uuid(0)
    assert server.ask("DELETE", f"/machine?forget={uuid}").status == 409
    server.kill()
    stand_in.library.unlink()
    server = start()
    (device,) = server.queue()["devices"]
    assert device["state"] == "missing"
    assert server.ask("DELETE", "/machine?forget=0").json == {"forgotten": uuid}
    assert server.queue()["devices"] == []
    assert list(server.completed("plain", "pass")["charges"]) == ["ram"]
