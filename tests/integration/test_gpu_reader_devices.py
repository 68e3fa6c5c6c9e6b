"""Devices that the GPU reader reports: identity, slices, lost boards, boards without memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import GpuProcess
from tests.fake_nvml import HOLDER
from tests.integration.gpu_reading import Driver, Reader, only, wait_until


@pytest.fixture
def reader() -> Iterator[Reader]:
    """Give a reader to use without await."""
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture
def sleepers() -> Iterator[Callable[[], int]]:
    """Start processes that only wait; return the pid of each."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


# -- which GPU --------------------------------------------------------------------------------


def test_a_device_is_its_uuid_whatever_its_place(driver: Driver, reader: Reader) -> None:
    """Boards that change places keep their own numbers; only their index moves."""
    stand_in = driver()
    small = stand_in.gpu(8 * GB, unlisted=GB, name="NVIDIA T4")
    large = stand_in.gpu(80 * GB, unlisted=2 * GB, name="NVIDIA H100")
    free = {small: 7 * GB, large: 78 * GB}
    for order in ((small, large), (large, small)):
        stand_in.reorder(*order)
        devices = reader.devices()
        assert {r.device.uuid: r.free_bytes for r in devices} == free
        assert tuple(r.device.uuid for r in devices) == order
        assert [r.device.index for r in devices] == [0, 1]


@pytest.mark.behaviour(117)
@pytest.mark.parametrize("asked", ["uuid", "index", "prefix"])
def test_memory_shows_on_the_physical_device(
    driver: Driver, reader: Reader, tmp_path: Path, asked: str
) -> None:
    """What a masked program holds on its "cuda:0" is read on the board that this really is."""
    stand_in = driver()
    stand_in.gpu(80 * GB)
    second = stand_in.gpu(24 * GB, uuid="GPU-5ec0d000-0000-0000-0000-000000000000")
    mask = {"uuid": second, "index": "1", "prefix": "GPU-5ec0"}[asked]
    ready = tmp_path / "ready"
    program = (
        f"import runpy, pathlib, time\n"
        f"runpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {3 * GB})\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        f"time.sleep(600)\n"
    )
    masked = {"CUDA_VISIBLE_DEVICES": mask, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ | masked)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None)
        first_reading, second_reading = reader.devices()
    finally:
        process.kill()
        process.wait()
    assert first_reading.free_bytes == 80 * GB
    assert second_reading.processes == (GpuProcess(process.pid, 3 * GB, "C"),)
    assert second_reading.free_bytes == 21 * GB


def test_slices_are_devices_of_their_own(
    driver: Driver, reader: Reader, sleepers: Callable[[], int]
) -> None:
    """A board cut into slices is flagged, and each slice has its own memory and processes."""
    stand_in = driver()
    board = stand_in.gpu(40 * GB, mig=1, name="NVIDIA A100-SXM4-40GB")
    slices = [stand_in.mig_slice(board, 5 * GB), stand_in.mig_slice(board, 20 * GB)]
    pids = [sleepers(), sleepers()]
    stand_in.hold(pids[0], slices[0], 4 * GB)
    stand_in.hold(pids[1], slices[1], 9 * GB)
    parent, small, large = reader.devices()
    assert parent.device.mig_enabled
    assert parent.processes is None
    assert [r.device.uuid for r in (small, large)] == slices
    assert [r.device.parent for r in (small, large)] == [board, board]
    assert [r.device.model for r in (small, large)] == ["1g.5gb", "1g.20gb"]
    assert [r.free_bytes for r in (small, large)] == [1 * GB, 11 * GB]
    assert [[p.pid for p in r.processes or ()] for r in (small, large)] == [[p] for p in pids]
    assert [r.utilisation for r in (parent, small, large)] == [None, None, None]


@pytest.mark.parametrize("code", [3, 4, 999])
def test_a_board_that_may_not_be_read_takes_no_slice_with_it(
    driver: Driver, reader: Reader, code: int
) -> None:
    """In a container the board may refuse its memory while its slices give theirs."""
    stand_in = driver()
    board = stand_in.gpu(40 * GB, mig=1)
    stand_in.mig_slice(board, 5 * GB)
    stand_in.fail("nvmlDeviceGetMemoryInfo*", code, device=board)
    parent, part = reader.devices()
    assert (parent.free_bytes, part.free_bytes, part.fault) == (None, 5 * GB, None)
    assert parent.device.mig_enabled


def test_a_board_outside_mig_mode_is_no_parent(driver: Driver, reader: Reader) -> None:
    """The mode can be known and off: the board is a device like any other."""
    driver().gpu(40 * GB, mig=0)
    assert not only(reader).device.mig_enabled


# -- unified memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Jetson AGX Thor"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_unified_board_has_no_memory_of_its_own(
    driver: Driver, reader: Reader, name: str, answers: bool
) -> None:
    """Boards known to share the machine's RAM are flagged, whether or not they give numbers."""
    stand_in = driver()
    stand_in.gpu(128 * GB, name=name)
    if not answers:
        stand_in.fail("nvmlDeviceGetMemoryInfo*", 3)
    reading = only(reader)
    assert reading.device.unified
    assert (reading.free_bytes, reading.fault) == (None, None)


@pytest.mark.parametrize("name", ["NVIDIA H100", "NVIDIA GH200 480GB", "NVIDIA T4"])
def test_an_error_is_no_proof_of_unified_memory(driver: Driver, reader: Reader, name: str) -> None:
    """A discrete board without numbers is one that cannot be gated on, not a shared one."""
    stand_in = driver()
    stand_in.gpu(name=name)
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 3)
    reading = only(reader)
    assert not reading.device.unified
    assert reading.free_bytes is None
    assert reading.fault is not None
    assert reading.fault.code == "nvml-3"


# -- one device's trouble ---------------------------------------------------------------------


def test_a_lost_board_is_named_and_alone(driver: Driver, reader: Reader) -> None:
    """A board off the bus keeps its name, says why it cannot be read, and harms no other."""
    stand_in = driver()
    well, lost = stand_in.gpu(), stand_in.gpu(80 * GB)
    reader.devices()
    stand_in.lose(lost)
    good, bad = reader.devices()
    assert (good.device.uuid, good.free_bytes) == (well, 24 * GB)
    assert (bad.device.uuid, bad.device.total_bytes) == (lost, 80 * GB)
    assert (bad.free_bytes, bad.processes) == (None, None)
    assert bad.fault is not None
    assert (bad.fault.code, bad.fault.text) == ("nvml-15", "GPU is lost")


def test_a_fault_keeps_its_date_until_it_is_gone(driver: Driver, reader: Reader) -> None:
    """A fault says since when it has been there; a board that comes back has none."""
    stand_in = driver()
    stand_in.gpu()
    lost = stand_in.gpu()
    reader.devices()
    stand_in.lose(lost)
    dates = {reader.devices()[1].fault for _ in range(3)}
    assert len(dates) == 1
    stand_in.heal()
    assert [r.fault for r in reader.devices()] == [None, None]
    stand_in.lose(lost)
    assert reader.devices()[1].fault not in dates


def test_slices_are_lost_with_their_board(driver: Driver, reader: Reader) -> None:
    """A lost board takes its slices along, each of them by name."""
    stand_in = driver()
    board = stand_in.gpu(40 * GB, mig=1)
    part = stand_in.mig_slice(board, 5 * GB)
    reader.devices()
    stand_in.lose(board)
    lost = reader.devices()
    assert [r.device.uuid for r in lost] == [board, part]
    assert [r.free_bytes for r in lost] == [None, None]


def test_a_slice_that_was_taken_back_is_not_lost(driver: Driver, reader: Reader) -> None:
    """A board may be cut anew: what is no slice any more is not listed, and the rest stays."""
    stand_in = driver()
    board = stand_in.gpu(40 * GB, mig=1)
    stays, goes = stand_in.mig_slice(board, 5 * GB), stand_in.mig_slice(board, 20 * GB)
    assert [r.device.uuid for r in reader.devices()] == [board, stays, goes]
    stand_in.remove(goes)
    assert [r.device.uuid for r in reader.devices()] == [board, stays]
    stand_in.lose(board)
    assert [r.device.uuid for r in reader.devices()] == [board, stays]


def test_a_board_that_never_gave_its_name_is_mentioned(driver: Driver, reader: Reader) -> None:
    """A board lost before anybody saw it cannot be listed, and is not passed over in silence."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.lose(stand_in.gpu())
    [reading], health, _ = reader.read()
    assert reading.free_bytes == 24 * GB
    assert health.detail["device 1"] == "nvml-15: GPU is lost"


def test_a_board_is_never_taken_for_another(driver: Driver, reader: Reader) -> None:
    """A board that cannot say who it is has no numbers, even where another sat in its place."""
    stand_in = driver()
    small, medium, large = stand_in.gpu(8 * GB), stand_in.gpu(24 * GB), stand_in.gpu(80 * GB)
    reader.devices()
    stand_in.reorder(large, small, medium)
    stand_in.fail("nvmlDeviceGetUUID", 999, device=large)
    devices = {r.device.uuid: r.free_bytes for r in reader.devices()}
    assert devices == {small: 8 * GB, medium: 24 * GB}


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetName",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMigMode",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
    ],
)
@pytest.mark.parametrize("trouble", ["fails", "talks noise"])
def test_memory_is_all_that_a_device_needs(
    driver: Driver, reader: Reader, function: str, trouble: str
) -> None:
    """Whatever else is not supported or not readable, the memory is read and gated on."""
    stand_in = driver()
    stand_in.gpu(24 * GB, used=4 * GB, util=80)
    if trouble == "fails":
        stand_in.fail(function, 3)
    else:
        stand_in.garbage(function)
    [reading], health, _ = reader.read()
    assert (reading.free_bytes, reading.fault, health.fault) == (20 * GB, None, None)
    if function == "nvmlDeviceGetUtilizationRates":
        assert reading.utilisation is None


def test_a_device_without_memory_numbers_is_listed_and_not_gated_on(
    driver: Driver, reader: Reader
) -> None:
    """An old board that does not tell its memory stands beside one that does."""
    stand_in = driver()
    old, new = stand_in.gpu(), stand_in.gpu()
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 3, gpu=old)
    unmanaged, managed = reader.devices()
    assert unmanaged.device.uuid == old
    assert unmanaged.free_bytes is None
    assert unmanaged.fault is not None
    assert (managed.device.uuid, managed.free_bytes) == (new, 24 * GB)


@pytest.mark.parametrize("uuid", ["", "0000:17:00.0"])
def test_a_nameless_device_is_no_device(driver: Driver, reader: Reader, uuid: str) -> None:
    """A board whose UUID is noise, or no UUID, is not admitted under it, and is mentioned."""
    stand_in = driver()
    stand_in.gpu(uuid=uuid)
    if not uuid:
        stand_in.garbage("nvmlDeviceGetUUID")
    devices, health, _ = reader.read()
    assert devices == ()
    assert health.present
    assert "device 0" in health.detail
