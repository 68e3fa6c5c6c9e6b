"""A gated cell while it waits and when its run ends, in a real shell and a gate of the test."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_gpugate.client import waiting
from jupyter_gpugate.client.errors import RunCancelled, RunDetached, RunFailed
from jupyter_gpugate.places import SOCKET_VARIABLE
from tests.kit.gate_stand_in import PATIENCE_S, GateStandIn, gate_at
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


def interrupts(*when: Callable[[], Any]) -> threading.Thread:
    """Interrupt this process whenever the next condition has come to hold."""

    def send() -> None:
        for condition in when:
            until(condition)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds; fail when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


# -- waiting ----------------------------------------------------------------------------------


def test_the_cell_waits_and_its_one_card_follows_the_run(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """A card is displayed once and then updated in place until the end, in text and HTML."""
    gate.on_submit = lambda _body: {}

    def go_on() -> None:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        gate.put(run_id, status="active", phase="running")
        gate.wait_for(lambda: gate.polls(run_id) > 2)
        gate.put(run_id, **DONE)

    thread = threading.Thread(target=go_on)
    thread.start()
    result = notebook.run("%%gated_eval followed\n1")
    thread.join()
    assert result.success
    assert result.result is None
    kinds = {"text/plain", "text/html"}
    assert [set(display["data"]) for display in notebook.shown] == [kinds] * 3
    assert [text.split(" · ")[1] for text in notebook.texts()] == [
        "waiting in the queue",
        "running",
        "completed",
    ]
    assert len({display["transient"]["display_id"] for display in notebook.shown}) == 1
    assert [display["update"] for display in notebook.shown] == [False, True, True]


def test_a_failed_run_raises_with_its_own_traceback(
    notebook: Notebook, gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cell's error is the run's error: its lines are shown, ours are not."""
    lines = ["Cell line 3, in <module>", "      3 1/0", "ZeroDivisionError: division by zero"]
    error = {"ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": lines}
    failed = {"status": "ended", "end": "failed", "exit_reason": "exit 1", "error": error}
    gate.on_submit = lambda _body: failed
    result = notebook.run("%%gated_eval failing\n1/0")
    raised = result.error_in_exec
    assert isinstance(raised, RunFailed)
    assert (raised.end, raised.ename, raised.evalue) == (
        "failed",
        "ZeroDivisionError",
        "division by zero",
    )
    shown = "".join(capsys.readouterr())
    assert "\n".join(lines) in shown
    assert "magics.py" not in shown


@pytest.mark.parametrize("end", ["oom", "lost", "expired", "rejected"])
def test_every_end_but_completion_stops_the_notebook(
    notebook: Notebook, gate: GateStandIn, end: str
) -> None:
    """A run that did not complete never lets the next cell run on missing results."""
    gate.on_submit = lambda _body: {"status": "ended", "end": end}
    raised = notebook.run("%%gated_eval ended\n1").error_in_exec
    assert isinstance(raised, RunFailed)
    assert raised.end == end


def test_a_run_cancelled_from_elsewhere_raises(notebook: Notebook, gate: GateStandIn) -> None:
    """A cancel from a terminal or another notebook is seen in the cell that waits."""
    gate.on_submit = lambda _body: {"status": "ended", "end": "cancelled"}
    assert isinstance(notebook.run("%%gated_eval gone\n1").error_in_exec, RunCancelled)


def test_outputs_become_names_of_the_notebook(
    notebook: Notebook, gate: GateStandIn, tmp_path: Path
) -> None:
    """What `--output` names is there when the cell has ended, a list by worker with several."""
    attempt = tmp_path / "run" / "attempts" / "1"
    attempt.mkdir(parents=True)
    for name, value in {"loss.0": 0.5, "hits.0": 1, "hits.1": 2}.items():
        (attempt / f"result.{name}.pickle").write_bytes(pickle.dumps(value))
    gate.on_submit = lambda _body: {**DONE, "directory": str(tmp_path / "run")}
    assert notebook.run("%%gated_eval out --output loss,hits\nloss = 1\nhits = 1").success
    assert notebook.run("loss, hits").result == (0.5, [1, 2])


def test_what_the_run_displays_is_displayed_here(
    notebook: Notebook, gate: GateStandIn, tmp_path: Path
) -> None:
    """Displays and prints follow the card in their order, and the card has what came before."""
    attempt = tmp_path / "run" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "output.log").write_text("one\ntwo\nthree\n", encoding="utf-8")
    events = [
        {"event": "display", "data": {"text/plain": "a", "text/html": "<b>a</b>"}, "at": 4},
        {"event": "display", "data": {"text/plain": "b"}, "metadata": {"k": 1}, "at": 8},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (attempt / "display.jsonl").write_text(text + '{"event": "disp', encoding="utf-8")
    output = {"output_tail": "one\ntwo\nthree\n"}
    gate.on_submit = lambda _body: {**DONE, **output, "directory": str(tmp_path / "run")}
    assert notebook.run("%%gated_eval shows\n1").success
    page = notebook.page()
    assert [shown["data"]["text/plain"] for shown in page[1:]] == ["a", "two", "b", "three"]
    assert page[1]["data"]["text/html"] == "<b>a</b>"
    assert page[3]["metadata"] == {"k": 1}
    card = page[0]["data"]["text/plain"]
    assert "completed" in card
    assert "one" in card
    assert "two" not in card


def test_detach_gives_a_handle_at_once(notebook: Notebook, gate: GateStandIn) -> None:
    """The cell ends while the run is queued, and its value is a handle that shows the card: a page
    keeps it up to date by itself until the run has ended.
    """
    gate.on_submit = lambda _body: {}
    result = notebook.run("%%gated_eval later --detach\n1")
    run: Any = result.result
    assert run.run_id in gate.runs
    assert run.status() == "queued"
    bundle = run._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "waiting in the queue" in bundle["text/plain"]
    assert "/gpugate/static/live.js" in bundle["text/html"]
    gate.put(run.run_id, **DONE)
    assert "<script>" not in run._repr_mimebundle_()["text/html"]


# -- interrupts -------------------------------------------------------------------------------


def test_one_interrupt_leaves_the_run_to_itself(
    notebook: Notebook, gate: GateStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card says what a second one would do; then the cell raises and nothing was cancelled."""
    monkeypatch.setattr(waiting, "SECOND_CHANCE_S", 0.2)
    gate.on_submit = lambda _body: {}
    sender = interrupts(lambda: any(gate.polls(run_id) > 1 for run_id in gate.runs))
    raised = notebook.run("%%gated_eval left\n1").error_in_exec
    sender.join()
    assert isinstance(raised, RunDetached)
    assert raised.run_id in gate.runs
    assert gate.bodies(f"/runs/{raised.run_id}/cancel") == []
    texts = notebook.texts()
    warning = "interrupt again within 5 s to cancel; the run goes on otherwise"
    assert any(warning in text for text in texts)
    assert f'jupyter_gpugate.get("{raised.run_id}") follows it' in texts[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_detached_run_never_shows_anything_again(
    notebook: Notebook, gate: GateStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the cell has ended nothing of it is left that could write into a later cell."""
    monkeypatch.setattr(waiting, "SECOND_CHANCE_S", 0.2)
    gate.on_submit = lambda _body: {}
    sender = interrupts(lambda: any(gate.polls(run_id) > 1 for run_id in gate.runs))
    notebook.run("%%gated_eval left\n1")
    sender.join()
    seen, asked = len(notebook.shown), len(gate.asked)
    gate.put(next(iter(gate.runs)), **DONE)
    assert [t for t in threading.enumerate() if t.name.startswith("gpugate-")] == []
    assert (len(notebook.shown), len(gate.asked)) == (seen, asked)


def test_an_interrupt_stops_the_notebook_though_its_run_completes(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """A run that completes while a second interrupt is waited for ends the cell as detached."""
    gate.on_submit = lambda _body: {}
    sender = interrupts(lambda: any(gate.polls(run_id) > 1 for run_id in gate.runs))

    def end() -> None:
        until(lambda: any("interrupt again" in text for text in notebook.texts()))
        gate.put(next(iter(gate.runs)), **DONE)

    thread = threading.Thread(target=end)
    thread.start()
    raised = notebook.run("%%gated_eval quick\n1").error_in_exec
    sender.join()
    thread.join()
    assert isinstance(raised, RunDetached)
    assert "the run completed before the interrupt" in str(raised)
    assert raised.state["end"] == "completed"


def test_a_second_interrupt_cancels_and_waits_for_the_end(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """The cell ends when the run has ended, not when the cancel was asked for."""
    gate.on_submit = lambda _body: {}
    gate.on_cancel = lambda _run_id: {"status": "active", "phase": "stopping"}

    sender = interrupts(
        lambda: any(gate.polls(run_id) > 1 for run_id in gate.runs),
        lambda: any("interrupt again" in text for text in notebook.texts()),
    )

    def end() -> None:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.bodies(f"/runs/{run_id}/cancel"))
        before = gate.polls(run_id)
        gate.wait_for(lambda: gate.polls(run_id) > before)
        gate.put(run_id, status="ended", end="cancelled")

    ending = threading.Thread(target=end)
    ending.start()
    raised = notebook.run("%%gated_eval stopped\n1").error_in_exec
    sender.join()
    ending.join()
    assert isinstance(raised, RunCancelled)
    assert raised.state["end"] == "cancelled"
    assert any("cancelling" in text for text in notebook.texts())


def test_without_a_person_the_first_interrupt_cancels(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """Under a front end that cannot answer questions one interrupt stops the run."""
    notebook.shell.get_parent = lambda: {"content": {"allow_stdin": False}}
    gate.on_submit = lambda _body: {}
    sender = interrupts(lambda: any(gate.polls(run_id) > 1 for run_id in gate.runs))
    raised = notebook.run("%%gated_eval stopped\n1").error_in_exec
    sender.join()
    assert isinstance(raised, RunCancelled)


def test_an_interrupt_while_the_gate_is_looked_for_submits_nothing(
    notebook: Notebook, gate: GateStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the gate has been found an interrupt is an ordinary one."""
    looking = threading.Event()

    def look(give_up: Callable[[], bool]) -> None:
        looking.set()
        while not give_up():
            gave_up.wait(0.01)

    gave_up = threading.Event()
    monkeypatch.setattr("jupyter_gpugate.client.connection.connect", look)
    sender = interrupts(lambda: looking.wait(PATIENCE_S))
    raised = notebook.run("%%gated_eval never\n1").error_in_exec
    sender.join()
    assert isinstance(raised, KeyboardInterrupt)
    assert gate.asked == []
