"""The stand-in driver itself: what other tests rest on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fake_nvml
from tests.fake_nvml import GB, HOLDER, VARIANTS, StandIn, build, holder
from tests.integration.gpu_reading import wait_until


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Put a stand-in driver into this process's environment."""
    made = StandIn(tmp_path / "driver")
    for name, value in made.env().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that only waits."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_builds_without_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], variant: str
) -> None:
    """The compiler has nothing to say about any variant."""
    fake_nvml._compiled.cache_clear()
    assert build(tmp_path, variant).name == "libnvidia-ml.so.1"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("variant", ["current", "old"])
def test_a_variant_lacks_what_its_drivers_lacked(tmp_path: Path, variant: str) -> None:
    """A call that a driver does not have is no symbol of its library."""
    library = build(tmp_path, variant).read_bytes()
    for name in (b"nvmlDeviceGetMemoryInfo_v2", b"nvmlDeviceGetComputeRunningProcesses_v3"):
        assert (name in library) == (variant == "current")


def test_memory_goes_with_its_process(stand_in: StandIn, sleeper: subprocess.Popen[bytes]) -> None:
    """A killed process holds nothing, even while nobody has waited for it."""
    gpu = stand_in.gpu(24 * GB)
    stand_in.hold(sleeper.pid, gpu, GB)
    assert stand_in.state().held_by_pid(gpu) == {sleeper.pid: GB}
    sleeper.kill()
    wait_until(lambda: not stand_in.state().held_by_pid(gpu))
    assert stand_in.state().free_bytes(gpu) == 24 * GB


def test_sticky_memory_outlives_its_process(
    stand_in: StandIn, sleeper: subprocess.Popen[bytes]
) -> None:
    """What a driver gives back late stays held until it is released."""
    gpu = stand_in.gpu()
    stand_in.hold(sleeper.pid, gpu, GB, sticky=True)
    sleeper.kill()
    sleeper.wait()
    assert stand_in.state().held_by_pid(gpu) == {sleeper.pid: GB}
    stand_in.release(sleeper.pid)
    assert stand_in.state().held_by_pid(gpu) == {}


def test_a_number_taken_over_by_another_process_holds_nothing(
    stand_in: StandIn, sleeper: subprocess.Popen[bytes]
) -> None:
    """An entry counts for the very process that made it."""
    gpu = stand_in.gpu()
    ticks = holder.start_ticks(sleeper.pid)
    assert ticks is not None
    former = holder.Hold(sleeper.pid, ticks - 1, "C", gpu, GB, sticky=False)
    holder.write_hold(stand_in.registry, former)
    assert stand_in.state().held_by_pid(gpu) == {}


def test_a_process_holds_from_inside(stand_in: StandIn) -> None:
    """One file run by its path is all that a program needs to hold memory."""
    gpu = stand_in.gpu(24 * GB)
    program = (
        "import runpy, sys\n"
        f"module = runpy.run_path({str(HOLDER)!r})\n"
        f"print(module['hold_gpu'](0, {2 * GB}), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().decode().strip() == gpu
        assert stand_in.state().held_by_pid(gpu) == {process.pid: 2 * GB}
        process.kill()
    assert stand_in.state().held_by_pid(gpu) == {}


def test_a_full_device_refuses_more(stand_in: StandIn, sleeper: subprocess.Popen[bytes]) -> None:
    """Whoever asks for more than is left runs out of memory; asking again replaces."""
    gpu = stand_in.gpu(24 * GB, reserved=GB)
    stand_in.hold(sleeper.pid, gpu, 20 * GB)
    holder.hold_gpu(0, 2 * GB)
    holder.hold_gpu(0, 3 * GB)
    with pytest.raises(holder.OutOfDeviceMemoryError, match="CUDA out of memory"):
        holder.hold_gpu(0, 3 * GB + 1)
    assert stand_in.state().held_by_pid(gpu) == {sleeper.pid: 20 * GB, os.getpid(): 3 * GB}
    holder.release_gpu()
    assert stand_in.state().held_by_pid(gpu) == {sleeper.pid: 20 * GB}


@pytest.mark.parametrize("device", [2, -1, "GPU-nobody"])
def test_a_device_that_cuda_does_not_show_cannot_be_held(
    stand_in: StandIn, device: int | str
) -> None:
    """There is no memory on a device that is not there."""
    stand_in.gpu()
    stand_in.gpu()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        holder.hold_gpu(device, GB)


def test_a_masked_device_cannot_be_held_by_name(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask counts for names as it does for numbers."""
    first, second = stand_in.gpu(), stand_in.gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second)
    assert holder.hold_gpu(second, GB) == second
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        holder.hold_gpu(first, GB)


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (None, ["GPU-aa", "GPU-ab", "MIG-c1"]),
        ("", []),
        ("-1", []),
        ("1", ["GPU-ab"]),
        ("1,0", ["GPU-ab", "GPU-aa"]),
        ("0,-1,1", ["GPU-aa"]),
        ("0,9,1", ["GPU-aa"]),
        ("GPU-ab", ["GPU-ab"]),
        ("GPU-a", []),
        ("GPU-ab, 0", ["GPU-ab", "GPU-aa"]),
        ("MIG-c2", ["MIG-c2"]),
        ("MIG-GPU-ca/2/0", ["MIG-c2"]),
        ("2", ["MIG-c1"]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_follow_cudas_rules(mask: str | None, seen: list[str]) -> None:
    """Unset is all, '' is none, a bad or doubtful word cuts the list; slices have two names."""
    parts = holder.read_parts(
        "gpu 0 uuid=GPU-aa total=8G\n"
        "gpu 1 uuid=GPU-ab total=8G\n"
        "gpu 2 uuid=GPU-ca total=40G mig=1\n"
        "mig 2 0 uuid=MIG-c1 total=10G gi=1 ci=0\n"
        "mig 2 1 uuid=MIG-c2 total=10G gi=2 ci=0\n"
    )
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if mask is not None:
        env["CUDA_VISIBLE_DEVICES"] = mask
    assert [part.uuid for part in holder.visible_devices(parts, env)] == seen


def test_cuda_numbers_the_fastest_board_first_unless_told() -> None:
    """By default CUDA's order is not the driver's, which is why masks name UUIDs."""
    parts = holder.read_parts("gpu 0 uuid=GPU-a total=8G\ngpu 1 uuid=GPU-b total=80G\n")
    by_speed = holder.visible_devices(parts, {"CUDA_VISIBLE_DEVICES": "0"})
    by_bus = holder.visible_devices(
        parts, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    )
    assert [part.uuid for part in (*by_speed, *by_bus)] == ["GPU-b", "GPU-a"]


RULED_CALLS = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
for _ in range(8):
    try:
        pynvml.nvmlDeviceGetName(handle)
        print("+", end="")
    except pynvml.NVMLError as error:
        print("-", end="")
"""


@pytest.mark.parametrize(
    ("scope", "outcome"),
    [
        ({}, "--------"),
        ({"after": 3}, "+++-----"),
        ({"every": 3}, "++-++-++"),
        ({"times": 2}, "--++++++"),
        ({"after": 2, "times": 1}, "++-+++++"),
        ({"gpu": 0}, "--------"),
        ({"gpu": 1}, "++++++++"),
    ],
)
def test_rules_act_as_often_as_they_say(
    stand_in: StandIn, scope: dict[str, str | int], outcome: str
) -> None:
    """A rule spares, repeats and rests by count, and keeps to its board."""
    stand_in.gpu()
    stand_in.gpu()
    stand_in.fail("nvmlDeviceGetName", 999, **scope)
    result = subprocess.run(
        [sys.executable, "-c", RULED_CALLS], check=True, capture_output=True, text=True
    )
    assert result.stdout == outcome
