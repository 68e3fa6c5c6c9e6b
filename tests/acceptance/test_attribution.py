"""Whose memory it is, as a real server tells it: runs, notebooks, strangers, the driver itself."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.messages import HeartbeatMessage
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import start_ticks
from jupyter_gpugate.runs.lease_client import LeaseClient
from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.attribution_oracle import Oracle
from tests.kit.real_server import Served, until

MB = 1 << 20


def shares(server: Served, resource: str = "vram") -> dict[str, Any]:
    """A resource's row of the attribution, over all devices."""
    row: dict[str, Any] = server.queue()["attribution"]["resources"][resource]
    return row


@contextmanager
def notebook(server: Served, path: str) -> Iterator[int]:
    """A kernel of the server's, as a notebook would have it; its pid."""
    body = {"name": path, "path": path, "type": "notebook", "kernel": {"name": "python3"}}
    request = urllib.request.Request(  # noqa: S310 - a server of this test's own
        f"{server.url}/api/sessions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"token {server.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310
        kernel = json.load(response)["kernel"]["id"]
    yield until(partial(pid_of_kernel, kernel), "the kernel is a process")
    request = urllib.request.Request(  # noqa: S310
        f"{server.url}/api/kernels/{kernel}",
        headers={"Authorization": f"token {server.token}"},
        method="DELETE",
    )
    urllib.request.urlopen(request).close()  # noqa: S310


def pid_of_kernel(kernel: str) -> int | None:
    """The process that was started with this kernel's connection file."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if kernel.encode() in words:
                return int(entry.name)
    return None


FAMILY = f"""
import os, runpy, subprocess, sys, time
code = "import runpy, time\\nrunpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {2 * GB}%s)\\n"
code += "ram = bytearray(300 << 20)\\ntime.sleep(10000)"
subprocess.Popen([sys.executable, "-c", code % ""], start_new_session=True)
subprocess.Popen([sys.executable, "-c", code % ", kind='G'"], process_group=0)
runpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {GB})
print("up", flush=True)
time.sleep(10000)
"""


def kernel_ram(server: Served, notebook: str) -> int:
    """The RAM of the kernels of a notebook."""
    held: dict[str, int] = shares(server, "ram")["kernels"]
    return sum(size for name, size in held.items() if notebook in name)


@pytest.mark.behaviour(40, 41, 42, 43, 44, 45, 48, 67)
def test_every_megabyte_has_an_owner(server: Served, stand_in: StandIn, oracle: Oracle) -> None:
    """Children in sessions of their own, compute and graphics contexts, belong to their run; a
    notebook's memory to the notebook; a stranger's to nobody, and it lowers what is free.
    """
    uuid = stand_in.uuid(0)
    hints = {"vram_bytes": 6 * GB}
    run_id = server.submit("family", FAMILY, hints=hints)
    until(lambda: shares(server)["runs"].get(run_id) == 5 * GB, "the run holds 1 + 2 + 2 GB")
    ram = until(
        lambda: (held := shares(server, "ram")["runs"].get(run_id, 0)) > 600 * MB and held,
        "its children's RAM is the run's",
    )
    assert ram < 900 * MB

    with (
        notebook(server, "analysis.ipynb") as kernel,
        subprocess.Popen(
            [sys.executable, "-c", "x = bytearray(200 << 20)\nimport time\ntime.sleep(10000)"]
        ) as stranger,
    ):
        stand_in.hold(kernel, uuid, 3 * GB)
        stand_in.hold(stranger.pid, uuid, 4 * GB)
        row = until(
            lambda: (r := shares(server))["used_total"] == 12 * GB and r, "all of it is seen"
        )
        (named,) = [name for name in row["kernels"] if "analysis" in name]
        assert row["kernels"][named] == 3 * GB
        assert row["external"] == 4 * GB
        assert row["attributed"] + row["external"] - row["overlap"] == row["used_total"]
        assert server.queue()["free_bytes"][uuid] == 12 * GB
        (external,) = [
            r for r in server.queue()["external"] if r["resource"] == uuid and r["held_bytes"]
        ]
        assert external["pid"] == stranger.pid
        assert external["user"]
        assert external["command"].startswith("python")
        assert "bytearray" not in external["command"]  # arguments may hold secrets
        until(lambda: kernel_ram(server, "analysis") > 20 * MB, "its RAM is the notebook's as well")
        oracle.settle()
        stranger.kill()
    server.ask("POST", f"/runs/{run_id}/cancel")
    until(lambda: shares(server)["used_total"] == 0)


@pytest.mark.behaviour(41)
def test_without_graphics_lists_compute_alone_is_used(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """A driver that does not tell graphics processes still attributes compute ones."""
    stand_in.fail("nvmlDeviceGetGraphicsRunningProcesses*", 3)
    server = start()
    source = f"import runpy, time\nrunpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {GB})\n"
    run_id = server.submit("compute", source + "time.sleep(10000)")
    until(lambda: shares(server)["runs"].get(run_id) == GB)
    server.ask("POST", f"/runs/{run_id}/cancel")


@pytest.mark.behaviour(47)
def test_a_model_inside_a_run_is_the_runs(server: Served, stand_in: StandIn) -> None:
    """What a run loads into its own process has no charge of its own: it is the run's."""
    source = f"import runpy, time\nrunpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {2 * GB})\n"
    run_id = server.submit("loads", source + "time.sleep(10000)", hints={"vram_bytes": 4 * GB})
    uuid = stand_in.uuid(0)
    row = until(lambda: (r := server.run(run_id))["held"].get(uuid) == 2 * GB and r)
    assert shares(server)["model_servers"] == {}
    assert set(row["charges"]) == {"ram", uuid}
    server.ask("POST", f"/runs/{run_id}/cancel")


@pytest.mark.behaviour(120)
def test_the_gate_of_a_real_server_measures(server: Served, stand_in: StandIn) -> None:
    """A gate that measures nothing would be inert: readings are fresh and follow the driver."""
    uuid = stand_in.uuid(0)
    first = server.queue()
    assert {reader["name"] for reader in first["readers"]} == {"gpu", "machine"}
    assert all(reader["age_s"] < 5 and not reader["fault"] for reader in first["readers"])
    stand_in.change(0, unlisted=7 * GB)
    until(lambda: server.queue()["free_bytes"][uuid] == 17 * GB, "the reading follows")
    assert server.queue()["tick"] > first["tick"]


@pytest.mark.behaviour(72, 51)
def test_an_attempt_too_short_for_a_reading_teaches_nothing_of_it(
    server: Served, stand_in: StandIn
) -> None:
    """With GPU lists unreadable for all of a run, its RAM is learned and its GPU need is not."""
    stand_in.fail("nvmlDeviceGet*RunningProcesses*", 3)
    stand_in.change(0, unlisted=GB)
    until(lambda: next(iter(server.queue()["attribution"]["devices"].values()))["fault"])
    server.completed("blind", "pass")
    terms = server.ask("GET", "/estimate?name=blind").json["terms"]
    origins = {term["resource"]: term["origin"] for term in terms}
    assert origins == {"ram": "measured", "vram": None}


@pytest.mark.behaviour(158)
def test_another_driver_is_another_setting(start: Callable[..., Served], stand_in: StandIn) -> None:
    """What was measured under one driver is scaled, not measured, under the next major version."""
    stand_in.version(driver="550.54.14")
    server = start()
    source = f"import runpy, time\nrunpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {GB})\n"
    server.completed("driver", source + "time.sleep(2.5)\n")

    def origin(server: Served) -> Any:
        terms = server.ask("GET", "/estimate?name=driver").json["terms"]
        return {term["resource"]: term["origin"] for term in terms}["vram"]

    assert origin(server) == "measured"
    server.stop()
    stand_in.version(driver="560.28.03")
    server = start()
    until(lambda: origin(server) == "scaled", "the new driver is seen")


@pytest.mark.behaviour(56)
@pytest.mark.parametrize(
    "damage", [b"", b"not a database at all", None], ids=["empty", "torn", "none"]
)
def test_a_damaged_store_is_an_empty_one(
    start: Callable[..., Served], damage: bytes | None
) -> None:
    """With its journal empty, torn or gone the gate starts, has learned nothing, and goes on."""
    first = start()
    first.completed("learns", "pass")
    first.kill()
    (journal,) = first.places.root.glob("state/**/gate.sqlite")
    for path in journal.parent.glob("gate.sqlite*"):
        path.unlink()
    if damage is not None:
        journal.write_bytes(damage)
    second = start()
    answer = second.ask("GET", "/estimate?name=learns")
    assert answer.status == 200, answer.body
    terms = answer.json["terms"]
    assert [term["origin"] for term in terms] == [None]
    assert second.completed("learns", "pass")["basis"] == {"ram": "watch"}


def test_a_gate_that_has_lost_its_journal_stops_no_run(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    """A live run that a new, empty gate has never heard of goes on to its own end."""
    first = start()
    release = tmp_path / "release"
    source = f"import os, time\nwhile not os.path.exists({str(release)!r}):\n    time.sleep(0.05)\n"
    run_id = first.submit("goes-on", source)
    first.active(run_id)
    first.kill()
    (journal,) = first.places.root.glob("state/**/gate.sqlite")
    for path in journal.parent.glob("gate.sqlite*"):
        path.unlink()
    second = start()
    tick = second.queue()["tick"]
    until(lambda: second.queue()["tick"] > tick + 6, "heartbeats have reached the new gate")
    assert second.run(run_id)["status"] == "active"
    release.touch()
    assert second.ended(run_id)["end"] == "completed"


def test_work_that_a_daemon_does_for_a_run_teaches_nothing_of_it(
    server: Served, tmp_path: Path
) -> None:
    """A client that holds next to nothing is not measured by it: its card and estimate say why."""
    done = tmp_path / "done"
    source = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.02)"
    run_id = server.submit("boxed", source, gpus=0)
    until(lambda: server.active(run_id)["held"].get("ram"), "the run is seen")
    code = "held = bytearray(700 << 20)\nheld[::4096] = bytes(len(held[::4096]))\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as daemon:
        until(
            lambda: any(
                row["pid"] == daemon.pid and row["held_bytes"] > 690 * MB
                for row in server.queue()["external"]
            ),
            "the daemon's work is seen",
        )
    done.touch()
    run = server.ended(run_id)
    assert run["end"] == "completed"
    [warning] = [text for text in run["warnings"] if "outside" in text]
    assert "yields no estimate" in warning
    [term] = server.ask("GET", "/estimate?name=boxed&gpus=0").json["terms"]
    assert (term["origin"], term["need_bytes"]) == (None, None)
    assert "outside of it rose and fell" in term["note"]
    told = server.ask("GET", f"/runs/{run_id}/story").json["story"]
    lessons = [event["observation"] for event in told if event["event"] == "sedimented"]
    assert [lesson["complete"] for lesson in lessons] == [False]


def test_a_run_cannot_claim_what_is_not_its_own(server: Served) -> None:
    """A heartbeat that names a bystander changes nothing; a process with the run's mark counts."""
    run_id = server.submit("claims", "import time\ntime.sleep(600)", gpus=0)
    row = until(lambda: next((r for r in server.queue()["running"] if r["tree"]), None), "it runs")
    sleeps = ["sleep", "600"]
    with (
        subprocess.Popen(sleeps) as bystander,
        subprocess.Popen(sleeps, env={**os.environ, "GPUGATE_RUN_ID": run_id}) as marked,
    ):
        try:
            pids = (bystander.pid, marked.pid)
            claimed = [*row["tree"], *((pid, start_ticks(pid) or 0) for pid in pids)]
            tree = tuple(ProcessKey(*key) for key in claimed)
            beat = HeartbeatMessage(run_id, row["fence"], tree)

            async def send() -> None:
                gate = LeaseClient(str(server.places.socket))
                await gate.ask(beat)
                gate.close()

            def named() -> list[int]:
                asyncio.run(send())
                pids = [pid for pid, _ in server.queue()["running"][0]["tree"]]
                return pids if marked.pid in pids else []

            # The run's own processes may come later than its supervisor.
            assert bystander.pid not in until(named, "the claim has come in")
        finally:
            bystander.kill()
            marked.kill()
