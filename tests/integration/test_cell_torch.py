"""What a worker does about torch: with the real one, and with a stand-in that has devices."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.integration.cell_process import CellRun, python_path

GIB = 1 << 30
#: As little of torch as a worker touches, with the order of events of the real one: what is queued
#: runs inside the start of CUDA, and every call that needs a device starts it.
STAND_IN = """
    import types

    DEVICES = [types.SimpleNamespace(uuid="aaaa", total_memory=8 << 30),
               types.SimpleNamespace(uuid="bbbb", total_memory=16 << 30)]
    fractions, calls, started = {}, [], []
    reserved, peak = {0: 0, 1: 0}, {0: 0, 1: 0}
    _starting = []

    class OutOfMemoryError(RuntimeError):
        pass

    def is_initialized():
        return bool(started)

    def _lazy_call(call):
        call() if started else calls.append(call)

    def _lazy_init():
        if started or _starting:
            return
        _starting.append(True)
        for call in calls:
            call()
        started.append(True)

    def device_count():
        return len(DEVICES)

    def get_device_properties(index):
        _lazy_init()
        return DEVICES[index]

    def set_per_process_memory_fraction(fraction, index):
        assert isinstance(fraction, float) and 0 <= fraction <= 1
        _lazy_init()
        fractions[index] = fraction

    def reserve(index, size):
        _lazy_init()
        reserved[index] = size
        peak[index] = max(peak[index], size)

    def memory_reserved(index):
        assert started
        return reserved[index]

    def max_memory_reserved(index):
        assert started
        return peak[index]
"""


#: Values on a device, which refuse to be pickled as they are.
VALUES = """
    import types
    from torch import cuda
    OutOfMemoryError = cuda.OutOfMemoryError
    GPU, CPU = types.SimpleNamespace(type="cuda"), types.SimpleNamespace(type="cpu")

    class UntypedStorage:
        def __init__(self, items, device=GPU):
            self.items, self.device = items, device

        def cpu(self):
            return UntypedStorage(self.items, CPU)

        def __reduce__(self):
            assert self.device is CPU
            return list, (self.items,)

    class storage:
        TypedStorage = UntypedStorage

    class Tensor:
        requires_grad = True

        def __init__(self, storage):
            self.storage = storage

        def __reduce__(self):
            return list, (self.storage,)

        def __iter__(self):
            return iter([self.storage])
"""
JAX = """
    import numpy

    class Array:
        def __array__(self, dtype=None, copy=None):
            return numpy.arange(3)

        def __reduce__(self):
            raise TypeError("on a device")
"""
CUPY = """
    import numpy

    class ndarray:
        def get(self):
            return numpy.arange(4)

        def __reduce__(self):
            raise TypeError("on a device")
"""


@pytest.fixture
def cell(tmp_path: Path) -> CellRun:
    """A cell that finds the stand-in under the name of torch."""
    library = tmp_path / "library"
    package = library / "torch" / "cuda"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(STAND_IN))
    (library / "torch" / "__init__.py").write_text(textwrap.dedent(VALUES))
    (library / "jax.py").write_text(textwrap.dedent(JAX))
    (library / "cupy.py").write_text(textwrap.dedent(CUPY))
    run = CellRun(tmp_path, "")
    run.path = [str(library), *python_path(run.interpreter)]
    run.facts = {"devices": ["GPU-aaaa"]}
    run.environment = {"GPUGATE_CAPS": json.dumps({"GPU-aaaa": 2 * GIB})}
    return run


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


NEWER = (
    "CUDA out of memory. Tried to allocate {asked}. GPU {gpu} has a total capacity of 8.00 GiB of "
    "which 5.50 GiB is free. Process 7 has 2.50 GiB memory in use. 2.00 GiB allowed; Of the "
    "allocated memory 1.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting something."
)
OLDER = (
    "CUDA out of memory. Tried to allocate {asked} (GPU {gpu}; 8.00 GiB total capacity; 1.50 GiB "
    "already allocated; 5.50 GiB free; 1.60 GiB reserved in total by PyTorch) If reserved memory "
    "is >> allocated memory try setting something."
)
TERSE = "CUDA out of memory. Tried to allocate {asked}."


@pytest.mark.parametrize("words", [NEWER, OLDER, TERSE], ids=["newer", "older", "terse"])
@pytest.mark.parametrize(
    ("asked", "gpu", "evidence"),
    [
        ("1.00 GiB", 0, "own_cap"),
        ("412.00 MiB", 0, "own_cap"),
        ("20.00 MiB", 0, "device_full"),
        ("1024 bytes", 0, "device_full"),
    ],
)
def test_an_allocation_beyond_the_own_cap_is_told_from_a_full_device(
    cell: CellRun, words: str, asked: str, gpu: int, evidence: str
) -> None:
    """Reserved and requested above the cap is ``own_cap``; below it the device was full."""
    cell.source = f"""
        import torch
        torch.cuda.reserve(0, {int(1.6 * GIB)})
        raise torch.OutOfMemoryError({words.format(asked=asked, gpu=gpu)!r})
        """
    ended = cell.run()
    (found,) = ended.of("oom")
    assert (found["resource"], found["evidence"]) == ("vram", evidence)
    assert asked in found["text"]
    assert (ended.code, ended.error["ename"]) == (1, "OutOfMemoryError")


@pytest.mark.parametrize(
    "words",
    [NEWER.format(asked="9.00 GiB", gpu=1), "CUDA error: out of memory"],
    ids=["another device", "no amount"],
)
def test_out_of_memory_that_no_cap_explains_is_a_full_device(cell: CellRun, words: str) -> None:
    """Another device than the capped one has no own cap to hit, and without an amount none is known
    to have been hit; a stated cause counts as well.
    """
    cell.source = f"""
        import torch
        try:
            raise torch.cuda.OutOfMemoryError({words!r})
        except RuntimeError as error:
            raise ValueError("the evaluation failed") from error
        """
    ended = cell.run()
    assert [(o["resource"], o["evidence"]) for o in ended.of("oom")] == [("vram", "device_full")]
    assert ended.error["ename"] == "ValueError"


def test_running_out_of_host_memory_is_told(tmp_path: Path) -> None:
    """``MemoryError``, NumPy's and torch's own words for it are out of memory on ``ram``, and so
    is a ``MemoryError`` while an output is written.
    """
    cell = CellRun(tmp_path, "")
    for source in (
        "raise MemoryError",
        "import numpy as np\nnp.empty(1 << 50)",
        "import torch\ntorch.empty(1 << 58)",
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (1 << 30, -1))\nx = bytearray(2 << 30)",
    ):
        cell.source = source
        ended = cell.run()
        assert ended.code == 1
        found = [(o["resource"], o["evidence"]) for o in ended.of("oom")]
        assert found == [("ram", "memory_error")], source
    cell.source = "raise RuntimeError('out of memory, so it says')"
    assert cell.run().of("oom") == []
    cell.source = """
        class Large:
            def __reduce__(self):
                raise MemoryError

        x = Large()
        """
    ended = cell.run(outputs=["x"])
    assert [(o["resource"], o["evidence"]) for o in ended.of("oom")] == [("ram", "memory_error")]
    assert (ended.code, ended.of("result")) == (1, [])


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
