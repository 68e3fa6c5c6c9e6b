"""The magics in a real shell, against a gate that a test plays."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

import jupyter_gpugate
from jupyter_gpugate.client import waiting
from jupyter_gpugate.client.errors import RunCancelled, RunDetached, RunFailed
from jupyter_gpugate.places import SOCKET_VARIABLE
from jupyter_gpugate.programs.worker.values import load_input
from tests.kit.gate_stand_in import PATIENCE_S, GateStandIn, gate_at

DONE = {"status": "ended", "end": "completed", "attempt": 1}


class Notebook:
    """A shell with the extension loaded, and what it shows."""

    def __init__(self, shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = shell
        self._capsys = capsys
        publisher: Any = CapturingDisplayPublisher
        shell.display_pub = publisher(shell=shell)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """All displays so far, as published."""
        return cast(CapturingDisplayPublisher, self.shell.display_pub).outputs

    def page(self) -> list[dict[str, Any]]:
        """Return the displays as they stand on the page, each as it was renewed last."""
        places: dict[str, dict[str, Any]] = {}
        for number, display in enumerate(self.shown):
            name = (display.get("transient") or {}).get("display_id", str(number))
            assert display["update"] == (name in places), display
            places[name] = display
        return list(places.values())

    def texts(self) -> list[str]:
        """Return the plain text of each display so far."""
        return [display["data"].get("text/plain", "") for display in self.shown]

    def run(self, source: str) -> ExecutionResult:
        """Run a cell; its error is in the result."""
        return cast(ExecutionResult, self.shell.run_cell(source))

    def usage_error(self, source: str) -> str:
        """Run a cell that a user got wrong, and return the one line that it is told."""
        self._capsys.readouterr()
        self.run(source)
        said = "".join(self._capsys.readouterr())
        assert said.startswith("UsageError: "), said
        assert said.count("\n") == 1, said
        return said.strip()


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


# -- what is submitted ------------------------------------------------------------------------


def test_the_options_become_the_body(notebook: Notebook, gate: GateStandIn) -> None:
    """Every option of the line reaches the gate in bytes, seconds and names."""
    result = notebook.run(
        "%%gated_eval resnet-val --episodes 100 --workers 2 --gpus 1 --hint-vram 2GB "
        "--hint-ram 4GB --set batch=64 --set-free seed=7 --output result --class batch "
        "--evictable --exclusive --max-wait 30m --time-limit 4h --detach\nresult = 1"
    )
    assert result.success
    body = gate.bodies("/runs")[0]
    expected = {
        "name": "resnet-val",
        "episodes": 100,
        "workers": 2,
        "gpus": 1,
        "hints": {"vram_bytes": 2 << 30, "ram_bytes": 4 << 30},
        "parameters": {"batch": "64", "seed": "7"},
        "memory_irrelevant": ["seed"],
        "outputs": ["result"],
        "class": "batch",
        "evictable": True,
        "exclusive": True,
        "max_wait_s": 1800.0,
        "time_limit_s": 14400.0,
        "detach": True,
    }
    assert {name: body[name] for name in expected} == expected


def test_quotes_mean_what_they_mean_in_a_terminal(notebook: Notebook, gate: GateStandIn) -> None:
    """A value with a space reaches the run without its quotes, as from the command line."""
    notebook.run("%%gated_eval said --set 'prompt=be brief' --set title=\"a b\"\n1")
    assert gate.bodies("/runs")[0]["parameters"] == {"prompt": "be brief", "title": "a b"}


def test_what_was_not_said_is_left_to_the_gate(notebook: Notebook, gate: GateStandIn) -> None:
    """Without options the body leaves devices, class, waits and hints to the gate's defaults."""
    notebook.run("%%gated_eval plain\n1")
    body = gate.bodies("/runs")[0]
    assert not {"gpus", "class", "max_wait_s", "time_limit_s", "inputs", "argv"} & set(body)
    assert (body["hints"], body["episodes"], body["workers"]) == ({}, 1, 1)


def test_the_body_describes_this_very_process(
    notebook: Notebook, gate: GateStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Interpreter, path, folder, mask and environment are the kernel's at this moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/a/b.ipynb")
    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "t")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "t")
    monkeypatch.setenv("JUPYTER_TOKEN", "t")
    monkeypatch.setenv("WANDB_API_KEY", "mine")
    monkeypatch.setenv("NOISE", "x")
    mask = os.umask(0o027)
    try:
        notebook.run(
            "import os, sys\nos.environ['SET_HERE'] = 'yes'\nsys.path.append('/added/here')"
        )
        notebook.run("%%gated_eval here --drop-env NOISE\n1")
    finally:
        os.umask(mask)
        del os.environ["SET_HERE"]
    body = gate.bodies("/runs")[0]
    environment = body["environment"]
    assert (environment["SET_HERE"], environment["WANDB_API_KEY"]) == ("yes", "mine")
    assert environment["JPY_SESSION_NAME"] == "/home/a/b.ipynb"
    dropped = {"CONFIGPROXY_AUTH_TOKEN", "JUPYTERHUB_API_TOKEN", "NOISE"}
    assert not ({"JUPYTER_TOKEN"} | dropped) & set(environment)
    assert body["interpreter"] == sys.executable
    assert body["cwd"] == str(tmp_path)
    assert (body["path"][0], body["path"][-1]) == (str(tmp_path), "/added/here")
    assert body["umask"] == 0o027
    kernel = body["kernel"]
    assert (kernel["pid"], kernel["notebook"]) == (os.getpid(), "/home/a/b.ipynb")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    assert (kernel["boot_id"], kernel["start_ticks"]) == (boot_id, int(ticks))


def test_the_lines_of_the_source_are_the_lines_of_the_cell(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """The magic's line is a comment in the run's file, so that a traceback points at the cell."""
    notebook.run("%%gated_eval lines --episodes 3\n\nx = 1\nx\n")
    first, *rest = gate.bodies("/runs")[0]["source"].splitlines()
    assert first.startswith("#")
    assert rest == ["", "x = 1", "x"]


def test_each_execution_of_a_cell_is_a_run_of_its_own(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """Two executions of one cell have two keys."""
    for _ in range(2):
        notebook.run("%%gated_eval twice\n1")
    assert len({body["idempotency_key"] for body in gate.bodies("/runs")}) == 2


def test_inputs_are_staged_as_files_and_only_named_in_the_request(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """The run side finds the values where the request says, under the names of the notebook."""
    notebook.run("x, y = [1, 2], {'k': 3}")
    notebook.run("%%gated_eval given --input x,y --detach\nprint(x, y)")
    inputs = gate.bodies("/runs")[0]["inputs"]
    staged = Path(inputs["staged"])
    assert inputs["names"] == ["x", "y"]
    assert [load_input(staged, name) for name in "xy"] == [[1, 2], {"k": 3}]


def test_inputs_of_a_refused_run_are_removed(
    notebook: Notebook, gate: GateStandIn, tmp_path: Path
) -> None:
    """What no run took over does not fill the user's disk."""
    gate.refusals[("POST", "/runs")] = (429, {"error": "full", "message": "200 runs wait"})
    notebook.run("x = 1")
    result = notebook.run("%%gated_eval refused --input x\nx")
    assert "200 runs wait" in str(result.error_in_exec)
    assert list((tmp_path / "data" / "gpugate" / "staging").iterdir()) == []


# -- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("%%gated_eval\n1", "%%gated_eval NAME --episodes N"),
        ("%%gated_eval a/b\n1", "argument name: `a/b` is not a valid name"),
        ("%%gated_eval n --hint-vram 2\n1", "argument --hint-vram: `2` is not a size: write 2GB"),
        ("%%gated_eval n --episodes 0\n1", "argument --episodes: `0` must be a whole number"),
        ("%%gated_eval n --max-wait 5\n1", "argument --max-wait: `5` is not a time"),
        ("%%gated_eval n --set batch\n1", "argument --set: `batch` must be NAME=VALUE"),
        ("%%gated_eval n --class soon\n1", "argument --class: invalid choice"),
        ("%%gated_eval n --nonsense\n1", "unrecognized arguments: --nonsense"),
        ("%%gated_eval n --gpu 1\n1", "unrecognized arguments: --gpu 1; did you mean --gpus?"),
        ("%%gated_eval n --set 'a=1\n1", "no closing quotation in `n --set 'a=1`"),
        ("%%gated_eval n --input nope\n1", "--input nope: `nope` is not defined in this notebook"),
        ("%%gated_eval n --output gone\n1", "--output gone: the cell never assigns `gone`"),
        (
            "%%gated_eval n\nprint(value)",
            "`value` is defined in this notebook but not given to the",
        ),
        ("%%gated_eval n\nprint(value)", "add --input value"),
        ("%%gated_eval n\nmath.pi", "add `import math` to it"),
        ("%%gated_eval n\nx = 1\n!ls", "line 3 `!ls`"),
        ("%%gated_eval n\nx = 5 5", "line 2 `x = 5 5`"),
        ("%%gated_eval n --input gen\ngen", "--input gen: `gen` cannot be given to a run"),
        ("# first\n%%gated_eval n --gpus 0\n1", "`%%gated_eval n --gpus 0` must be the first line"),
        ("1\n\n%%gated_eval n\n1", "move the lines above it further down"),
        ("%gated_eval n --gpus 0", "use `%%gated_eval n --gpus 0`, with two %, on the first line"),
        ("%%gated_eval n --set lr=0.1\nlr", '`lr` is a value of `--set`: write `params["lr"]` in'),
        ("%%gated_eval n --set-free value=1\nvalue", 'write `params["value"]` in the cell, or add'),
        ("%gpu_cancel", "required: RUN_ID"),
        ("%gpu_cancel 20261129-000000-nobod", "there is no run 20261129-000000-nobod"),
        ("%gpu_estimate", "required: name"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    notebook: Notebook, gate: GateStandIn, cell: str, told: str
) -> None:
    """What a user got wrong is named with its remedy before anything is queued."""
    notebook.run("import math\nvalue = 1\ngen = (n for n in [1])")
    assert told in notebook.usage_error(cell)
    assert gate.bodies("/runs") == []


def test_what_the_gate_finds_wrong_is_one_line_too(notebook: Notebook, gate: GateStandIn) -> None:
    """A refusal is shown as it is, without the name of a field of the HTTP interface."""
    sentence, field = "needs 4,096 MB of RAM, this machine has 2,048 MB", "hints.ram_bytes"
    error = {"error": "bad_request", "message": f"{field}: {sentence}", "detail": {"field": field}}
    gate.refusals[("POST", "/runs")] = (400, error)
    assert notebook.usage_error("%%gated_eval big --hint-ram 4GB\n1") == f"UsageError: {sentence}"


def test_the_names_of_the_shell_itself_are_not_the_notebooks(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """`get_ipython`, `open` and what the run provides are not asked for as inputs."""
    notebook.run("params = 1")
    result = notebook.run("%%gated_eval own\nget_ipython, open, params, worker, episodes")
    assert result.success
    assert len(gate.bodies("/runs")) == 1


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


# -- the other magics -------------------------------------------------------------------------


def test_the_queue_is_shown_with_its_reasons(notebook: Notebook, gate: GateStandIn) -> None:
    """Who runs and who waits, why, and whose the memory is, in text and in HTML."""
    gate.answers["/queue"] = {
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
        ("%gpu_cancel --help", "usage: %gpu_cancel RUN_ID [options]"),
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
