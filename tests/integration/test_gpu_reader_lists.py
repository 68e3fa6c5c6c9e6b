"""Process lists that the GPU reader believes, over the stand-in library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import GpuProcess
from tests.integration.gpu_reading import Driver, Reader, only

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
