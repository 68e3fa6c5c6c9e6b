"""Errors of a cell that mean that memory ran out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cell_process import CellRun
from tests.integration.torch_stand_in import GIB, cell_with_torch


@pytest.fixture
def cell(tmp_path: Path) -> CellRun:
    """A cell that finds the stand-in under the name of torch."""
    return cell_with_torch(tmp_path)


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
