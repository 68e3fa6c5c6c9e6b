"""What the GPU reader believes: the real binding in a real child, over the stand-in library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import DeviceReading, GpuProcess, ReaderHealth
from jupyter_gpugate.gate.clock import awake_time
from tests.fake_nvml import HOLDER
from tests.integration.gpu_reading import Driver, Reader, wait_until

LISTS = ("Compute", "Graphics", "MPSCompute")


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


def only(reader: Reader) -> DeviceReading:
    """Read, and return the one device that there must be."""
    [reading] = reader.devices()
    return reading


# -- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "source", "reserved"),
    [("current", "nvml-v2", 600 * MB), ("no-memory-v2", "nvml-v1", None)],
)
def test_free_is_the_same_by_either_struct(
    driver: Driver, reader: Reader, variant: str, source: str, reserved: int | None
) -> None:
    """What the driver keeps for itself is never free, and the struct in use is named."""
    driver(variant).gpu(24 * GB, reserved=600 * MB)
    [reading], health, _ = reader.read()
    assert reading.free_bytes == 24 * GB - 600 * MB
    assert (reading.source, reading.driver_reserved_bytes) == (source, reserved)
    assert health.detail["memory"] == source


def test_reserved_memory_is_each_boards_own(driver: Driver, reader: Reader) -> None:
    """An idle board shows nothing in use, however much its driver reserves."""
    stand_in = driver()
    stand_in.gpu(24 * GB, reserved=300 * MB)
    stand_in.gpu(80 * GB, reserved=912 * MB)
    assert [reading.used_bytes for reading in reader.devices()] == [0, 0]


def test_used_is_the_devices_and_not_a_sum_over_its_processes(
    driver: Driver, reader: Reader
) -> None:
    """Memory that no process is listed for is in use all the same."""
    stand_in = driver()
    gpu = stand_in.gpu(24 * GB, used=20 * GB)
    stand_in.hold(os.getpid(), gpu, 4 * GB)
    reading = only(reader)
    assert reading.used_bytes == 20 * GB
    assert reading.processes == (GpuProcess(os.getpid(), 4 * GB, "C"),)


def test_bandwidth_is_not_taken_for_fullness(driver: Driver, reader: Reader) -> None:
    """The driver's memory utilisation counts traffic: neither free nor utilisation follows it."""
    driver().gpu(20 * GB, used=19 * GB, util=37, memutil=4)
    reading = only(reader)
    assert (reading.free_bytes, reading.utilisation) == (1 * GB, 0.37)


@pytest.mark.behaviour(118)
@pytest.mark.parametrize("total", [0, 1 << 50])
def test_an_impossible_total_is_no_reading(driver: Driver, reader: Reader, total: int) -> None:
    """A board of no memory, or of more than any board has, can be neither full nor empty."""
    driver().gpu(total)
    reading = only(reader)
    assert reading.free_bytes is None
    assert reading.fault is not None
    assert reading.fault.code == "not_a_reading"


@pytest.mark.behaviour(118)
def test_more_used_than_there_is_is_no_reading(driver: Driver, reader: Reader) -> None:
    """A board that says it holds more than it has says nothing."""
    driver().gpu(24 * GB, used=25 * GB)
    reading = only(reader)
    assert reading.free_bytes is None
    assert reading.fault is not None
    assert str(25 * GB) in reading.fault.text


@pytest.mark.behaviour(118)
@pytest.mark.parametrize("variant", ["current", "no-memory-v2"])
def test_noise_for_numbers_is_no_reading(driver: Driver, reader: Reader, variant: str) -> None:
    """Numbers that cannot be true leave free unknown: not nothing, and not plenty."""
    stand_in = driver(variant)
    stand_in.gpu()
    stand_in.garbage("nvmlDeviceGetMemoryInfo*")
    reading = only(reader)
    assert reading.free_bytes is None
    assert reading.used_bytes is None
    assert reading.fault is not None


@pytest.mark.behaviour(119)
def test_a_full_gpu_is_there_and_full(driver: Driver, reader: Reader) -> None:
    """Nothing free is a reading of a GPU, not the lack of one."""
    driver().gpu(24 * GB, used=24 * GB)
    [reading], health, _ = reader.read()
    assert (reading.free_bytes, reading.fault, health.present) == (0, None, True)


@pytest.mark.parametrize(("before", "after"), [(8 * GB, 2 * GB), (2 * GB, 8 * GB)])
def test_the_smaller_free_around_the_lists_counts(
    driver: Driver, reader: Reader, before: int, after: int
) -> None:
    """Memory that comes or goes while the lists are read is never counted as free."""
    stand_in = driver()
    gpu = stand_in.gpu(24 * GB, unlisted=before)
    stand_in.hang("nvmlDeviceGetComputeRunningProcesses_v3")

    def change() -> None:
        stand_in.change(gpu, unlisted=after)
        stand_in.heal()

    [reading], _, _ = reader.read_while(stand_in.hanging, change)
    assert reading.free_bytes == 16 * GB


def test_a_reading_is_as_old_as_its_first_number(driver: Driver, reader: Reader) -> None:
    """A reading bears the time before anything of it was read."""
    driver().gpu()
    before = awake_time()
    reading = only(reader)
    assert before <= reading.taken_at <= awake_time()


# -- process lists ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("variant", "version"),
    [("current", "v3"), ("no-lists-v3", "v2"), ("old", "v1")],
)
def test_every_drivers_rows_are_read_in_its_own_layout(
    driver: Driver,
    reader: Reader,
    sleepers: Callable[[], int],
    variant: str,
    version: str,
    count: int,
) -> None:
    """Each driver lists all its processes with their own bytes, by the newest call that it has."""
    stand_in = driver(variant)
    gpu = stand_in.gpu()
    held = {sleepers(): (n + 1) * GB // 4 for n in range(count)}
    for pid, size in held.items():
        stand_in.hold(pid, gpu, size)
    [reading], health, _ = reader.read()
    assert {p.pid: p.held_bytes for p in reading.processes or ()} == held
    assert f"compute {version}" in health.detail["process_lists"]


@pytest.mark.parametrize("count", [2, 3, 7])
def test_rows_of_another_layout_are_noticed_and_read_by_the_older_call(
    driver: Driver, reader: Reader, sleepers: Callable[[], int], count: int
) -> None:
    """A driver whose newest rows are wider than it says is read by its older call."""
    stand_in = driver("wide-rows")
    gpu = stand_in.gpu()
    held = {sleepers(): (n + 1) * GB // 4 for n in range(count)}
    for pid, size in held.items():
        stand_in.hold(pid, gpu, size)
    [reading], health, _ = reader.read()
    assert {p.pid: p.held_bytes for p in reading.processes or ()} == held
    assert "compute v2" in health.detail["process_lists"]


@pytest.mark.parametrize("count", [2, 3])
def test_without_a_call_to_trust_nobody_is_named(
    driver: Driver, reader: Reader, sleepers: Callable[[], int], count: int
) -> None:
    """Rows that no process can have name nobody, say why, and leave free as it was."""
    stand_in = driver("wide-rows-only")
    gpu = stand_in.gpu()
    for _ in range(count):
        stand_in.hold(sleepers(), gpu, GB)
    reading = only(reader)
    assert reading.processes is None
    assert reading.processes_fault is not None
    assert reading.processes_fault.code == "bad_rows"
    assert reading.free_bytes == (24 - count) * GB


@pytest.mark.parametrize("word", LISTS)
def test_noise_in_any_list_names_nobody(driver: Driver, reader: Reader, word: str) -> None:
    """One list with impossible rows is enough to trust none of that device's."""
    stand_in = driver()
    gpu = stand_in.gpu()
    stand_in.hold(os.getpid(), gpu, GB)
    stand_in.garbage(f"nvmlDeviceGet{word}RunningProcesses*")
    reading = only(reader)
    assert reading.processes is None
    assert reading.processes_fault is not None
    assert (reading.free_bytes, reading.fault) == (23 * GB, None)


@pytest.mark.parametrize(
    ("pid", "size"), [(0, GB), (1 << 22 | 1, GB), (4242, 24 * GB + 1)], ids=["0", "pid", "size"]
)
@pytest.mark.parametrize("variant", ["current", "old"])
def test_one_impossible_row_spoils_the_list(
    driver: Driver, reader: Reader, variant: str, pid: int, size: int
) -> None:
    """No process has such a number, and none holds more than its board has."""
    stand_in = driver(variant)
    gpu = stand_in.gpu(24 * GB, used=GB)
    stand_in.hold(os.getpid(), gpu, GB)
    stand_in.listed(pid, gpu, size)
    reading = only(reader)
    assert reading.processes is None
    assert reading.processes_fault is not None
    assert f"pid {pid} with {size} bytes" in reading.processes_fault.text


@pytest.mark.parametrize("variant", ["current", "no-lists-v3", "old"])
def test_not_available_is_no_number(driver: Driver, reader: Reader, variant: str) -> None:
    """Where the driver cannot tell a process's bytes the process is listed without."""
    stand_in = driver(variant)
    stand_in.hold(os.getpid(), stand_in.gpu(), None)
    assert only(reader).processes == (GpuProcess(os.getpid(), None, "C"),)


@pytest.mark.parametrize("variant", ["current", "old"])
@pytest.mark.parametrize("always", [False, True])
def test_a_list_that_grows_while_it_is_read_is_read_again(
    driver: Driver, reader: Reader, variant: str, always: bool
) -> None:
    """A list too long for the room made for it is asked for again, though not for ever."""
    stand_in = driver(variant)
    stand_in.hold(os.getpid(), stand_in.gpu(), GB)
    stand_in.fail("nvmlDeviceGetComputeRunningProcesses*", 7, times=-1 if always else 2)
    reading = only(reader)
    if always:
        assert reading.processes is None
        assert reading.processes_fault is not None
        assert reading.processes_fault.code == "nvml-7"
    else:
        assert reading.processes == (GpuProcess(os.getpid(), GB, "C"),)


@pytest.mark.parametrize(
    ("code", "calls"), [(3, "*"), (4, "*"), (15, "*"), (999, "*"), (999, "_v3")]
)
def test_a_refused_compute_list_names_nobody_and_keeps_free(
    driver: Driver, reader: Reader, code: int, calls: str
) -> None:
    """A device whose processes the driver will not list is still measured; no older call is asked
    for what a newer one refuses.
    """
    stand_in = driver()
    stand_in.gpu(24 * GB, used=4 * GB)
    stand_in.fail(f"nvmlDeviceGetComputeRunningProcesses{calls}", code)
    reading = only(reader)
    assert reading.processes is None
    assert reading.processes_fault is not None
    assert reading.processes_fault.code == f"nvml-{code}"
    assert reading.free_bytes == 20 * GB


def test_a_driver_that_refuses_the_newer_calls_is_read_by_its_oldest(
    driver: Driver, reader: Reader
) -> None:
    """A call that exists and answers "function not found" is one that does not exist."""
    stand_in = driver()
    gpu = stand_in.gpu()
    stand_in.hold(os.getpid(), gpu, GB)
    for version in ("v2", "v3"):
        for word in LISTS:
            stand_in.fail(f"nvmlDeviceGet{word}RunningProcesses_{version}", 13)
    assert only(reader).processes == (GpuProcess(os.getpid(), GB, "C"),)


@pytest.mark.behaviour(41)
def test_graphics_contexts_count(driver: Driver, reader: Reader) -> None:
    """A process that only renders is listed with its memory."""
    stand_in = driver()
    stand_in.hold(os.getpid(), stand_in.gpu(), GB, kind="G")
    assert only(reader).processes == (GpuProcess(os.getpid(), GB, "G"),)


@pytest.mark.behaviour(41)
@pytest.mark.parametrize("code", [3, 4, 13])
def test_without_graphics_and_mps_lists_the_compute_list_stands(
    driver: Driver, reader: Reader, code: int
) -> None:
    """A driver without the other lists still names its compute processes, and that is told."""
    stand_in = driver()
    stand_in.hold(os.getpid(), stand_in.gpu(), GB)
    for word in ("Graphics", "MPSCompute"):
        stand_in.fail(f"nvmlDeviceGet{word}RunningProcesses*", code)
    [reading], health, _ = reader.read()
    assert reading.processes == (GpuProcess(os.getpid(), GB, "C"),)
    assert reading.processes_fault is None
    assert "no graphics" in health.detail["process_lists"]
    assert "no mps" in health.detail["process_lists"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"C": GB, "G": GB}, GpuProcess(os.getpid(), GB, "CG")),
        ({"C": GB, "G": 3 * GB}, GpuProcess(os.getpid(), 3 * GB, "CG")),
        ({"M": 2 * GB}, GpuProcess(os.getpid(), 2 * GB, "M")),
        ({"C": None, "M": 2 * GB}, GpuProcess(os.getpid(), 2 * GB, "CM")),
        ({"C": None}, GpuProcess(os.getpid(), None, "C")),
        ({"C": 0}, GpuProcess(os.getpid(), 0, "C")),
    ],
)
def test_a_process_in_several_lists_counts_once(
    driver: Driver, reader: Reader, sizes: dict[str, int | None], expected: GpuProcess
) -> None:
    """The lists are joined by the greatest number; "not available" is no number, and 0 is one."""
    stand_in = driver()
    gpu = stand_in.gpu()
    for kind, size in sizes.items():
        stand_in.hold(os.getpid(), gpu, size, kind=kind)
    assert only(reader).processes == (expected,)


def test_processes_are_told_apart_by_device(
    driver: Driver, reader: Reader, sleepers: Callable[[], int]
) -> None:
    """One process on two devices is listed on each with what it holds there."""
    stand_in = driver()
    first, second = stand_in.gpu(), stand_in.gpu()
    pid, other = sleepers(), sleepers()
    stand_in.hold(pid, first, GB)
    stand_in.hold(pid, second, 2 * GB)
    stand_in.hold(other, second, 3 * GB)
    held = [{p.pid: p.held_bytes for p in r.processes or ()} for r in reader.devices()]
    assert held == [{pid: GB}, {pid: 2 * GB, other: 3 * GB}]
    assert held == [stand_in.state().held_by_pid(gpu) for gpu in (first, second)]


def test_a_listed_process_that_is_gone_stays_listed(
    driver: Driver, reader: Reader, sleepers: Callable[[], int]
) -> None:
    """What the driver still holds for a dead or hidden process is no fault of the list."""
    stand_in = driver()
    gpu = stand_in.gpu()
    pid = sleepers()
    stand_in.hold(pid, gpu, GB, sticky=True)
    stand_in.listed(999_999, gpu, 2 * GB)
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    reading = only(reader)
    assert {p.pid: p.held_bytes for p in reading.processes or ()} == {pid: GB, 999_999: 2 * GB}
    assert reading.processes_fault is None


def test_an_empty_list_is_empty_and_not_unknown(driver: Driver, reader: Reader) -> None:
    """A device that lists nobody while memory is in use says so, with no fault of its own."""
    driver().gpu(24 * GB, used=10 * GB)
    reading = only(reader)
    assert (reading.processes, reading.processes_fault) == ((), None)
    assert reading.used_bytes == 10 * GB


def test_processes_that_come_and_go_disturb_nothing(driver: Driver, reader: Reader) -> None:
    """A process that ends between two calls is normal."""
    stand_in = driver()
    gpu = stand_in.gpu()
    for _ in range(20):
        process = subprocess.Popen(["sleep", "600"])
        stand_in.hold(process.pid, gpu, GB)
        held = only(reader)
        process.kill()
        racing = only(reader)
        process.wait()
        assert [p.pid for p in held.processes or ()] == [process.pid]
        for reading in (held, racing):
            assert (reading.fault, reading.processes_fault) == (None, None)
    assert only(reader).free_bytes == 24 * GB


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


def test_no_command_line_tool_is_asked(
    driver: Driver, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader never runs nvidia-smi: its text is made for people."""
    tool = tmp_path / "nvidia-smi"
    called = tmp_path / "called"
    tool.write_text(f"#!/bin/sh\ntouch {called}\necho N/A\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    driver().gpu()
    assert only(reader).free_bytes == 24 * GB
    assert not called.exists()


def test_health_names_driver_binding_and_calls(driver: Driver, reader: Reader) -> None:
    """What the numbers rest on is told beside them."""
    stand_in = driver()
    stand_in.version(driver="535.129.03")
    stand_in.gpu()
    health: ReaderHealth = reader.read()[1]
    assert health.detail["driver"] == "535.129.03"
    assert health.detail["binding"].startswith("nvidia-ml-py ")
    assert health.detail["process_lists"] == "compute v3, graphics v3, mps v3"
