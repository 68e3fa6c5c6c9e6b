"""Inputs and outputs of a cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.integration.cell_process import CellRun

MB = 1 << 20


def test_large_inputs_are_mapped_and_private(cell: CellRun) -> None:
    """An array given by value is used from its mapped file, which stays as it was."""
    cell.source = """
        import re
        private_kb = int(re.search(r"RssAnon:\\s*(\\d+)", open("/proc/self/status").read())[1])
        big[0] = -1
        first, last, empty_size = int(big[0]), int(big[-1]), empty.size
        """
    big: Any = np.arange(32 * MB, dtype=np.int64)
    cell.stage("big", big)
    cell.stage("empty", np.zeros(0))
    outputs = ["private_kb", "first", "last", "empty_size"]
    ended = cell.run(inputs=["big", "empty"], outputs=outputs)
    assert ended.code == 0, ended.stderr
    assert (cell.result("first"), cell.result("last")) == (-1, 32 * MB - 1)
    assert cell.result("empty_size") == 0
    assert cell.result("private_kb") * 1024 < big.nbytes / 2
    assert (cell.directory / "inputs/big.buffers").read_bytes()[64:72] == bytes(8)


def test_an_input_that_cannot_be_loaded_is_named(cell: CellRun) -> None:
    """A run whose input is missing or torn ends before the cell, with an error that names it."""
    cell.source = "print('ran')"
    cell.stage("x", 1)
    (cell.directory / "inputs/x.pickle").write_bytes(b"\x80\x05")
    ended = cell.run(inputs=["x"])
    assert (ended.code, ended.stdout) == (1, "")
    assert "input `x` cannot be loaded" in ended.error["evalue"]


def test_outputs_carry_the_cells_own_classes_by_value(cell: CellRun) -> None:
    """With cloudpickle an output of a class that only the cell has is readable elsewhere."""
    cell.source = """
        class Score:
            def __init__(self, x): self.x = x
            def twice(self): return 2 * self.x
        best = Score(21)
        """
    assert cell.run(outputs=["best"]).code == 0
    assert cell.result("best").twice() == 42


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = __import__('threading').Lock()", "output `x` (_thread.lock) cannot be stored"),
        ("y = 1", "output `x` is not defined when the cell ends"),
    ],
)
def test_an_output_that_cannot_be_stored_is_named(cell: CellRun, source: str, words: str) -> None:
    """An output without a pickled form, or one never defined, fails the run by name."""
    cell.source = source
    ended = cell.run(outputs=["x"])
    assert ended.code == 1
    assert words in ended.error["evalue"]
    assert not cell.result_path("x").exists()
    assert ended.of("result") == []


def test_tensors_come_back_in_host_memory(cell: CellRun) -> None:
    """Tensors of every kind that a cell returns or keeps are equal after loading."""
    cell.source = """
        import torch
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        base = torch.arange(6.0)
        tensors = {
            "plain": base, "view": base.view(2, 3).t(), "half": base.to(torch.bfloat16),
            "grad": base.clone().requires_grad_(), "scalar": torch.tensor(1), "bool": base > 2,
            "sparse": torch.eye(2).to_sparse(), "complex": torch.tensor([1 + 2j]).conj(),
        }
        weights = {name: w.tolist() for name, w in model.state_dict().items()}
        for e in episodes:
            e.keep(tensors)
        again = episodes.values[0]
        same = {n: bool((again[n].to_dense() == t.to_dense()).all()) for n, t in tensors.items()}
        kinds = {n: (again[n].dtype == t.dtype, again[n].requires_grad == t.requires_grad)
                 for n, t in tensors.items()}
        """
    ended = cell.run(outputs=["same", "kinds", "tensors", "model", "weights"])
    assert ended.code == 0, ended.stderr
    assert set(cell.result("same").values()) == {True}
    assert set(cell.result("kinds").values()) == {(True, True)}
    assert cell.result("tensors")["view"].tolist() == [[0, 3], [1, 4], [2, 5]]
    model = cell.result("model")
    assert {n: w.tolist() for n, w in model.state_dict().items()} == cell.result("weights")
