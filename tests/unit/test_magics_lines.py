"""The line magics and the handle on a run, in a real shell, with a gate that a test plays."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import jupyter_gpugate
from jupyter_gpugate.client.errors import RunCancelled, RunFailed
from jupyter_gpugate.places import SOCKET_VARIABLE
from tests.kit.gate_stand_in import GateStandIn, gate_at
from tests.kit.notebook_shell import DONE, Notebook


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateStandIn]:
    """Serve a gate that this notebook finds, and that completes every run at once."""
    path = tmp_path / "own" / "gpugate.sock"
    monkeypatch.setenv(SOCKET_VARIABLE, str(path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    with gate_at(path) as gate:
        gate.on_submit = lambda _body: DONE
        yield gate


@pytest.fixture
def notebook(gate: GateStandIn, capsys: pytest.CaptureFixture[str]) -> Iterator[Notebook]:
    """Open a notebook of a front end with a person before it."""
    assert gate.asked == []
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.kernel = SimpleNamespace()
    shell.get_parent = lambda: {"content": {"allow_stdin": True}}
    shell.run_line_magic("load_ext", "jupyter_gpugate")
    yield Notebook(shell, capsys)
    shell.run_line_magic("unload_ext", "jupyter_gpugate")
    InteractiveShell.clear_instance()


# -- the other magics -------------------------------------------------------------------------


QUEUE: dict[str, Any] = {
    "devices": [{"uuid": "GPU-1", "index": 0, "model": "NVIDIA L4", "message": ""}],
    "free_bytes": {"ram": 10 << 30, "GPU-1": 5 << 30},
    "room_bytes": {"ram": 8 << 30, "GPU-1": 4 << 30},
    "attribution": {"resources": {"ram": {"used_total": 1 << 30, "external": 1 << 20}}},
    "running": [
        {
            "run_id": "20261129-000000-aaaaa",
            "name": "<b>one</b>",
            "owner": "ann",
            "phase": "running",
            "held": {"ram": 1 << 30},
            "charges": {"ram": 2 << 30},
            "episodes": {"done": 3, "of": 10},
        }
    ],
    "queued": [
        {
            "run_id": "20261129-000000-bbbbb",
            "name": "two",
            "owner": "ben",
            "position": 1,
            "waited_s": 70,
            "reasons": [{"kind": "fit", "message": "needs 9,000 MB of GPU 0"}],
        }
    ],
    "external": [{"resource": "GPU-1", "pid": 4711, "held_bytes": 3 << 30, "user": "eve"}],
    "readers": [{"name": "gpu", "fault": {"code": "timeout", "text": "no answer in 2.5 s"}}],
    "draining": None,
}


def test_the_queue_is_shown_with_its_reasons(notebook: Notebook, gate: GateStandIn) -> None:
    """Who runs and who waits, why, and whose the memory is, in text and in HTML."""
    gate.answers["/queue"] = QUEUE
    notebook.run("%gpu_queue")
    text, html = (notebook.shown[0]["data"][kind] for kind in ("text/plain", "text/html"))
    for words in (
        "RAM: 1,024 of 2,048 MB",
        "3 of 10",
        "needs 9,000 MB of GPU 0",
        "70 s",
        "4711",
        "eve",
        "the gpu reader: no answer in 2.5 s",
    ):
        assert words in text
        assert words in html
    assert "<b>one</b>" in text
    assert "&lt;b&gt;one&lt;/b&gt;" in html


def test_an_estimate_is_shown_with_its_origins(notebook: Notebook, gate: GateStandIn) -> None:
    """The question carries name, workers and GPUs; the answer shows numbers, gaps and verdict."""
    gate.answers["/estimate"] = {
        "name": "resnet-val",
        "terms": [{"resource": "ram", "holder": "run", "need_bytes": 1 << 30, "origin": "hint"}],
        "total_bytes": {"ram": 1 << 30, "vram": None},
        "max_workers": 3,
        "would_start": False,
        "reasons": [{"message": "no new runs of yours are started"}],
    }
    notebook.run("%gpu_estimate resnet-val --workers 2 --gpus 0 --episodes 9")
    asked = {"name": "resnet-val", "workers": "2", "gpus": "0", "episodes": "9"}
    assert gate.asked[-1].query == asked
    text = notebook.texts()[0]
    for words in (
        "RAM 1,024 MB by your hint",
        "VRAM unknown",
        "up to 3 workers fit now",
        "it would wait: no new runs of yours are started",
    ):
        assert words in text


def test_a_run_is_cancelled_by_its_id(notebook: Notebook, gate: GateStandIn) -> None:
    """The answer says by what means the run was stopped."""
    gate.put("20261129-000000-aaaaa", status="active")
    notebook.run("%gpu_cancel 20261129-000000-aaaaa")
    assert notebook.texts() == ["20261129-000000-aaaaa is cancelled: stopped cleanly (0.01 s)"]


def test_a_bad_id_keeps_no_other_run_alive(notebook: Notebook, gate: GateStandIn) -> None:
    """Each id that is named is cancelled, wherever in the line an unknown one stands."""
    gate.put("b", status="active")
    assert "there is no run a" in notebook.usage_error("%gpu_cancel a b")
    assert gate.runs["b"]["end"] == "cancelled"


@pytest.mark.parametrize(
    ("source", "usage"),
    [
        ("%%gated_eval --help\npass", "usage: %%gated_eval NAME [options]"),
        ("%gpu_estimate -h", "usage: %gpu_estimate NAME [options]"),
        ("%gpu_cancel --help", "usage: %gpu_cancel RUN [options]"),
    ],
)
def test_a_magic_tells_how_it_is_used(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], source: str, usage: str
) -> None:
    """Asked for help, a magic shows its own way of being written, and does nothing else."""
    assert notebook.run(source).success
    shown = capsys.readouterr().out
    assert usage in shown
    assert "--class" not in shown
    assert "--evictable" not in shown


def test_unloading_takes_the_magics_back(notebook: Notebook) -> None:
    """After `%unload_ext` the magics are gone, and loading brings them back."""
    notebook.shell.run_line_magic("unload_ext", "jupyter_gpugate")
    assert notebook.shell.find_cell_magic("gated_eval") is None
    assert notebook.shell.find_line_magic("gpu_queue") is None
    notebook.shell.run_line_magic("load_ext", "jupyter_gpugate")
    assert notebook.shell.find_cell_magic("gated_eval") is not None


# -- the handle -------------------------------------------------------------------------------


def test_a_handle_waits_and_gives_the_result(gate: GateStandIn, tmp_path: Path) -> None:
    """`get` finds a run by its id alone; its result is the one value, or a dict of several."""
    attempt = tmp_path / "run" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "result.loss.0.pickle").write_bytes(pickle.dumps(0.5))
    gate.put("r", name="n", **DONE, directory=str(tmp_path / "run"))
    run = jupyter_gpugate.get("r")
    assert run.wait().result() == 0.5
    (attempt / "result.hits.0.pickle").write_bytes(pickle.dumps(7))
    assert run.result() == {"hits": 7, "loss": 0.5}
    assert run.status() == "completed"


def test_a_handle_raises_what_became_of_the_run(gate: GateStandIn) -> None:
    """Waiting for a failed or cancelled run raises, waiting too short is a time-out."""
    gate.put("f", name="n", status="ended", end="failed", exit_reason="exit 3")
    with pytest.raises(RunFailed, match=r"n \(f\) failed \(exit 3\)"):
        jupyter_gpugate.get("f").wait()
    gate.put("c", name="n", status="ended", end="cancelled")
    with pytest.raises(RunCancelled):
        jupyter_gpugate.get("c").result()
    gate.put("q", name="n")
    with pytest.raises(TimeoutError, match="has not ended"):
        jupyter_gpugate.get("q").wait(timeout_s=0.05)


def test_a_handle_explains_cancels_and_reads_the_output(gate: GateStandIn) -> None:
    """Every reason comes with the numbers that were used, the output is whole."""
    numbers = {"need_bytes": 3 << 20, "running": 8}
    reasons = [{"kind": "fit", "message": "too little", "numbers": numbers}, {"kind": "drain"}]
    gate.put("q", name="n", reasons=reasons)
    gate.outputs["q"] = "all of it\n" * 3
    run = jupyter_gpugate.get("q")
    explained = repr(run.explain())
    for words in ("because too little", "need 3 MB", "running 8", "because drain"):
        assert words in explained
    assert run.output() == "all of it\n" * 3
    assert run.cancel()["means"] == "term"
    assert run.status() == "cancelled"


@pytest.mark.usefixtures("gate")
def test_a_handle_shows_itself_without_a_gate_too() -> None:
    """Showing a handle is never an error, whatever the gate says."""
    run = jupyter_gpugate.get("nobody")
    assert run._repr_mimebundle_() == {"text/plain": "<Run nobody>: there is no run nobody"}


def test_the_package_offers_its_names_without_loading_them() -> None:
    """The exceptions a user catches are attributes of the package, others are not."""
    assert jupyter_gpugate.RunFailed is RunFailed
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = jupyter_gpugate.nonsense
