"""What the GPU reader does about a driver that answers and does not tell everything, or slowly."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import DeviceReading
from jupyter_gpugate.gate.gpu import missed_devices
from jupyter_gpugate.gate.gpu.child import Answer
from jupyter_gpugate.gate.gpu.missed_devices import FIRST_LOOK_S, LONGEST_LOOK_S, MissedDevices
from jupyter_gpugate.gate.gpu.process import ReaderProcess
from tests.fake_nvml import StandIn
from tests.integration.gpu_reading import Driver, Reader, wait_until


def child_of(reader: Reader) -> int:
    """Return the pid of the child that is asked now."""
    assert reader.reader._child is not None
    return reader.reader._child._process.pid


def is_there(pid: int) -> bool:
    """Tell whether a process runs, zombies not counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def by_uuid(reader: Reader) -> dict[str, DeviceReading]:
    """Read, and return what each device showed."""
    return {reading.device.uuid: reading for reading in reader.devices()}


def another_child_comes(
    reader: Reader, meanwhile: Callable[[dict[str, DeviceReading]], object] = lambda _: None
) -> None:
    """Read until the child has been replaced, time passing as fast as readings come."""
    first = child_of(reader)

    def replaced() -> bool:
        reader.later_s += 1.0
        meanwhile(by_uuid(reader))
        return child_of(reader) != first

    wait_until(replaced)


# -- sessions that cannot see -----------------------------------------------------------------

BLINDNESS: dict[str, Callable[[StandIn, str], object]] = {
    "handles fail": lambda s, gpu: s.fail(
        "nvmlDeviceGetHandleByIndex*", 999, gpu=gpu, sessions="open"
    ),
    "memory fails": lambda s, gpu: s.fail(
        "nvmlDeviceGetMemoryInfo*", 999, gpu=gpu, sessions="open"
    ),
    "it is off the bus": lambda s, gpu: s.fail("nvmlDevice*", 15, gpu=gpu, sessions="open"),
    "its lists fail": lambda s, gpu: s.fail(
        "nvmlDeviceGetComputeRunning*", 999, gpu=gpu, sessions="open"
    ),
    "numbers are noise": lambda s, gpu: s.garbage(
        "nvmlDeviceGetMemoryInfo*", gpu=gpu, sessions="open"
    ),
}


@pytest.mark.parametrize("kind", BLINDNESS)
def test_a_board_that_one_session_cannot_read_is_read_by_a_new_one(
    driver: Driver, reader: Reader, kind: str
) -> None:
    """A board that fails for a while is read by a new child; the others are read throughout."""
    stand_in = driver()
    failing, healthy = stand_in.gpu(), stand_in.gpu()
    by_uuid(reader)
    BLINDNESS[kind](stand_in, failing)

    def healthy_is_read(devices: dict[str, DeviceReading]) -> None:
        assert devices[healthy].free_bytes is not None

    another_child_comes(reader, healthy_is_read)
    devices = by_uuid(reader)
    assert devices.keys() == {failing, healthy}
    assert all(r.free_bytes is not None and r.processes is not None for r in devices.values())


def test_boards_that_a_session_does_not_count_are_found(driver: Driver, reader: Reader) -> None:
    """A driver that counts no board, where there were some, is asked by a new child."""
    stand_in = driver()
    gpu = stand_in.gpu()
    by_uuid(reader)
    stand_in.blind(sessions="open")
    assert by_uuid(reader) == {}
    another_child_comes(reader)
    assert by_uuid(reader).keys() == {gpu}


def test_a_board_that_came_late_is_found(driver: Driver, reader: Reader) -> None:
    """A driver that was asked before it had its boards is asked again by a new child."""
    stand_in = driver()
    assert by_uuid(reader) == {}
    stand_in.stale()
    gpu = stand_in.gpu()
    assert by_uuid(reader) == {}
    another_child_comes(reader)
    assert by_uuid(reader).keys() == {gpu}


def test_a_board_that_every_session_fails_to_read_stays_named(
    driver: Driver, reader: Reader
) -> None:
    """New children see no more, and each still names the board that is lost and its fault."""
    stand_in = driver()
    lost = stand_in.gpu()
    by_uuid(reader)
    stand_in.fail("nvmlDeviceGetHandleByIndex*", 999)
    for _ in range(2):
        another_child_comes(reader)
        fault = by_uuid(reader)[lost].fault
        assert fault is not None
        assert fault.code == "nvml-999"


def test_a_new_session_that_sees_less_does_not_take_over(
    driver: Driver, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the present child still sees is not given up for a child that sees nothing."""
    stand_in = driver()
    failing, healthy = stand_in.gpu(), stand_in.gpu()
    by_uuid(reader)
    first = child_of(reader)
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 999, gpu=failing)
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 999, gpu=healthy, sessions="new")
    looks: list[int] = []
    answer = ReaderProcess.answer

    def answered(child: ReaderProcess) -> Answer:
        if child is not reader.reader._child:
            looks.append(child._process.pid)
        return answer(child)

    monkeypatch.setattr(ReaderProcess, "answer", answered)

    def looked_twice() -> bool:
        reader.later_s += 1.0
        assert by_uuid(reader)[healthy].free_bytes is not None
        return len(looks) > 1

    wait_until(looked_twice)
    assert child_of(reader) == first
    wait_until(lambda: not is_there(looks[0]))


def test_looks_become_rarer_and_soon_again_once_all_was_well() -> None:
    """Pauses between looks double up to ten minutes; what is whole again starts them anew."""
    missed = MissedDevices()
    looks = [t for t in range(4000) if missed.look_is_due(misses=True, now=float(t))]
    pauses = [b - a for a, b in itertools.pairwise(looks)]
    assert looks[0] == FIRST_LOOK_S
    assert pauses[:3] == [6, 12, 24]
    assert pauses[-1] == LONGEST_LOOK_S
    assert not missed.look_is_due(misses=False, now=5000.0)
    again = [t for t in range(5001, 5100) if missed.look_is_due(misses=True, now=float(t))]
    assert again[0] == 5001 + FIRST_LOOK_S


def test_what_no_session_could_mend_calls_for_no_other(driver: Driver, reader: Reader) -> None:
    """A healthy machine, and a board without memory numbers, are read by the one child for ever."""
    stand_in = driver()
    stand_in.gpu()
    without_numbers = stand_in.gpu()
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 3, gpu=without_numbers)
    by_uuid(reader)
    child = child_of(reader)
    for _ in range(20):
        reader.later_s += missed_devices.LONGEST_LOOK_S
        by_uuid(reader)
        assert reader.reader._looking is None
    assert child_of(reader) == child


# -- numbers that do not go together ----------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"used": 20 * GB, "free": 20 * GB},
        {"used": 4 * GB, "free": 24 * GB, "reserved": 4 * GB},
        {"used": 2 * GB, "free": 4 * GB},
    ],
)
@pytest.mark.parametrize("variant", ["current", "no-memory-v2"])
def test_numbers_that_cannot_all_be_true_are_no_reading(
    driver: Driver, reader: Reader, variant: str, keys: dict[str, Any]
) -> None:
    """Used, reserved and free make up the total, or the board says that they do not."""
    stand_in = driver(variant)
    stand_in.gpu(total=24 * GB, **keys)
    [reading] = reader.devices()
    assert reading.free_bytes is None
    assert reading.fault is not None
    assert reading.fault.code == "not_a_reading"
    assert str(keys["free"]) in reading.fault.text


@pytest.mark.parametrize("every", [2, 3, 5])
def test_one_reading_never_mixes_two_versions_of_the_call(
    driver: Driver, reader: Reader, every: int
) -> None:
    """Whichever call a driver refuses now and then, total, free and reserved are of one call."""
    stand_in = driver()
    stand_in.gpu(total=24 * GB, reserved=GB, used=3 * GB)
    stand_in.fail("nvmlDeviceGetMemoryInfo_v2", 13, every=every)
    for _ in range(2 * every):
        [reading] = reader.devices()
        assert reading.fault is None
        assert reading.free_bytes == 20 * GB
        told = {"nvml-v2": (GB, 3 * GB), "nvml-v1": (None, 4 * GB)}
        assert (reading.driver_reserved_bytes, reading.used_bytes) == told[reading.source]
        assert every == 2 or reading.source == "nvml-v2"


# -- a driver that is slow --------------------------------------------------------------------


def test_a_driver_that_answers_each_call_slowly_is_not_stuck(driver: Driver) -> None:
    """However many boards a pass takes, only a call that does not return ends the child."""
    stand_in = driver()
    boards = {stand_in.gpu() for _ in range(8)}
    reader = Reader(deadline_s=1.5)
    try:
        reader.read_until(lambda reading: len(reading[0]) == len(boards))
        child = child_of(reader)
        stand_in.delay("nvmlDevice*", 0.04)
        devices, health, _ = reader.read()
        assert {r.device.uuid for r in devices if r.free_bytes is not None} == boards
        assert health.took_s > 1.5
        assert "slow" in health.detail
        assert child_of(reader) == child
    finally:
        reader.close()
