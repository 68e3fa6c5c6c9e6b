"""Runs admitted by hints, declared numbers and earlier measurements, through a real server."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.evaluations import MB, evaluation, vram
from tests.fake_nvml import GB, StandIn
from tests.kit.real_server import Places, Served


@pytest.mark.behaviour(31, 38, 61, 62, 53, 54)
@pytest.mark.usefixtures("stand_in")
def test_hints_stand_until_a_measurement_replaces_them(server: Served) -> None:
    """Hints gate GPU memory and RAM alike, survive edits, and give way to what was measured; an
    edit, but not a comment, makes the numbers unknown again.
    """
    hints = {"vram_bytes": 3 * GB, "ram_bytes": GB}
    source = evaluation(2)
    row = server.completed("hinted", source, hints=hints)
    assert set(row["basis"].values()) == {"hint"}
    assert vram(row["charges"]) == 3 * GB + int(0.1 * 3 * GB) + 1 + 64 * MB
    assert row["charges"]["ram"] == GB + 256 * MB

    commented = source + "# a comment\n"
    answer = server.ask(
        "POST", "/estimate", {"name": "hinted", "source": commented, "hints": hints}
    )
    origins = {term["resource"]: term["origin"] for term in answer.json["terms"]}
    assert origins == {"vram": "measured", "ram": "measured"}

    edited = source + "x = 1\n"
    answer = server.ask("POST", "/estimate", {"name": "hinted", "source": edited, "hints": hints})
    origins = {term["resource"]: term["origin"] for term in answer.json["terms"]}
    assert origins == {"vram": "hint", "ram": "hint"}

    half = {"name": "hinted", "source": edited, "hints": {"ram_bytes": GB}}
    answer = server.ask("POST", "/estimate", half).json
    assert answer["total_bytes"] == {"ram": GB + 256 * MB, "vram": None}
    assert answer["known_bytes"]["vram"] == 0
    assert answer["missing"] == ["vram:run"]
    assert answer["max_workers"] is None


@pytest.mark.behaviour(26, 28, 119)
def test_a_device_that_cannot_be_measured_goes_by_declared_numbers(
    stand_in: StandIn, start: Callable[..., Served], tmp_path: Path
) -> None:
    """Unmeasurable is unknown, not 0 and not unlimited; with usable_vram_mb, sums of hints gate."""
    uuid = stand_in.uuid(0)
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 3)
    server = start(f"--GpuGate.usable_vram_mb={uuid}=20480")
    (device,) = server.queue()["devices"]
    assert device["free_bytes"] is None
    release = tmp_path / "release"
    hints = {"vram_bytes": 8 * GB}
    runs = [server.submit(f"r{n}", evaluation(0, release), hints=hints) for n in range(3)]
    assert server.active(runs[0])["basis"][uuid] == "declared"
    server.active(runs[1])
    server.waiting(runs[2], "fit")
    silent = server.submit("silent", evaluation(0, release))
    server.waiting(silent, "unmeasured")
    assert server.queue()["declared"][uuid]["usable"] == 20480 * MB
    release.touch()
    server.ended(runs[2])


@pytest.mark.behaviour(60)
def test_workers_that_were_never_tried_are_scaled_and_then_fitted(server: Served) -> None:
    """One worker count scales in proportion; two are fitted, and the slope is never negative."""
    source = "x = bytearray(150 << 20)\nfor e in episodes:\n    pass\n"
    server.completed("scale", source, episodes=4, workers=1)
    ram = {
        t["origin"]: t for t in server.ask("GET", "/estimate?name=scale&workers=3").json["terms"]
    }
    assert list(ram) == ["scaled"]
    server.completed("scale", source, episodes=4, workers=2)
    terms = server.ask("GET", "/estimate?name=scale&workers=3").json["terms"]
    assert [t["origin"] for t in terms] == ["fitted"]
    assert "workers 1, 2" in terms[0]["note"]
    two = server.ask("GET", "/estimate?name=scale&workers=2").json["terms"][0]
    assert two["origin"] == "measured"
    assert terms[0]["need_bytes"] >= two["need_bytes"]


def as_without_ram(journal: Path) -> None:
    """Make the calibration what a gate wrote that knew GPU memory alone, and less of each run."""
    kept = ("family", "setting", "resource", "peak_bytes", "complete", "at")
    with closing(sqlite3.connect(journal)) as database, database:
        rows = database.execute("SELECT id, data FROM observations").fetchall()
        for row, data in ((row, json.loads(data)) for row, data in rows):
            if data["resource"] == "ram":
                database.execute("DELETE FROM observations WHERE id = ?", (row,))
            older = json.dumps({field: data[field] for field in kept})
            database.execute("UPDATE observations SET data = ? WHERE id = ?", (older, row))


@pytest.mark.behaviour(55)
@pytest.mark.usefixtures("stand_in")
def test_what_an_older_calibration_lacks_starts_empty(
    places: Places, start: Callable[..., Served]
) -> None:
    """Observations of GPU memory alone stay measured; RAM beside them is unknown, not 0."""
    first = start()
    first.completed("resnet", evaluation(2, ram_mb=100))
    first.stop()
    as_without_ram(places.root / "state" / "gpugate" / "gate.sqlite")

    second = start()
    answer = second.ask("GET", "/estimate?name=resnet").json
    terms = {term["resource"]: term for term in answer["terms"]}
    assert (terms["vram"]["origin"], terms["vram"]["peak_bytes"]) == ("measured", 2 * GB)
    assert terms["ram"]["need_bytes"] is None
    assert answer["missing"] == ["ram:run"]
    again = second.completed("resnet", evaluation(2, ram_mb=100))
    assert {("ram", "watch")} < set(again["basis"].items())
    assert sorted(again["basis"].values()) == ["calibrated", "watch"]
    assert second.ask("GET", "/estimate?name=resnet").json["missing"] == []
