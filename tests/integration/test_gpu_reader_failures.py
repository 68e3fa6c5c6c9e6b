"""What the GPU reader survives: drivers that fail, hang, crash or talk nonsense."""

from __future__ import annotations

import asyncio
import functools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Fault
from jupyter_gpugate.gate.gpu import (
    child as nvml_child,
)
from jupyter_gpugate.gate.gpu import (
    process as nvml_process,
)
from jupyter_gpugate.gate.gpu import (
    reader as gpu_reader,
)
from tests.fake_nvml import StandIn
from tests.integration.gpu_reading import Driver, Reader, wait_until


@pytest.fixture
def hasty() -> Iterator[Reader]:
    """Give a reader whose deadline is missed by what hangs, and perhaps by what is slow."""
    reader = Reader(deadline_s=0.5)
    yield reader
    reader.close()


def fault_of(reader: Reader) -> Fault:
    """Read, and return what must be wrong with the reader."""
    devices, health, _ = reader.read()
    assert devices == ()
    assert health.present
    assert health.fault is not None
    return health.fault


def child_of(reader: Reader) -> int:
    """Return the pid of the live child."""
    assert reader.reader._child is not None
    return reader.reader._child._process.pid


def is_there(pid: int) -> bool:
    """Tell whether a process runs, zombies not counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def comes_back(reader: Reader) -> None:
    """Assert that devices are read again, at the latest after the longest pause."""
    devices, health, _ = reader.read_until(lambda reading: bool(reading[0]))
    assert health.fault is None
    assert all(device.free_bytes is not None for device in devices)


# -- no driver, or one that cannot be used ----------------------------------------------------


def test_a_machine_without_a_driver_has_no_gpu_and_no_fault(reader: Reader) -> None:
    """No driver library is no trouble: there are no devices, and nothing to mend."""
    if nvml_child.library_is_there():
        pytest.skip("this machine has a driver")
    devices, health, _ = reader.read()
    assert devices == ()
    assert (health.present, health.fault) == (False, None)


def test_a_driver_without_boards_has_no_gpu_and_no_fault(driver: Driver, reader: Reader) -> None:
    """A driver that counts no board says that there is none."""
    driver()
    devices, health, _ = reader.read()
    assert devices == ()
    assert (health.present, health.fault) == (False, None)


def test_a_driver_installed_later_is_found(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that gets its driver while the gate runs gets its GPUs too."""
    if nvml_child.library_is_there():
        pytest.skip("this machine has a driver")
    folder = tmp_path / "later" / "driver"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("GPUGATE_STANDIN_STATE", str(folder / "state"))
    monkeypatch.setenv("GPUGATE_STANDIN_PROCS", str(folder / "holders"))
    folder.mkdir(parents=True)
    assert not reader.read()[1].present
    (folder / "holders").parent.rmdir()
    StandIn(folder).gpu(24 * GB)
    assert reader.devices()[0].free_bytes == 24 * GB


def test_a_broken_library_is_a_fault_and_not_a_missing_gpu(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is there and cannot be loaded is something to mend."""
    (tmp_path / "libnvidia-ml.so.1").write_text("half an upgrade")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    fault = fault_of(reader)
    assert fault.code == "library"
    assert "libnvidia-ml.so.1" in fault.text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (9, "Driver Not Loaded"),
        (18, "RM has detected an NVML/RM version mismatch."),
        (999, "Unknown Error"),
    ],
)
def test_a_driver_that_will_not_start_says_why(
    driver: Driver, reader: Reader, code: int, text: str
) -> None:
    """The driver's own code and text are told, whatever they are."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.fail("nvmlInit_v2", code)
    fault = fault_of(reader)
    assert (fault.code, fault.text) == (f"nvml-{code}", text)


def test_a_library_is_opened_afresh_after_each_failure(driver: Driver, reader: Reader) -> None:
    """An upgrade under a running gate is over when a new child finds it over, with one date."""
    stand_in = driver()
    stand_in.gpu()
    assert len(reader.devices()) == 1
    former = child_of(reader)
    stand_in.fail("nvmlDeviceGetCount_v2", 18)
    stand_in.fail("nvmlInit_v2", 18)
    first = fault_of(reader)
    for _ in range(3):
        reader.later_s += 60
        assert fault_of(reader) == first
    stand_in.heal()
    comes_back(reader)
    assert child_of(reader) != former


def test_a_driver_that_stops_answering_is_a_fault_and_not_a_missing_gpu(
    driver: Driver, reader: Reader
) -> None:
    """When every call begins to fail there is a fault: the machine does not lose its GPUs."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.fail("*", 999, after=40)
    devices, health, _ = reader.read_until(lambda reading: reading[1].fault is not None)
    assert devices == ()
    assert health.present
    assert health.fault is not None
    assert health.fault.code == "nvml-999"


def test_an_absurd_number_of_boards_is_a_fault(driver: Driver, reader: Reader) -> None:
    """A driver that counts boards by the million is not followed."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.garbage("nvmlDeviceGetCount_v2")
    assert fault_of(reader).code == "not_a_reading"


@pytest.mark.parametrize("kind", ["package", "module"])
def test_another_module_named_pynvml_is_refused_by_name(
    driver: Driver, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A binding that hides the right one is not used, and the fault says where it lies."""
    driver().gpu()
    stub = tmp_path / "stub" / ("pynvml/__init__.py" if kind == "package" else "pynvml.py")
    stub.parent.mkdir(parents=True)
    stub.write_text("def nvmlInit(): pass\n")
    monkeypatch.syspath_prepend(tmp_path / "stub")
    fault = fault_of(reader)
    assert fault.code == "binding"
    assert str(stub) in fault.text
    assert "nvidia-ml-py" in fault.text


def test_a_binding_with_another_memory_struct_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The struct that free is read from must be the library's own."""
    binding = nvml_child.load_binding()
    monkeypatch.setattr(binding, "nvmlMemory_v2", 0x01000018)
    with pytest.raises(nvml_child.BindingError, match="memory struct"):
        nvml_child.load_binding()


# -- hangs ------------------------------------------------------------------------------------


@pytest.mark.behaviour(118)
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ],
)
def test_a_hanging_driver_does_not_hang_its_reader(
    driver: Driver, hasty: Reader, function: str
) -> None:
    """A reading ends by its deadline while the call still hangs, and shows no free memory."""
    stand_in = driver()
    stand_in.gpu()
    hasty.read_until(lambda reading: bool(reading[0]))
    hung = child_of(hasty)
    stand_in.hang(function)
    assert fault_of(hasty).code == "timeout"
    wait_until(lambda: not is_there(hung))
    stand_in.heal()
    comes_back(hasty)


def test_a_slow_start_is_awaited_and_not_killed(driver: Driver, hasty: Reader) -> None:
    """A driver that takes long to load is given the time, and readings go on saying so."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.hang("nvmlInit_v2")
    assert fault_of(hasty).code == "starting"
    child = child_of(hasty)
    assert fault_of(hasty).code == "starting"
    stand_in.heal()
    hasty.read_until(lambda reading: bool(reading[0]))
    assert child_of(hasty) == child


def test_a_start_that_never_ends_is_given_up(driver: Driver, hasty: Reader) -> None:
    """A driver that has not loaded in the time for loading counts as hanging."""
    stand_in = driver()
    stand_in.gpu()
    stand_in.hang("nvmlInit_v2")
    assert fault_of(hasty).code == "starting"
    hasty.later_s += 3600
    assert fault_of(hasty).code == "timeout"


def test_an_answer_that_waits_in_the_pipe_counts_after_the_deadline(driver: Driver) -> None:
    """A gate that was stopped past the deadline does not blame a driver that has answered."""
    stand_in = driver()
    stand_in.gpu()
    reader = Reader(deadline_s=3.0)
    reader.read_until(lambda reading: bool(reading[0]))
    child = child_of(reader)
    stand_in.hang("nvmlDeviceGetCount_v2")

    def stall() -> None:
        # This whole process stands still: the answer comes meanwhile, and the deadline passes.
        stand_in.heal()
        assert reader.reader._child is not None
        answers = reader.reader._child._output._transport.get_extra_info("pipe")  # type: ignore[attr-defined]
        select.select([answers], [], [])
        time.sleep(3.5)

    devices, health, _ = reader.read_while(stand_in.hanging, stall)
    assert (len(devices), health.fault) == (1, None)
    assert child_of(reader) == child
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


def test_the_gate_itself_never_touches_the_driver(driver: Driver) -> None:
    """Importing the package and reading GPUs loads neither the library nor a binding nor torch."""
    driver().gpu()
    program = (
        "import asyncio, sys\n"
        "import jupyter_gpugate\n"
        "from jupyter_gpugate.gate.clock import awake_time\n"
        "from jupyter_gpugate.gate.gpu.reader import GpuReader\n"
        "async def once():\n"
        "    reader = GpuReader(awake_time, 60)\n"
        "    devices, _, _ = await reader.read()\n"
        "    await reader.close()\n"
        "    return devices\n"
        "assert asyncio.run(once())[0].free_bytes\n"
        "assert not {'pynvml', 'torch'} & set(sys.modules)\n"
        "assert 'nvidia' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_pids_of_another_namespace_are_not_ours(driver: Driver) -> None:
    """In a PID namespace of its own the reader names nobody, says why, and measures on."""
    stand_in = driver()
    gpu = stand_in.gpu()
    stand_in.hold(os.getpid(), gpu, GB)
    program = (
        "import asyncio\n"
        "from jupyter_gpugate.gate.clock import awake_time\n"
        "from jupyter_gpugate.gate.gpu.reader import GpuReader\n"
        "async def once():\n"
        "    reader = GpuReader(awake_time, 60)\n"
        "    devices, health, ours = await reader.read()\n"
        "    await reader.close()\n"
        "    print(devices[0].free_bytes, ours, health.detail.get('pid_namespace'), sep='|')\n"
        "asyncio.run(once())\n"
    )
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user cannot make a PID namespace")
    result = subprocess.run(
        [*apart, sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    free, ours, reason = result.stdout.strip().split("|")
    assert ours == "False"
    assert "container" in reason
    assert int(free) <= 24 * GB
