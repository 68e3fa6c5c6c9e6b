"""The waiting cell in a real kernel: interrupts, displays, and what is left of it afterwards."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from jupyter_gpugate.places import SOCKET_VARIABLE
from tests.kit.gate_stand_in import PATIENCE_S, GateStandIn, gate_at

ROOT = Path(__file__).resolve().parents[2]
LOAD = "%load_ext jupyter_gpugate"
WAITING = "%%gated_eval waits --episodes 3\nfor e in episodes: pass"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateStandIn]:
    """Serve a gate that every kernel of this test finds."""
    path = tmp_path / "own" / "gpugate.sock"
    monkeypatch.setenv(SOCKET_VARIABLE, str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with gate_at(path) as gate:
        yield gate


class FrontEnd:
    """A front end with a person before it: runs cells and sees what they show."""

    def __init__(self) -> None:
        self._manager: Any = KernelManager()
        self._manager.start_kernel()
        self._client: Any = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)
        self.shown: list[dict[str, Any]] = []

    def start(self, source: str) -> str:
        """Execute a cell without waiting for it; return the message it is known by."""
        return str(self._client.execute(source, allow_stdin=True))

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def watch(self, until: Callable[[dict[str, Any]], bool]) -> None:
        """Take messages of the kernel until one is what a test waits for."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            self.shown.append(message)
            if until(message):
                return
        raise AssertionError(f"it never came; the last was {self.shown[-1:]}")

    def watch_for_text(self, words: str) -> None:
        """Wait until a display says something."""
        self.watch(lambda m: words in m["content"].get("data", {}).get("text/plain", ""))

    def watch_to_the_end(self, cell: str) -> None:
        """Wait until a cell is over."""
        self.watch(
            lambda m: (
                m["parent_header"].get("msg_id") == cell
                and m["content"].get("execution_state") == "idle"
            )
        )

    def error(self) -> dict[str, Any]:
        """Return the last error that was shown."""
        errors = [m["content"] for m in self.shown if m["msg_type"] == "error"]
        return dict(errors[-1])

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def front_end(gate: GateStandIn) -> Iterator[FrontEnd]:
    """Open a notebook with the extension loaded."""
    assert gate.asked == []
    opened = FrontEnd()
    try:
        opened.watch_to_the_end(opened.start(LOAD))
        yield opened
    finally:
        opened.close()


def test_two_interrupts_cancel_the_run_that_the_cell_waits_for(
    gate: GateStandIn, front_end: FrontEnd
) -> None:
    """The first is answered on the card, the second stops the run, the cell ends in an error."""
    cell = front_end.start(WAITING)
    front_end.watch_for_text("waiting in the queue")
    run_id = next(iter(gate.runs))
    front_end.interrupt()
    front_end.watch_for_text("interrupt again within 5 s to cancel; the run goes on otherwise")
    assert gate.bodies(f"/runs/{run_id}/cancel") == []
    front_end.interrupt()
    front_end.watch_to_the_end(cell)
    assert gate.bodies(f"/runs/{run_id}/cancel") == [{}]
    error = front_end.error()
    assert error["ename"] == "RunCancelled"
    assert error["traceback"] == [f"RunCancelled: waits ({run_id}) was cancelled"]


def test_a_run_left_alone_is_silent_in_the_cells_after_it(
    gate: GateStandIn, front_end: FrontEnd
) -> None:
    """One interrupt ends the wait alone; what the run does later shows nowhere in the notebook."""
    cell = front_end.start(WAITING)
    front_end.watch_for_text("waiting in the queue")
    run_id = next(iter(gate.runs))
    front_end.interrupt()
    front_end.watch_to_the_end(cell)
    assert front_end.error()["ename"] == "RunDetached"
    assert gate.bodies(f"/runs/{run_id}/cancel") == []
    asked = gate.polls(run_id)
    gate.put(run_id, status="ended", end="completed")
    before = len(front_end.shown)
    threads = (
        "import threading\nprint([t.name for t in threading.enumerate() if 'gpugate' in t.name])"
    )
    front_end.watch_to_the_end(front_end.start(threads))
    later = [m["content"] for m in front_end.shown[before:]]
    assert [c["text"] for c in later if "text" in c] == ["[]\n"]
    assert [c for c in later if "data" in c] == []
    assert gate.polls(run_id) == asked


def test_the_card_is_updated_in_place_while_the_kernel_is_busy(
    gate: GateStandIn, front_end: FrontEnd
) -> None:
    """The front end sees each turn of the run before the cell has ended, as one display."""
    cell = front_end.start(WAITING)
    front_end.watch_for_text("waiting in the queue")
    run_id = next(iter(gate.runs))
    gate.put(run_id, status="active", phase="running", episodes={"done": 1, "of": 3})
    front_end.watch_for_text("1 of 3")
    gate.put(run_id, status="ended", end="completed")
    front_end.watch_to_the_end(cell)
    cards = [m for m in front_end.shown if "transient" in m["content"]]
    assert [m["msg_type"] for m in cards] == ["display_data", *["update_display_data"] * 2]
    assert len({m["content"]["transient"]["display_id"] for m in cards}) == 1
    assert all({"text/plain", "text/html"} == set(m["content"]["data"]) for m in cards)


def test_a_notebook_that_is_executed_without_a_person_cancels_when_interrupted(
    gate: GateStandIn,
) -> None:
    """As nbclient does on a time-out: one interrupt stops the run, the saved card is readable."""
    made: Any = nbformat.v4
    cells = [made.new_code_cell(source) for source in (LOAD, WAITING)]
    notebook = made.new_notebook(cells=cells)

    def interrupt() -> None:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        os.kill(gate.bodies("/runs")[0]["kernel"]["pid"], signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(CellExecutionError, match="RunCancelled"):
        NotebookClient(notebook).execute()
    thread.join()
    (run_id,) = gate.runs
    assert gate.bodies(f"/runs/{run_id}/cancel") == [{}]
    card = notebook.cells[1].outputs[0]
    assert "cancelled" in card.data["text/plain"]
    assert "<table" in card.data["text/html"]
