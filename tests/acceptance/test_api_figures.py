"""The numbers of one snapshot of a real server, and what it says where there are none."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.explaining.snapshot import replay
from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.runs.lease_client import UnixClient
from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.real_server import Places, Served, until

MB = 1 << 20


def holding(size: int, release: Path) -> str:
    """A run that holds so much of a GPU until a file is there."""
    return (
        f"import os, runpy, time\nrunpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {size})\n"
        f"while not os.path.exists({str(release)!r}): time.sleep(0.1)\n"
    )


def assert_waits_for_room(queued: list[dict[str, Any]], run_id: str) -> None:
    """One run is queued, in the first place, and its reason is that it does not fit."""
    (row,) = queued
    assert (row["run_id"], row["position"], row["owner"]) == (run_id, 1, "root")
    assert row["reasons"][0]["kind"] == "fit"
    assert row["reasons"][0]["message"]


def assert_shares_come_out(attribution: dict[str, Any]) -> None:
    """Attributed and external bytes, less what was counted twice, are the bytes in use."""
    for shares in (*attribution["devices"].values(), *attribution["resources"].values()):
        names = ("runs", "kernels", "model_servers")
        assert sum(sum(shares[name].values()) for name in names) == shares["attributed"]
        assert shares["attributed"] + shares["external"] - shares["overlap"] == shares["used_total"]


@pytest.mark.behaviour(66, 68)
def test_the_queue_shows_all_that_a_run_is_about_and_its_sums_come_out(
    server: Served, stand_in: StandIn, tmp_path: Path
) -> None:
    """A run that holds 543 MB of a GPU on which somebody else holds 222: what is charged, held and
    reserved comes out to the byte in the run, the resource and the shares, and a run that waits has
    its reasons.
    """
    uuid = stand_in.uuid(0)
    release = tmp_path / "release"
    hints = {"vram_bytes": 2049 * MB, "ram_bytes": 3515 * MB}
    live = server.submit("live", holding(543 * MB, release), hints=hints)
    server.active(live)
    stand_in.hold(server.process.pid, 0, 222 * MB)
    waits = server.submit("waits", "pass", hints={"vram_bytes": 20 * GB})
    server.waiting(waits, "fit")

    def settled() -> Any:
        shown = server.queue()
        used = shown["attribution"]["devices"][uuid]["used_total"]
        return shown["running"][0]["held"].get("ram") and used == 765 * MB and shown

    shown = until(settled, "both are seen")
    (row,) = shown["running"]
    assert (row["run_id"], row["name"], row["owner"]) == (live, "live", "root")
    assert row["charges"][uuid] > 2049 * MB  # the hint with its margin
    assert row["held"][uuid] == 543 * MB
    for resource in (uuid, "ram"):
        reserved = row["charges"][resource] - row["held"][resource]
        assert row["reservations"][resource] == shown["reservations"][resource] == reserved > 0
    assert row["admit_basis"] == {uuid: "hint", "ram": "hint"}
    assert Path(f"/proc/{row['pid']}").exists()
    assert (row["started_s"] > 0, row["exclusive"], row["cancel_requested"]) == (True, False, False)
    assert_waits_for_room(shown["queued"], waits)
    assert shown["free_bytes"][uuid] == 24 * GB - 765 * MB
    on_board = shown["attribution"]["devices"][uuid]
    assert (on_board["runs"], on_board["used_total"]) == ({live: 543 * MB}, 765 * MB)
    others = [one["held_bytes"] or 0 for one in shown["external"] if one["resource"] == uuid]
    assert sum(others) == on_board["external"]
    assert_shares_come_out(shown["attribution"])
    kept = shown["floors"][uuid] + shown["reservations"][uuid]
    assert shown["room_bytes"][uuid] == shown["free_bytes"][uuid] - kept
    release.touch()


@pytest.mark.behaviour(69)
def test_declared_numbers_are_shown_where_they_count(
    start: Callable[..., Served], stand_in: StandIn
) -> None:
    """A device that can be measured has no declared figures, though an administrator gave some; one
    that cannot has, and only while it cannot.
    """
    stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    one, two = stand_in.uuid(0), stand_in.uuid(1)
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 3, gpu=0)
    server = start(f"--GpuGate.usable_vram_mb={one}=20480", f"--GpuGate.usable_vram_mb={two}=20480")
    shown = until(lambda: (q := server.queue())["free_bytes"].get(two) and q)
    assert list(shown["declared"]) == [one]
    assert shown["declared"][one] == {"usable": 20480 * MB, "declared": 0, "left": 20480 * MB}
    assert one not in shown["free_bytes"]
    stand_in.heal()
    until(lambda: server.queue()["declared"] == {}, "it is measured now")
    assert server.queue()["free_bytes"][one] == 24 * GB


@pytest.mark.behaviour(150)
@pytest.mark.usefixtures("stand_in")
def test_the_decisions_of_a_server_are_those_of_the_core(server: Served, tmp_path: Path) -> None:
    """What a real server decided comes out again when the core is asked about its snapshot: no
    second place decides anything.
    """
    release = tmp_path / "release"
    live = server.submit("live", holding(GB, release), hints={"vram_bytes": 20 * GB})
    server.active(live)
    kinds = {
        server.submit("large", "pass", hints={"vram_bytes": 10 * GB}): "fit",
        server.submit("alone", "pass", exclusive=True, hints={"vram_bytes": GB}): "exclusive",
    }
    for run_id, kind in kinds.items():
        server.waiting(run_id, kind)
    shown = server.queue("?inputs=1")
    state, sample, now = replay(shown["inputs"])
    again = decide(state, sample, now)
    assert to_json(again.grants) == shown["decisions"]
    for row in shown["queued"]:
        reasons = again.reasons_of(state.queue[row["run_id"]].key)
        assert [one.check.value for one in reasons] == [one["kind"] for one in row["reasons"]]
    release.touch()


@pytest.mark.behaviour(156)
def test_a_gpu_with_the_machines_own_memory_is_shown_as_such(
    start: Callable[..., Served], stand_in: StandIn
) -> None:
    """A board that shares the machine's RAM is named as unified, has no figures of its own, and
    runs go by RAM.
    """
    stand_in.change(0, name="NVIDIA GB10")
    server = start()
    shown = until(lambda: (q := server.queue())["unified"] and q, "it is seen")
    assert [(one["uuid"], one["model"]) for one in shown["unified"]] == [
        (stand_in.uuid(0), "NVIDIA GB10")
    ]
    assert shown["devices"] == []
    assert list(shown["attribution"]["resources"]) == ["ram"]
    assert server.ask("GET", "/machine").json["unified"] == shown["unified"]


@pytest.mark.behaviour(156)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_namespace_that_hides_the_holders_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    """In a container whose driver lists foreign pids nobody is named and all is external: the
    snapshot says that the pids are not ours, and why.
    """
    places = Places(tmp_path, stand_in)
    stand_in.listed(4_000_000, 0, 3 * GB)
    stand_in.change(0, used=3 * GB)
    command = [sys.executable, "-m", "jupyter_gpugate", "serve", "--user", "--idle", "300"]
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            inside + command, env=places.environ(), stdout=log, stderr=log, start_new_session=True
        )

    def snapshot() -> Any:
        async def ask() -> Any:
            client = UnixClient(str(places.socket))
            try:
                answer = await client.fetch(f"{API_PATH}/queue")
                return json.loads(answer.body) if answer.code == 200 else None
            except OSError:
                return None
            finally:
                client.close()

        assert process.poll() is None, (tmp_path / "log").read_text()
        return asyncio.run(ask())

    try:
        shown = until(lambda: (q := snapshot()) and q["attribution"]["devices"] and q)
        assert shown["attribution"]["pids_are_ours"] is False
        (row,) = shown["attribution"]["devices"].values()
        assert row["fault"]
        assert (row["attributed"], row["external"], row["used_total"]) == (0, 3 * GB, 3 * GB)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(places.runtime, ignore_errors=True)


ROW = "| boundary | type | behaviour | check again when |"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.behaviour(74)
def test_every_boundary_has_a_type_and_an_occasion() -> None:
    """The table of what cannot be measured is linked from the front page; each row says why, what
    happens instead and when to look again.
    """
    assert "\nboundaries\n" in (DOCS / "index.md").read_text(encoding="utf-8")
    lines = (DOCS / "boundaries.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[lines.index(ROW) + 2 :] if line]
    assert len(rows) >= 10
    for what, kind, instead, occasion in rows:
        assert kind in {"trade-off", "scope", "physics"}, what
        assert min(len(what), len(instead), len(occasion)) > 5, what
