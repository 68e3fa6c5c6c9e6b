"""A handle on a group: its table of results, and what it raises for runs that did not complete."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpugate.client.errors import RunCancelled, RunFailed
from jupyter_gpugate.client.values import ValueCannotTravel
from jupyter_gpugate.notebook.group import Group, raise_for_ends

GROUP = "g20260914-101502-kqzfa"


def run(n: int, end: str | None = "completed", **fields: Any) -> dict[str, Any]:
    """A row of the group."""
    state = {"run_id": f"r{n}", "parameters": {"n": str(n), "model": "small"}, "attempt": 1}
    return {**state, "status": "ended" if end else "active", "end": end, **fields}


def group(*runs: dict[str, Any]) -> dict[str, Any]:
    """The group as the gate tells it."""
    return {"group": GROUP, "name": "sweep", "status": "ended", "runs": list(runs)}


def table(monkeypatch: pytest.MonkeyPatch, *runs: dict[str, Any]) -> Any:
    """The table of a group of these runs."""
    monkeypatch.setattr(Group, "state", lambda _self: group(*runs))
    return Group(GROUP).table()


def hand_back(folder: Path, attempt: int, **files: Any) -> None:
    """Write values as a run does."""
    for name, value in files.items():
        path = folder / "attempts" / str(attempt) / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.pickle").write_bytes(pickle.dumps(value))


def test_the_table_has_the_results_by_parameters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Outputs by name, kept values of all attempts in order, peaks of all devices together."""
    hand_back(tmp_path, 1, episodes__0="zero", episodes__1="old")
    hand_back(tmp_path, 2, episodes__1="one", result_score_0=0.5)
    where: dict[str, Any] = {"directory": str(tmp_path), "attempt": 2}
    where["episodes"] = {"done": 2, "of": 2}
    peaks = {"ram": 7, "GPU-1": 2, "GPU-2": 3}
    monkeypatch.setitem(sys.modules, "pandas", None)
    first, second = table(
        monkeypatch,
        run(8, peaks=peaks, last_line="done", duration_s=2.0, **where),
        run(16, "failed", error="ValueError: no"),
    )
    assert list(first) == [
        *("n", "model", "status", "score", "kept", "last_line", "error", "duration_s"),
        *("peak_ram_bytes", "peak_vram_bytes", "run_id"),
    ]
    assert (first["n"], first["model"], first["score"], first["kept"]) == (
        *(8, "small", 0.5),
        ["zero", "one"],
    )
    assert (first["peak_ram_bytes"], first["peak_vram_bytes"]) == (7, 5)
    assert (second["status"], second["error"], second["peak_vram_bytes"]) == (
        *("failed", "ValueError: no"),
        None,
    )


def test_the_table_is_a_data_frame_where_pandas_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gets the same rows."""
    pandas = SimpleNamespace(DataFrame=lambda rows: ("frame", rows))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    kind, (row,) = table(monkeypatch, run(1))
    assert (kind, row["n"]) == ("frame", 1)


def test_a_value_that_cannot_be_loaded_is_its_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other columns, and the other runs, are there all the same."""
    hand_back(tmp_path, 1, result_score_0=1, episodes__0="zero")
    (tmp_path / "attempts" / "1" / "result.score.0.pickle").write_bytes(b"no pickle")
    monkeypatch.setitem(sys.modules, "pandas", None)
    row, other = table(monkeypatch, run(1, directory=str(tmp_path)), run(2))
    assert isinstance(row["outputs"], ValueCannotTravel)
    assert row["kept"] == "zero"
    assert (row["status"], other["status"]) == ("completed", "completed")


def test_runs_that_did_not_complete_are_named_by_their_parameters() -> None:
    """Five of them; a cancel alone is no failure."""
    raise_for_ends(group(run(1), run(2)))
    failed = [run(n, "failed", error=f"ValueError: {n}") for n in range(7)]
    with pytest.raises(RunFailed) as error:
        raise_for_ends(group(*failed, run(8), run(9, "cancelled")))
    assert str(error.value).startswith(
        f"7 of 9 runs of sweep ({GROUP}) did not complete: n=0 model=small (ValueError: 0), n=1 "
    )
    assert " and 2 more; jupyter_gpugate.get(" in str(error.value)
    assert error.value.state["group"] == GROUP
    with pytest.raises(RunCancelled, match="1 of 2 runs of sweep"):
        raise_for_ends(group(run(1), run(2, "cancelled")))
