"""Limits on torch's memory in a worker, and the reports of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cell_process import CellRun
from tests.integration.torch_stand_in import GIB, cell_with_torch


@pytest.fixture
def cell(tmp_path: Path) -> CellRun:
    """A cell that finds the stand-in under the name of torch."""
    return cell_with_torch(tmp_path)


def test_torch_is_capped_when_the_cell_starts_cuda_and_not_before(cell: CellRun) -> None:
    """The allocator's limit is cap / total of the placed device, set inside CUDA's own start."""
    cell.source = """
        import sys
        assert "torch" not in sys.modules
        import torch
        before = (dict(torch.cuda.fractions), torch.cuda.is_initialized())
        torch.cuda.reserve(0, 5)
        after = torch.cuda.fractions
        """
    ended = cell.run(outputs=["before", "after"])
    assert ended.code == 0, ended.stderr
    assert cell.result("before") == ({}, False)
    assert cell.result("after") == {0: 0.25}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_the_cell_starts_are_capped_too(cell: CellRun, method: str) -> None:
    """A child that starts CUDA itself gets the same limit."""
    cell.source = f"""
        import multiprocessing, torch
        def child(_):
            torch.cuda.reserve(0, 1)
            return torch.cuda.fractions
        with multiprocessing.get_context("{method}").Pool(1) as pool:
            found = pool.map(child, [0])
        """
    ended = cell.run(outputs=["found"])
    assert ended.code == 0, ended.stderr
    assert cell.result("found") == [{0: 0.25}]


def test_a_device_without_a_uuid_is_found_by_its_place_in_the_mask(cell: CellRun) -> None:
    """Where torch does not tell UUIDs, the visible devices' order does."""
    cell.facts = {"devices": ["GPU-aaaa", "MIG-x"]}
    mask = {
        "CUDA_VISIBLE_DEVICES": "MIG-x,GPU-aaaa",
        "GPUGATE_CAPS": json.dumps({"MIG-x": 4 * GIB}),
    }
    cell.environment = mask
    cell.source = """
        import torch
        for device in torch.cuda.DEVICES:
            del device.uuid
        torch.cuda.reserve(0, 5)
        fractions = torch.cuda.fractions
        """
    ended = cell.run(outputs=["fractions"])
    assert cell.result("fractions") == {0: 0.5}
    assert ended.of("torch")[-1]["vram_peak"] == {"MIG-x": 5, "GPU-aaaa": 0}


def test_a_device_without_a_uuid_is_found_by_its_number_in_the_mask(cell: CellRun) -> None:
    """The run's environment says which device each number of its mask is."""
    cell.facts = {"devices": ["GPU-aaaa", "GPU-bbbb"]}
    cell.environment = {
        "CUDA_VISIBLE_DEVICES": "3,1",
        "GPUGATE_DEVICES": json.dumps({"3": "GPU-bbbb", "1": "GPU-aaaa"}),
        "GPUGATE_CAPS": json.dumps({"GPU-bbbb": 4 * GIB}),
    }
    cell.source = """
        import torch
        for device in torch.cuda.DEVICES:
            del device.uuid
        torch.cuda.reserve(0, 5)
        fractions = torch.cuda.fractions
        """
    ended = cell.run(outputs=["fractions"])
    assert cell.result("fractions") == {0: 0.5}
    assert ended.of("torch")[-1]["vram_peak"] == {"GPU-bbbb": 5, "GPU-aaaa": 0}


def test_a_cap_above_the_device_is_the_device(cell: CellRun) -> None:
    """A cap that exceeds the device's total limits to the whole device, never beyond."""
    cell.environment = {"GPUGATE_CAPS": json.dumps({"GPU-aaaa": 99 * GIB})}
    cell.source = "import torch\ntorch.cuda.reserve(0, 5)\nfractions = torch.cuda.fractions"
    cell.run(outputs=["fractions"])
    assert cell.result("fractions") == {0: 1.0}


def test_a_cap_that_cannot_be_set_is_told_and_the_run_goes_on(cell: CellRun) -> None:
    """A failing limit is a warning, not the end of the run; without a cap nothing is limited."""
    cell.source = """
        import torch
        def fails(fraction, index): raise RuntimeError("no limit here")
        torch.cuda.set_per_process_memory_fraction = fails
        torch.cuda.reserve(0, 5)
        """
    ended = cell.run()
    assert ended.code == 0
    assert [w["text"] for w in ended.of("warning")] == [
        "the memory cap could not be set: RuntimeError: no limit here"
    ]
    cell.environment = {"GPUGATE_CAPS": "{}"}
    assert cell.run().of("warning") == []


def test_a_cap_that_changes_is_applied_while_the_cell_runs(cell: CellRun) -> None:
    """A first run's process looks for other caps, and so does a process that it starts later."""
    cell.facts |= {"basis": {"GPU-aaaa": "watch"}, "enforcement": "enforced"}
    cell.source = """
        import json, os, time, multiprocessing, torch
        def child(_):
            torch.cuda.reserve(0, 1)
            return torch.cuda.fractions
        def other(cap):
            path = os.path.join(os.environ["GPUGATE_ATTEMPT_DIR"], "caps.json")
            with open(path + ".new", "w") as file:
                file.write(cap)
            os.replace(path + ".new", path)
        torch.cuda.reserve(0, 5)
        found = [dict(torch.cuda.fractions)]
        other("no JSON")
        for cap in (1 << 30, 4 << 30):
            other(json.dumps({"GPU-aaaa": cap}))
            while torch.cuda.fractions == found[-1]:
                time.sleep(0.01)
            found.append(dict(torch.cuda.fractions))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found += pool.map(child, [0])
        """
    ended = cell.run(outputs=["found"])
    assert ended.code == 0, ended.stderr
    assert cell.result("found") == [{0: 0.25}, {0: 0.125}, {0: 0.5}, {0: 0.5}]


def test_a_cap_of_a_known_need_stays(cell: CellRun) -> None:
    """Where the gate never changes a cap, no thread looks for another one."""
    cell.facts |= {"basis": {"GPU-aaaa": "calibrated"}, "enforcement": "enforced"}
    cell.source = """
        import threading, torch
        torch.cuda.reserve(0, 5)
        names = [thread.name for thread in threading.enumerate()]
        """
    cell.run(outputs=["names"])
    assert "gpugate-caps" not in cell.result("names")


def test_the_users_own_allocator_settings_are_left_alone(cell: CellRun) -> None:
    """``PYTORCH_CUDA_ALLOC_CONF`` reaches the cell as the user has set it, or not at all."""
    cell.source = 'import os, torch\nfound = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")'
    cell.run(outputs=["found"])
    assert cell.result("found") is None
    cell.environment["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"
    cell.run(outputs=["found"])
    assert cell.result("found") == "max_split_size_mb:64"


def test_torchs_own_peaks_are_told_at_the_end_of_each_episode(cell: CellRun) -> None:
    """Peak and held memory of each device follow every episode and the end, once CUDA runs."""
    cell.source = """
        import torch
        for e in episodes:
            if e.index:
                torch.cuda.reserve(0, [0, 7, 3][e.index])
                torch.cuda.reserve(1, 1)
        torch.cuda.reserve(0, 9)
        """
    ended = cell.run(episodes=3)
    kinds = [event["event"] for event in ended.events]
    assert kinds == ["episode", "episode", "torch", "episode", "torch", "result", "torch"]
    told = [(t["vram_peak"], t["vram_held"]) for t in ended.of("torch")]
    assert told == [
        ({"GPU-aaaa": 7, "GPU-bbbb": 1}, {"GPU-aaaa": 7, "GPU-bbbb": 1}),
        ({"GPU-aaaa": 7, "GPU-bbbb": 1}, {"GPU-aaaa": 3, "GPU-bbbb": 1}),
        ({"GPU-aaaa": 9, "GPU-bbbb": 1}, {"GPU-aaaa": 9, "GPU-bbbb": 1}),
    ]


def test_a_cell_that_never_starts_cuda_tells_nothing_of_torch(cell: CellRun) -> None:
    """Importing torch alone gives no report, and nothing starts CUDA for one."""
    cell.source = "import torch\nfor e in episodes: pass\nstarted = torch.cuda.is_initialized()"
    ended = cell.run(outputs=["started"])
    assert ended.of("torch") == []
    assert cell.result("started") is False


def test_values_on_a_device_are_moved_to_the_host_first(cell: CellRun) -> None:
    """What a cell keeps or returns from a device is read without one, nested or not."""
    cell.source = """
        import cupy, jax, torch
        made = {
            "torch": torch.Tensor(torch.UntypedStorage([1, 2])),
            "jax": [jax.Array()],
            "cupy": (cupy.ndarray(),),
        }
        for e in episodes:
            e.keep(made)
        found = str(episodes.values[0])
        """
    ended = cell.run(outputs=["made", "found"])
    assert ended.code == 0, ended.stderr
    expected = "{'torch': [1, 2], 'jax': [array([0, 1, 2])], 'cupy': (array([0, 1, 2, 3]),)}"
    assert cell.result("found") == expected
    assert str(cell.result("made")) == expected


def test_the_real_torch_queues_the_cap_until_cuda_starts(tmp_path: Path) -> None:
    """The installed torch keeps the limit among the calls of its own lazy start."""
    cell = CellRun(tmp_path, "", facts={"devices": ["GPU-aaaa"]})
    cell.environment = {"GPUGATE_CAPS": json.dumps({"GPU-aaaa": 2 * GIB})}
    cell.source = """
        import types
        import torch
        ours = [call for call, _ in torch.cuda._queued_calls if "cap_torch" in call.__qualname__]
        set_by = []
        torch.cuda.device_count = lambda: 1
        torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(
            uuid="aaaa", total_memory=8 << 30
        )
        torch.cuda.set_per_process_memory_fraction = lambda *given: set_by.append(given)
        ours[0]()
        started = torch.cuda.is_initialized()
        count = len(ours)
        """
    ended = cell.run(outputs=["count", "set_by", "started"])
    assert ended.code == 0, ended.stderr
    assert (cell.result("count"), cell.result("started")) == (1, False)
    assert cell.result("set_by") == [(0.25, 0)]
