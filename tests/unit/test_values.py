"""Values on their way to a run and back."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jupyter_gpugate import places
from jupyter_gpugate.client import results, values
from jupyter_gpugate.programs.worker import values as worker_values


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a data folder of its own."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def there_and_back(value: object) -> Any:
    """Stage a value as the notebook does and load it as the run does."""
    return worker_values.load_input(values.stage({"x": value}), "x")


@pytest.mark.parametrize(
    "value",
    [None, 7, "text", {"a": [1, (2, 3)]}, b"x" * 1_000_000, Path("/etc"), {1, 2}, 3 + 4j],
)
def test_the_run_loads_what_the_notebook_staged(value: object) -> None:
    """A plain value arrives equal to what was given."""
    assert there_and_back(value) == value


def test_large_arrays_travel_beside_the_pickle() -> None:
    """The bytes of a large array are a file of their own, a small one's stay inside."""
    large, small = np.arange(100_000.0), np.arange(4)
    folder = values.stage({"both": (large, small)})
    assert sorted(path.name for path in folder.iterdir()) == ["both.buffers", "both.pickle"]
    assert (folder / "both.pickle").stat().st_size < 10_000
    got: Any = worker_values.load_input(folder, "both")
    assert np.array_equal(got[0], large)
    assert np.array_equal(got[1], small)


def test_the_run_may_change_what_it_was_given() -> None:
    """A loaded array can be written to without touching the staged file."""
    folder = values.stage({"x": np.zeros(100_000)})
    got: Any = worker_values.load_input(folder, "x")
    got[0] = 1
    again: Any = worker_values.load_input(folder, "x")
    assert again[0] == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(100_000),
        torch.ones(3, 4).t(),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
        torch.eye(3).to_sparse(),
    ],
)
def test_tensors_of_every_kind_arrive(tensor: torch.Tensor) -> None:
    """A tensor arrives with its numbers, its type and whether it wants a gradient."""
    got = there_and_back(tensor)
    assert type(got) is type(tensor)
    assert got.dtype == tensor.dtype
    assert got.requires_grad == tensor.requires_grad
    assert torch.equal(got.to_dense(), tensor.to_dense())


def test_what_the_notebook_itself_defines_arrives() -> None:
    """A function and a class that no module of the run has are taken along by value."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("class Point:\n    x = 2\ndef double(n): return n * Point.x", space)  # noqa: S102
    assert there_and_back(space["double"])(21) == 42


def test_staged_files_are_the_users_alone(data_folder: Path) -> None:
    """Folder and files can be read by their owner and nobody else."""
    before = os.umask(0)
    try:
        folder = values.stage({"x": np.zeros(100_000)})
    finally:
        os.umask(before)
    assert folder.is_relative_to(data_folder / "gpugate" / "staging")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_value_that_cannot_travel_is_named_and_leaves_nothing(data_folder: Path) -> None:
    """A running generator is refused by the name it has in the notebook; nothing stays staged."""
    with pytest.raises(values.ValueCannotTravel, match="--input data: `data` cannot be given"):
        values.stage({"fine": 1, "data": (n for n in [1])})
    assert list((data_folder / "gpugate" / "staging").iterdir()) == []


def test_what_a_killed_notebook_has_staged_is_removed_a_day_later(data_folder: Path) -> None:
    """A folder that nobody took over goes with a later submit; a young one may be in use."""
    old, young = values.stage({"x": 1}), values.stage({"x": 2})
    before = time.time() - 25 * 3600
    os.utime(old, (before, before))
    newest = values.stage({"x": 3})
    assert set((data_folder / "gpugate" / "staging").iterdir()) == {young, newest}


def test_an_open_file_is_no_input(tmp_path: Path) -> None:
    """A file in use is refused, however deep it lies, and not given as a copy of its text."""
    (tmp_path / "log").write_text("line\n")
    with (tmp_path / "log").open() as log, pytest.raises(values.ValueCannotTravel) as told:
        values.stage({"settings": {"log": log}})
    assert "--input settings: `settings` cannot be given to a run" in str(told.value)
    assert "an open file cannot be copied to another process; pass its path" in str(told.value)


def test_without_cloudpickle_plain_values_still_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that is missing is not missed: what pickle takes goes through."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert there_and_back([1, 2]) == [1, 2]
    assert torch.equal(there_and_back(torch.ones(3)), torch.ones(3))


def test_the_data_folder_is_jupyters_also_without_jupyter(
    monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    """A kernel's environment without jupyter_core comes to the same folder."""
    assert places.data_folder() == data_folder
    monkeypatch.setitem(sys.modules, "jupyter_core.paths", None)
    assert places.data_folder() == data_folder
    monkeypatch.delenv("JUPYTER_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert places.data_folder() == Path("/somewhere/jupyter")


def ended_run(folder: Path, files: dict[str, object]) -> dict[str, Any]:
    """Lay out the results of a completed run and return its state."""
    attempt = folder / "attempts" / "2"
    attempt.mkdir(parents=True)
    for name, value in files.items():
        (attempt / name).write_bytes(pickle.dumps(value))
    return {"directory": str(folder), "attempt": 2, "status": "ended", "end": "completed"}


def test_outputs_come_by_name_and_by_worker(tmp_path: Path) -> None:
    """One worker's output is its value, several workers' a list in the order of the workers."""
    files: dict[str, object] = {"result.loss.0.pickle": 0.5}
    files |= {f"result.hits.{worker}.pickle": worker for worker in range(12)}
    assert results.load(ended_run(tmp_path, files)) == {"hits": list(range(12)), "loss": 0.5}


def test_large_outputs_come_back_from_beside_the_pickle(tmp_path: Path) -> None:
    """Arrays of several sizes arrive in the notebook with their numbers, each in its place."""
    state = ended_run(tmp_path, {})
    sizes = (100_000, 3, 20_001, 50_000)
    arrays: list[Any] = [np.arange(size, dtype=np.float32) for size in sizes]
    path = tmp_path / "attempts" / "2" / "result.arrays.0.pickle"
    worker_values.write_output(path, arrays)
    assert path.stat().st_size < 10_000
    got: Any = results.load(state)["arrays"]
    assert all(np.array_equal(one, other) for one, other in zip(got, arrays, strict=True))


def test_a_run_without_an_attempt_has_no_outputs() -> None:
    """Nothing is looked for where nothing has started."""
    assert results.load({"directory": "/nowhere", "attempt": 0}) == {}


def test_an_output_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """A damaged file is an error that names it, not a traceback of pickle's."""
    state = ended_run(tmp_path, {})
    path = tmp_path / "attempts" / "2" / "result.loss.0.pickle"
    path.write_bytes(b"no pickle")
    with pytest.raises(values.ValueCannotTravel, match=r"result\.loss\.0\.pickle cannot be loaded"):
        results.load(state)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_a_pickle_of_another_user_is_never_read(tmp_path: Path) -> None:
    """Loading a pickle runs its code: only one's own is loaded."""
    state = ended_run(tmp_path, {"result.loss.0.pickle": 1})
    os.chown(tmp_path / "attempts" / "2" / "result.loss.0.pickle", 65534, 65534)
    with pytest.raises(values.ValueCannotTravel, match="written by uid 65534"):
        results.load(state)
