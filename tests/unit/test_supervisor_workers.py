"""Workers: their environment, and what their failures and figures prove."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpugate.programs.supervisor.cgroups import oom_kills
from jupyter_gpugate.programs.supervisor.environment import worker_environment
from jupyter_gpugate.programs.supervisor.failure import classify
from jupyter_gpugate.programs.supervisor.workers import bytes_by_device, summed


def launch(**fields: Any) -> dict[str, Any]:
    """Make what an environment depends on."""
    blank = {"run_id": "r", "attempt": 2, "workers": 2, "devices": [], "caps": {}}
    return {**blank, "device_totals": {}, **fields}


def test_a_worker_is_tagged_and_sees_its_devices_only() -> None:
    """The run's own environment passes, under the tags, the devices by UUID and the cap's share."""
    told = launch(devices=["GPU-a", "GPU-b"], caps={"GPU-a": 100, "GPU-b": 300})
    found = worker_environment(told, {"KEY": "mine", "CUDA_VISIBLE_DEVICES": "7"}, 1)
    assert found["KEY"] == "mine"
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["PYTHONUNBUFFERED"] == "1"
    assert (found["GPUGATE_RUN_ID"], found["GPUGATE_ATTEMPT"]) == ("r", "2")
    assert (found["GPUGATE_WORKER"], found["GPUGATE_WORKERS"]) == ("1", "2")
    assert json.loads(found["GPUGATE_CAPS"]) == {"GPU-a": 50, "GPU-b": 150}


def test_a_first_run_with_all_of_a_device_does_not_divide_it() -> None:
    """One of its workers may need most of it; what others are promised memory of is divided."""
    watched = {"basis": {"G": "watch"}, "devices": ["G"], "device_totals": {"G": 100}}
    for cap, share in ((91, 91), (89, 44)):
        found = worker_environment(launch(caps={"G": cap}, **watched), {}, 0)
        assert json.loads(found["GPUGATE_CAPS"]) == {"G": share}
    known = launch(**{**watched, "basis": {"G": "calibrated"}}, caps={"G": 91})
    assert json.loads(worker_environment(known, {}, 0)["GPUGATE_CAPS"]) == {"G": 45}


def test_a_worker_sees_its_devices_by_the_entries_that_the_gate_names() -> None:
    """Each with its UUID beside it; a gate of an earlier version names none, and UUIDs serve."""
    told = launch(devices=["GPU-a", "GPU-b"], caps={})
    found = worker_environment(told, {}, 0, ["3", "1"])
    assert found["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert json.loads(found["GPUGATE_DEVICES"]) == {"3": "GPU-a", "1": "GPU-b"}
    assert worker_environment(told, {}, 0, [])["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_a_run_without_devices_sees_none() -> None:
    """No device means an empty mask, which is not the same as no mask, and no framework is told."""
    found = worker_environment(launch(), {"CUDA_VISIBLE_DEVICES": "0"}, 0)
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert not [name for name in found if name.startswith(("XLA_", "TF_"))]


def test_frameworks_are_told_the_cap_of_one_worker() -> None:
    """The fraction is the smallest share of a device that one worker may use."""
    told = launch(
        devices=["GPU-a", "GPU-b"],
        caps={"GPU-a": 800, "GPU-b": 500},
        device_totals={"GPU-a": 1000, "GPU-b": 1000},
    )
    found = worker_environment(told, {}, 0)
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert float(found["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == 0.25
    assert found["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_the_users_own_framework_settings_stand() -> None:
    """What the user has set is merged with, never replaced."""
    own = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
    }
    told = launch(devices=["G"], caps={"G": 8}, device_totals={"G": 10})
    found = worker_environment(told, own, 0)
    assert {name: found[name] for name in own} == own


@pytest.mark.behaviour(154)
@pytest.mark.parametrize(
    ("code", "event", "kills", "shm_full", "expected"),
    [
        (3, None, 0, False, ("failed", "exit 3", None, "")),
        (3, None, 5, True, ("failed", "exit 3", None, "")),
        (-9, None, 0, False, ("failed", "signal SIGKILL", None, "")),
        (-9, None, 1, False, ("oom", "signal SIGKILL", "ram", "host_oom_killer")),
        (137, None, 1, False, ("oom", "exit 137", "ram", "host_oom_killer")),
        (-7, None, 0, False, ("failed", "signal SIGBUS", None, "")),
        (-7, None, 1, True, ("oom", "signal SIGBUS", "shm", "shm_full")),
        (-11, None, 1, True, ("failed", "signal SIGSEGV", None, "")),
        (
            1,
            {"event": "oom", "resource": "vram", "evidence": "own_cap"},
            0,
            False,
            ("oom", "exit 1", "vram", "own_cap"),
        ),
        (
            1,
            {"event": "oom", "resource": "ram", "evidence": "memory_error"},
            0,
            False,
            ("oom", "exit 1", "ram", "memory_error"),
        ),
        (1, {"event": "oom", "resource": "time"}, 0, False, ("failed", "exit 1", None, "")),
    ],
)
def test_a_failure_is_called_oom_by_evidence_only(
    code: int,
    event: dict[str, Any] | None,
    kills: int,
    shm_full: bool,
    expected: tuple[str, str, str | None, str],
) -> None:
    """The exit alone says nothing: a kill needs the kernel's count, a bus error a full /dev/shm."""
    found = classify(code, event, kills=kills, shm_full=shm_full)
    names = ("outcome", "reason", "oom_resource", "oom_evidence")
    blank = {"oom_resource": None, "oom_evidence": ""}
    assert tuple({**blank, **found}[name] for name in names) == expected
    assert found["exit_code"] == code


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    """Real-time signals have no name of their own."""
    found = classify(-40, None, kills=0, shm_full=False)
    assert found["reason"] == "signal 40"


def test_kills_are_counted_by_the_kernel() -> None:
    """The count of out-of-memory kills can be read on this machine, whatever its cgroups."""
    assert oom_kills() >= 0


def test_a_workers_figures_are_not_trusted() -> None:
    """What is not {uuid: bytes} is left out, and what is adds up by device."""
    assert bytes_by_device({"a": 1, "b": -1, "c": True, "d": "9", "e": 2.5}) == {"a": 1}
    assert bytes_by_device([1]) == {}
    assert summed([{"a": 1, "b": 2}, {"a": 3}]) == {"a": 4, "b": 2}
