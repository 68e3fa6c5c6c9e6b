"""Memory numbers that the GPU reader believes: the real binding over the stand-in library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import GpuProcess, ReaderHealth
from jupyter_gpugate.gate.clock import awake_time
from tests.integration.gpu_reading import Driver, Reader, only


@pytest.fixture
def reader() -> Iterator[Reader]:
    """Give a reader to use without await."""
    reader = Reader()
    yield reader
    reader.close()


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
