"""Drivers and GPUs that fail: what waits and what continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.external_processes import external_process
from tests.kit.real_server import Places, Served, until

LISTS = ("nvmlDeviceGetCompute*", "nvmlDeviceGetGraphics*", "nvmlDeviceGetMPS*")
#: Long enough for the gate to see what a run holds.
SEEN_S = 2.5


def holding(gb: float, release: Path | None = None, seconds: float = 0.0) -> str:
    """A cell that holds memory of its GPU, says which one, and ends once a file appears."""
    wait = f"while not os.path.exists({str(release)!r}):\n    time.sleep(0.05)\n" if release else ""
    return (
        "import os, runpy, time\n"
        f"hold_gpu = runpy.run_path({str(HOLDER)!r})['hold_gpu']\n"
        f"print(hold_gpu(0, {int(gb * GB)}), flush=True)\n"
        f"{wait}time.sleep({seconds})\n"
    )


def measured(server: Served, *uuids: str) -> bool:
    """Whether the newest snapshot has a number for each of these devices."""
    return set(uuids) <= set(server.queue()["free_bytes"])


def unmeasured(server: Served, *uuids: str) -> bool:
    """Whether it has a number for none of them."""
    return not set(uuids) & set(server.queue()["free_bytes"])


def shows(server: Served, free: dict[str, int]) -> bool:
    """Whether the newest snapshot has just these bytes free on these devices."""
    return bool(free.items() <= server.queue()["free_bytes"].items())


# -- the driver -----------------------------------------------------------------------------------


def counts(server: Served, order: tuple[str, ...]) -> bool:
    """Whether it counts the devices in this order."""
    devices = server.queue()["devices"]
    return {device["index"]: device["uuid"] for device in devices} == dict(enumerate(order))


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """A driver with two GPUs of 24 GB."""
    driver = StandIn(tmp_path_factory.mktemp("driver") / "driver")
    for _ in range(2):
        driver.gpu(total=24 * GB, name="NVIDIA L4")
    return driver


@pytest.fixture(scope="module")
def server_with_gpus(gpus: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests that let its driver recover."""
    own = Places(tmp_path_factory.mktemp("gpus"), gpus)
    served = Served(own, "--GpuGate.stop_runs_on_exit=True", "--GpuGate.grace_s=1")
    yield served
    served.stop()
    shutil.rmtree(own.runtime, ignore_errors=True)


@pytest.fixture
def gpu_server(server_with_gpus: Served, gpus: StandIn) -> Iterator[Served]:
    """That server, whole before and after the test."""
    uuids = [gpus.uuid(0), gpus.uuid(1)]
    until(lambda: measured(server_with_gpus, *uuids), "both GPUs are measured")
    yield server_with_gpus
    gpus.heal()
    for row in server_with_gpus.ask("GET", "/runs").json["runs"]:
        if row["status"] != "ended":
            server_with_gpus.ask("POST", f"/runs/{row['run_id']}/cancel")


@pytest.mark.behaviour(28, 39, 118)
@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_a_driver_that_gives_no_answer_holds_up_gpu_runs_alone(
    gpu_server: Served, gpus: StandIn, tmp_path: Path, fault: str
) -> None:
    """While the driver hangs or crashes, the API answers, what needs a GPU waits for a fresh
    reading, live runs and RAM-only runs go on; then all goes on.
    """
    uuids = [gpus.uuid(0), gpus.uuid(1)]
    hints = {"vram_bytes": 3 * GB}
    release = tmp_path / "release"
    live = gpu_server.submit("live", holding(2, release), hints=hints)
    gpu_server.active(live)
    getattr(gpus, fault)("nvmlDeviceGetMemoryInfo*")
    until(lambda: unmeasured(gpu_server, *uuids), "the readings have grown old")

    waits = gpu_server.submit("waits", holding(2), hints=hints)
    row = gpu_server.waiting(waits, "stale")
    assert row["reasons"][0]["numbers"]["age_ms"] > 3000
    code = {"hang": "timeout", "crash": "crash"}[fault]
    until(lambda: _code_of_reader(gpu_server) == code, "the reader says what is wrong")
    assert gpu_server.completed("plain", "print('RAM is enough')", gpus=0)["end"] == "completed"
    assert gpu_server.run(live)["phase"] == "running"
    assert gpu_server.run(waits)["status"] == "queued"

    gpus.heal()  # all of the above was answered before the driver let go
    release.touch()
    assert [gpu_server.ended(run)["end"] for run in (waits, live)] == ["completed"] * 2


def _code_of_reader(server: Served) -> Any:
    """What is wrong with the GPU reader; between two lives it is just starting."""
    (fault,) = [r["fault"] for r in server.queue()["readers"] if r["name"] == "gpu"]
    return fault and fault["code"]


@pytest.mark.behaviour(28, 51, 118)
def test_garbage_from_the_driver_teaches_nothing(gpu_server: Served, gpus: StandIn) -> None:
    """Noise for lists and sizes is no reading: no peak is learned from it, no run starts on it."""
    hints = {"vram_bytes": 3 * GB}
    for function in LISTS:
        gpus.garbage(function)
    gpu_server.completed("noisy", holding(2, seconds=SEEN_S), hints=hints)
    assert _origin(gpu_server, "noisy") == "hint"

    gpus.garbage("nvmlDeviceGetMemoryInfo*")
    until(lambda: unmeasured(gpu_server, gpus.uuid(0), gpus.uuid(1)), "there is not a number")
    assert all(device["free_bytes"] is None for device in gpu_server.queue()["devices"])
    waits = gpu_server.submit("noisy", holding(2, seconds=SEEN_S), hints=hints)
    gpu_server.waiting(waits, "unmeasured")

    gpus.heal()
    assert gpu_server.ended(waits)["end"] == "completed"
    assert _origin(gpu_server, "noisy") == "measured"
    (term,) = _vram_terms(gpu_server, "noisy")
    assert (term["n"], term["peak_bytes"]) == (1, 2 * GB)


def _vram_terms(server: Served, name: str) -> list[dict[str, Any]]:
    terms = server.ask("GET", f"/estimate?name={name}").json["terms"]
    return [term for term in terms if term["resource"] == "vram"]


def _origin(server: Served, name: str) -> str:
    (term,) = _vram_terms(server, name)
    return str(term["origin"])


@pytest.mark.behaviour(117, 120, 134)
def test_the_gpu_that_is_asked_about_is_the_one_that_is_read(
    gpu_server: Served, gpus: StandIn
) -> None:
    """A run goes where the room is, sees that GPU alone and as its first, and is measured there,
    also when the driver counts the GPUs in another order.
    """
    full, empty = gpus.uuid(0), gpus.uuid(1)
    hints = {"vram_bytes": 10 * GB}
    with external_process() as pid:
        gpus.hold(pid, full, 20 * GB)
        for order in ((full, empty), (empty, full)):
            gpus.reorder(*order)
            free = {full: gpus.state().free_bytes(full), empty: gpus.state().free_bytes(empty)}
            until(partial(shows, gpu_server, free), "what is free is seen")
            until(partial(counts, gpu_server, order), "and so is the order")
            source = holding(9, seconds=SEEN_S)
            row = gpu_server.completed(f"asks-{order.index(empty)}", source, hints=hints)
            assert [device["uuid"] for device in row["devices"]] == [empty]
            assert gpu_server.output(row["run_id"]).strip() == empty
            assert row["peaks"][empty] == 9 * GB
    gpus.reorder(full, empty)


@pytest.mark.behaviour(115, 119)
def test_a_full_gpu_is_a_gpu(gpu_server: Served, gpus: StandIn, tmp_path: Path) -> None:
    """With 0 bytes free a run that says nothing of GPUs still asks for one, and waits for it; when
    the memory is free again it starts, though nobody asks or tells the gate anything.
    """
    started = tmp_path / "started"
    for index in (0, 1):
        gpus.change(index, unlisted=24 * GB)
    until(partial(shows, gpu_server, {gpus.uuid(0): 0, gpus.uuid(1): 0}), "both are full")
    source = f"{holding(1)}open({str(started)!r}, 'w').close()\n"
    waits = gpu_server.submit("waits", source, hints={"vram_bytes": 2 * GB})
    row = gpu_server.waiting(waits, "external_holds")
    assert row["reasons"][0]["numbers"]["free_bytes"] == 0
    for index in (0, 1):
        gpus.change(index, unlisted=0)
    until(started.exists, "it starts")
    assert gpu_server.ended(waits)["end"] == "completed"


@pytest.mark.behaviour(151)
def test_what_a_run_held_is_free_when_it_is_seen_free(gpu_server: Served, gpus: StandIn) -> None:
    """Memory that the driver keeps after a run has ended stays that run's, is nobody else's and
    free for nobody, until the driver gives it back.
    """
    hold = f"import runpy\nhold = runpy.run_path({str(HOLDER)!r})['hold_gpu']\n"
    source = f"{hold}print(hold(0, {10 * GB}, sticky=True))\nimport time; time.sleep({SEEN_S})"
    gone = gpu_server.completed("gone", source, hints={"vram_bytes": 11 * GB})["run_id"]
    shown = until(lambda: (q := gpu_server.queue())["lingering"] and q, "its memory is seen")
    uuid = gpu_server.output(gone).strip()
    (left,) = [row for row in shown["lingering"] if row["resource"] == uuid]
    assert (left["run_id"], left["held_bytes"]) == (gone, 10 * GB)
    waits = gpu_server.submit("waits", "pass", gpus=2, hints={"vram_bytes": 16 * GB})
    reason = gpu_server.waiting(waits, "fit")["reasons"][0]
    assert (reason["resource"], reason["numbers"]["free_bytes"]) == (uuid, 14 * GB)
    until(lambda: gpu_server.queue()["tick"] > shown["tick"] + 1, "it is looked at again")
    shares = gpu_server.queue()["attribution"]["devices"][uuid]
    assert (shares["runs"], shares["external"]) == ({gone: 10 * GB}, 0)
    (kept,) = [hold.pid for hold in gpus.state().holds if hold.sticky]
    gpus.release(kept)
    assert gpu_server.ended(waits)["end"] == "completed"
    shown = gpu_server.queue()
    assert [row for row in shown["lingering"] if row["resource"] == uuid] == []
    assert shown["free_bytes"][uuid] == 24 * GB


@pytest.mark.behaviour(108)
def test_no_run_is_taken_before_the_gpus_are_known(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """While a driver is still loading, a submit waits for it, whether it names a GPU or not: the
    machine does not count as one without, and nothing starts; then both are measured on the GPU.
    """
    stand_in.hang("nvmlInit_v2")
    server = start()
    assert server.queue()["devices"] == []
    body = {"name": "early", "source": holding(1, seconds=SEEN_S), "hints": {"vram_bytes": 2 * GB}}
    with ThreadPoolExecutor(2) as pool:
        submits = [
            pool.submit(server.ask, "POST", "/runs", {**body, "gpus": gpus}) for gpus in (None, 1)
        ]
        tick = server.queue()["tick"]
        until(lambda: server.queue()["tick"] > tick + 1, "the gate ticks on")
        assert not any(submit.done() for submit in submits)
        assert server.queue()["running"] == []
        stand_in.heal()
    for submit in submits:
        assert submit.result().status == 202, submit.result().body
        row = server.ended(submit.result().json["run_id"])
        assert (row["end"], row["peaks"][stand_in.uuid(0)]) == ("completed", GB)


@pytest.mark.behaviour(118, 138)
def test_a_gpu_that_was_there_and_is_gone_is_missing(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """A lost GPU keeps its runs waiting and never becomes a machine without GPU, not even for a
    server that starts without any driver; when it is back, they run on it.
    """
    uuid = stand_in.uuid(0)
    hints = {"vram_bytes": 3 * GB}
    server = start()
    until(lambda: measured(server, uuid), "the GPU is measured")
    stand_in.lose(0)
    until(lambda: unmeasured(server, uuid), "the GPU is lost")
    lost = server.submit("waits", holding(2), hints=hints)
    server.waiting(lost, "missing")
    stand_in.heal()
    assert server.ended(lost)["end"] == "completed"

    server.kill()
    library, aside = stand_in.library, stand_in.library.with_name("aside")
    library.rename(aside)
    server = start()
    missing = server.submit("waits", holding(2), hints=hints)
    server.waiting(missing, "missing")
    assert [device["uuid"] for device in server.queue()["devices"]] == [uuid]
    assert server.ask("POST", "/runs", {"name": "x", "source": "", "gpus": 2}).status == 400
    server.completed("plain", "pass", gpus=0)
    assert server.run(missing)["status"] == "queued"

    server.kill()
    aside.rename(library)
    server = start()
    assert server.ended(missing)["end"] == "completed"
    assert server.output(missing).strip() == uuid
