"""What the GPU reader survives: drivers that fail, hang, crash or talk nonsense."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.gate.gpu import (
    child as nvml_child,
)
from tests.fake_nvml import StandIn
from tests.integration.gpu_failures import child_of, comes_back, fault_of, is_there
from tests.integration.gpu_reading import Driver, Reader, wait_until


@pytest.fixture
def hasty() -> Iterator[Reader]:
    """Give a reader whose deadline is missed by what hangs, and perhaps by what is slow."""
    reader = Reader(deadline_s=0.5)
    yield reader
    reader.close()


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
