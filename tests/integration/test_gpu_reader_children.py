"""The child process of the GPU reader: at most one stuck child, crashes, pauses, ends."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.gate.gpu import (
    process as nvml_process,
)
from jupyter_gpugate.gate.gpu import (
    reader as gpu_reader,
)
from tests.integration.gpu_failures import child_of, comes_back, fault_of, is_there
from tests.integration.gpu_reading import Driver, Reader, wait_until


@pytest.fixture
def hasty() -> Iterator[Reader]:
    """Give a reader whose deadline is missed by what hangs, and perhaps by what is slow."""
    reader = Reader(deadline_s=0.5)
    yield reader
    reader.close()


def hang_again_and_again(reader: Reader, catch: Callable[[int], object]) -> set[int]:
    """Read eight times, long pauses between; return the children, each caught while it lives."""
    children: set[int] = set()

    async def read() -> None:
        reading = asyncio.ensure_future(reader.reader.read())
        while not reading.done():
            if reader.reader._child is not None and child_of(reader) not in children:
                children.add(child_of(reader))
                catch(child_of(reader))
            await asyncio.sleep(0.01)

    for _ in range(8):
        reader.loop.run_until_complete(read())
        reader.later_s += 3600
    return children


def unkillable(self: nvml_process.ReaderProcess) -> None:
    """Do as a kill does to a process that the driver holds."""
    for task in (self._line, self._listening):
        if task is not None:
            task.cancel()


def test_no_more_than_one_stuck_child_beside_the_live_one(
    driver: Driver, hasty: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children that no kill ends never pile up, and reading goes on once they have ended."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.hang("nvmlDeviceGetCount_v2")
    with monkeypatch.context() as patched:
        patched.setattr(nvml_process.ReaderProcess, "kill", unkillable)
        children = hang_again_and_again(hasty, lambda _: None)
        assert len(children) == 2
        assert all(is_there(pid) for pid in children)
        assert fault_of(hasty).code == "stuck"
    stand_in.heal()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(is_there(pid) for pid in children))
    comes_back(hasty)


@pytest.fixture
def cage() -> Iterator[Path]:
    """Make a control group in which a process neither runs nor dies."""
    cage = Path(f"/sys/fs/cgroup/freezer/gpugate-test-{os.getpid()}")
    try:
        cage.mkdir()
    except OSError:
        pytest.skip("no freezer to put a process where no signal ends it")
    yield cage
    (cage / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (cage / "cgroup.procs").read_text())
    cage.rmdir()


def test_children_that_the_kernel_holds_do_not_pile_up(
    driver: Driver, hasty: Reader, cage: Path
) -> None:
    """The same of a process that really cannot die, as one in the middle of a driver's call."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.hang("nvmlDeviceGetCount_v2")

    def freeze(pid: int) -> None:
        (cage / "cgroup.procs").write_text(str(pid))
        (cage / "freezer.state").write_text("FROZEN")

    children = hang_again_and_again(hasty, freeze)
    assert len(children) == 2
    assert all(is_there(pid) for pid in children)
    stand_in.heal()
    assert fault_of(hasty).code == "stuck"
    (cage / "freezer.state").write_text("THAWED")
    wait_until(lambda: not any(is_there(pid) for pid in children))
    comes_back(hasty)


# -- crashes and nonsense ---------------------------------------------------------------------


@pytest.mark.parametrize("function", ["nvmlInit_v2", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_crash_takes_the_child_alone(driver: Driver, reader: Reader, function: str) -> None:
    """A driver that kills its caller kills the child: the fault names the signal."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.crash(function)
    fault = fault_of(reader)
    assert fault.code == "crash"
    assert "SIGSEGV" in fault.text
    stand_in.heal()
    comes_back(reader)


def test_a_library_that_prints_does_not_disturb_the_answers(driver: Driver, reader: Reader) -> None:
    """What a driver writes to standard output is no part of what the child says."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.say("*")
    comes_back(reader)


NONSENSE = {
    "no JSON": "print('free: 24 GB', flush=True)",
    "not an answer": "print('{}', flush=True)",
    "another question's": (
        'print(\'{"read":7,"present":true,"devices":[],"pids_are_ours":true,'
        '"health":{"name":"gpu","present":true,"taken_at":0}}\', flush=True)'
    ),
    "not text": "sys.stdout.buffer.write(bytes(range(256)) + b'\\n'); sys.stdout.flush()",
    "endless": "sys.stdout.write('9' * (1 << 25)); sys.stdout.flush()",
    "deep": "print('[' * 100000, flush=True)",
    "numbers for names": (
        'print(\'{"read":1,"present":true,"devices":[3],"pids_are_ours":true,'
        '"health":{"name":"gpu","present":true,"taken_at":0}}\', flush=True)'
    ),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_a_fault_and_ends_the_child(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whatever a child says instead of an answer is refused, and the child replaced."""
    program = f"import sys, time; sys.stdin.readline(); {NONSENSE[kind]}; time.sleep(600)"
    monkeypatch.setattr(nvml_process, "COMMAND", (sys.executable, "-c", program))
    assert fault_of(reader).code == "garbage"
    assert reader.reader._child is None


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import sys; sys.exit('no package here')", "exit code 1: no package here"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os, time; os.close(1); time.sleep(600)", "closing its output"),
        ("print('half an answer', end='')", "exit code 0"),
    ],
)
def test_a_child_that_ends_says_how(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, program: str, text: str
) -> None:
    """A child that ends without an answer is a fault with its last words."""
    monkeypatch.setattr(nvml_process, "COMMAND", (sys.executable, "-c", program))
    fault = fault_of(reader)
    assert fault.code == "crash"
    assert text in fault.text


def test_a_child_that_cannot_be_started_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    """A machine that cannot start a process gets a fault, not an exception."""
    monkeypatch.setattr(nvml_process, "COMMAND", ("/nowhere/python",))
    assert fault_of(reader).code == "start"


def test_pauses_double_up_to_half_a_minute(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A reader that keeps failing is started ever more rarely, but never given up."""
    starts = tmp_path / "starts"
    program = f"open({str(starts)!r}, 'a').write('x')"
    monkeypatch.setattr(nvml_process, "COMMAND", (sys.executable, "-c", program))
    started_at = []
    for second in range(120):
        monkeypatch.setattr(reader.reader, "_clock", functools.partial(float, second))
        before = len(starts.read_text()) if starts.exists() else 0
        assert fault_of(reader).code == "crash"
        if len(starts.read_text()) > before:
            started_at.append(second)
            # Minutes pass in no time here: see that child gone, which by then it would be.
            reader.loop.run_until_complete(reader.reader.close())
    assert started_at == [0, 1, 3, 7, 15, 31, 61, 91]


def test_one_good_answer_ends_the_pauses(driver: Driver, reader: Reader) -> None:
    """The pause after a failure is short again once the reader has worked."""
    stand_in = driver()
    stand_in.gpu()
    for _ in range(3):
        comes_back(reader)
        os.kill(child_of(reader), signal.SIGKILL)
        assert fault_of(reader).code == "crash"
        assert reader.reader._not_before - reader.reader._clock() <= gpu_reader.FIRST_PAUSE_S


# -- living together --------------------------------------------------------------------------


def test_readings_asked_for_at_once_are_all_given(driver: Driver, reader: Reader) -> None:
    """Two who ask at the same time both get devices."""
    driver().gpu()
    reader.devices()

    async def both() -> list[gpu_reader.Reading]:
        return list(await asyncio.gather(reader.reader.read(), reader.reader.read()))

    assert [len(devices) for devices, _, _ in reader.loop.run_until_complete(both())] == [1, 1]


def test_a_reading_given_up_by_its_asker_spoils_no_later_one(
    driver: Driver, reader: Reader
) -> None:
    """After a cancelled reading the next one works, with the same child."""
    driver().gpu()
    reader.devices()
    child = child_of(reader)

    async def give_up() -> None:
        reading = asyncio.ensure_future(reader.reader.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    reader.loop.run_until_complete(give_up())
    assert len(reader.devices()) == 1
    assert child_of(reader) == child


def test_closing_ends_the_child_and_reading_starts_another(driver: Driver, reader: Reader) -> None:
    """A closed reader holds no device open, and works again when it is asked again."""
    driver().gpu()
    reader.devices()
    child = child_of(reader)
    reader.loop.run_until_complete(reader.reader.close())
    assert not is_there(child)
    comes_back(reader)


def test_closing_ends_a_reading_under_way(driver: Driver, reader: Reader) -> None:
    """Whoever waits for a reading while the reader is closed is told so at once."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.hang("nvmlDeviceGetCount_v2")

    _, health, _ = reader.read_while(
        stand_in.hanging, lambda: reader.loop.create_task(reader.reader.close())
    )
    assert health.fault is not None
    assert health.fault.code == "closed"


def test_the_child_of_a_killed_gate_ends_even_while_it_hangs(
    driver: Driver,
) -> None:
    """No reader outlives its gate, whatever its call is waiting for."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.hang("nvmlDeviceGetCount_v2")
    program = (
        "import asyncio\n"
        "from jupyter_gpugate.gate.clock import awake_time\n"
        "from jupyter_gpugate.gate.gpu.reader import GpuReader\n"
        "asyncio.run(GpuReader(awake_time, 600).read())\n"
    )
    gate = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(stand_in.hanging)
        [child] = stand_in.hanging()
    finally:
        gate.kill()
        gate.wait()
    try:
        wait_until(lambda: not is_there(child))
    finally:
        stand_in.heal()  # what lives on against the rule ends with its input


def test_an_interrupt_from_the_terminal_does_not_reach_the_child(
    driver: Driver, reader: Reader
) -> None:
    """The child is in a session of its own."""
    driver().gpu()
    reader.devices()
    assert os.getsid(child_of(reader)) == child_of(reader)
