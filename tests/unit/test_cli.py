"""`jupyter gpugate run`, against a gate that a test plays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.places import SOCKET_VARIABLE
from jupyter_gpugate.terminal import cli, exits, follow
from tests.kit.gate_stand_in import PATIENCE_S, GateStandIn, gate_at

ROOT = Path(__file__).resolve().parents[2]
DONE = {"status": "ended", "end": "completed"}


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateStandIn]:
    """Serve a gate that this terminal finds, and that completes every run at once."""
    path = tmp_path / "own" / "gpugate.sock"
    monkeypatch.setenv(SOCKET_VARIABLE, str(path))
    with gate_at(path) as gate:
        gate.on_submit = lambda _body: DONE
        yield gate


def mistake(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command line that is wrong, and return what it is told."""
    try:
        code = cli.main(argv)
    except SystemExit as leaving:
        code = leaving.code  # type: ignore[assignment]
    assert code == exits.MISUSED
    return capsys.readouterr().err


# -- run --------------------------------------------------------------------------------------


def test_run_submits_the_command_as_it_stands(gate: GateStandIn) -> None:
    """Everything behind `--` is the command, options like ours included."""
    command = ["python", "eval.py", "--gpus", "4", "--", "x y"]
    options = ["--gpus", "0", "--hint-ram", "1GB", "--set-free", "seed=7"]
    more = ["--memory-irrelevant", "out", "--drop-env", "HOME"]
    assert cli.main(["run", "my-eval", *options, *more, "--", *command]) == exits.OK
    body = gate.bodies("/runs")[0]
    assert (body["name"], body["argv"]) == ("my-eval", command)
    assert (body["gpus"], body["hints"], body["episodes"]) == (0, {"ram_bytes": 1 << 30}, 1)
    assert body["memory_irrelevant"] == ["seed", "out"]
    assert not {"source", "workers", "outputs", "path", "flags"} & set(body)
    assert "HOME" not in body["environment"]
    assert body["cwd"] == str(Path.cwd())


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"end": "completed", "exit_code": 0}, 0),
        ({"end": "failed", "exit_code": 3}, 3),
        ({"end": "failed", "exit_code": -9}, 137),
        ({"end": "failed", "exit_code": None, "exit_reason": "time_limit"}, 1),
        ({"end": "failed", "exit_code": 0}, 1),
        ({"end": "failed"}, 1),
        ({"end": "oom", "exit_code": 3}, 1),
        ({"end": "lost"}, 1),
        ({"end": "expired"}, 1),
        ({"end": "cancelled", "exit_code": -15}, 130),
    ],
)
def test_the_exit_code_is_the_commands_own(
    gate: GateStandIn, state: dict[str, Any], code: int
) -> None:
    """A script sees the command's exit code; no end but completion looks like success."""
    gate.on_submit = lambda _body: {"status": "ended", **state}
    assert cli.main(["run", "n", "--", "true"]) == code


def test_run_passes_the_output_on_and_says_on_stderr_where_it_stands(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stdout is the run's output, whole and in order; the rest is on stderr."""
    gate.on_submit = lambda _body: {"reasons": [{"message": "needs 9 MB of RAM"}]}

    def go_on() -> None:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        gate.outputs[run_id] = "first\n"
        gate.put(run_id, status="active", phase="running")
        gate.wait_for(lambda: any(a.query.get("from") == "6" for a in gate.asked))
        gate.outputs[run_id] += "second\n"
        gate.put(run_id, **DONE)

    thread = threading.Thread(target=go_on)
    thread.start()
    code = cli.main(["run", "n", "--", "true"])
    thread.join()
    shown = capsys.readouterr()
    assert code == exits.OK
    assert shown.out == "first\nsecond\n"
    for words in ("waiting in the queue: needs 9 MB of RAM", "running", "completed"):
        assert words in shown.err


def test_detached_the_id_is_all_that_is_printed(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's id on stdout is what a script goes on with."""
    assert cli.main(["run", "n", "--detach", "--", "true"]) == exits.OK
    assert capsys.readouterr().out.split() == list(gate.runs)
    assert gate.bodies("/runs")[0]["detach"]


def test_as_json_the_end_is_one_document(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json stdout holds the final state and nothing else."""
    gate.on_submit = lambda _body: {"status": "ended", "end": "failed", "exit_code": 3}
    assert cli.main(["run", "n", "--json", "--", "true"]) == 3
    state = json.loads(capsys.readouterr().out)
    assert (state["name"], state["end"]) == ("n", "failed")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["run", "n", "--"], "no command: jupyter gpugate run NAME -- COMMAND"),
        (["run", "a/b", "--", "true"], "`a/b` is not a valid name"),
        (["run", "n", "--hint-vram", "2", "--", "true"], "`2` is not a size"),
        (["run", "n", "--workers", "2", "--", "true"], "unrecognized arguments: --workers"),
        (["run", "n", "true"], "unrecognized arguments: true; put -- before the command"),
        (["run", "n", "--hint-vrm=2GB", "--", "true"], "--hint-vrm=2GB; did you mean --hint-vram?"),
        (["run", "n", "--bad", "--", "true"], "usage: jupyter gpugate run NAME [options]"),
        (["cancel"], "cancel takes one of RUN ..., --name NAME or --all"),
        (["cancel", "a", "--all"], "several ways at once"),
        (["rm", "--all"], "unrecognized arguments: --all"),
        (["rm"], "rm takes one of RUN ..., --name NAME"),
        (["show"], "RUN"),
        (["wait"], "RUN"),
        (["runs", "--status", "nice"], "nice"),
        (["nonsense"], "nonsense"),
        ([], "VERB"),
    ],
)
def test_a_mistake_in_the_command_line_is_named(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str], argv: list[str], told: str
) -> None:
    """What cannot be meant is refused before anything is asked of the gate."""
    assert told in mistake(capsys, *argv)
    assert gate.asked == []


def test_an_environment_that_is_too_large_is_told_by_its_greatest_variable(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 1 MB nothing is asked of the gate; the option that is named is the way out."""
    for number in range(12):
        monkeypatch.setenv(f"HUGE_{number}", "x" * (number << 14))
    told = mistake(capsys, "run", "n", "--", "true")
    assert told.endswith("most of it HUGE_11: add --drop-env HUGE_11\n")
    assert gate.asked == []
    assert cli.main(["run", "n", "--drop-env", "HUGE_11", "--", "true"]) == exits.OK


def test_what_the_gate_refuses_is_a_sentence_or_a_document(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal is one line on stderr; with --json it is the gate's own error document."""
    error = {"error": "bad_request", "message": "gpus: asks for 4", "detail": {"field": "gpus"}}
    gate.refusals[("POST", "/runs")] = (400, error)
    told = mistake(capsys, "run", "n", "--gpus", "4", "--", "true")
    assert told == "jupyter gpugate: asks for 4\n"
    assert cli.main(["run", "n", "--json", "--", "true"]) == exits.MISUSED
    assert json.loads(capsys.readouterr().out) == error


def test_an_interrupt_without_a_terminal_cancels(gate: GateStandIn) -> None:
    """A script that is interrupted stops its run and waits for the end."""
    gate.on_submit = lambda _body: {}
    command = [sys.executable, "-m", "jupyter_gpugate", "run", "n", "--", "true"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == exits.CANCELLED
    assert len(gate.bodies(f"/runs/{run_id}/cancel")) == 1
    assert "Traceback" not in said


def test_whoever_cannot_wait_for_a_cancel_has_cancelled(gate: GateStandIn) -> None:
    """A command that is ended while its run is being stopped answers like one that saw it end."""
    gate.on_submit = lambda _body: {}
    gate.on_cancel = lambda _run_id: {}
    command = [sys.executable, "-m", "jupyter_gpugate", "run", "n", "--", "true"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL) as process:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        process.send_signal(signal.SIGINT)
        gate.wait_for(lambda: gate.bodies(f"/runs/{run_id}/cancel"))
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    assert process.returncode == exits.CANCELLED


def test_at_a_terminal_one_interrupt_leaves_the_run_alone(gate: GateStandIn) -> None:
    """Somebody who interrupts once is told what a second one does; the run goes on."""
    gate.on_submit = lambda _body: {}
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "jupyter_gpugate", "run", "n", "--", "true"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=theirs, stderr=subprocess.PIPE, text=True
    ) as process:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == exits.NOT_OVER
    assert gate.bodies(f"/runs/{run_id}/cancel") == []
    assert "interrupt again within 5 s to cancel; the run goes on otherwise" in said
    assert f"jupyter gpugate cancel {run_id}" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_a_terminal_is_not_the_runs(gate: GateStandIn, number: int) -> None:
    """Whoever ends the waiting command is told that its run goes on, in a line and a code."""
    gate.on_submit = lambda _body: {}
    command = [sys.executable, "-m", "jupyter_gpugate", "run", "n", "--", "true"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == exits.NOT_OVER
    assert gate.bodies(f"/runs/{run_id}/cancel") == []
    follows, stops = (f"`jupyter gpugate {verb} {run_id}`" for verb in ("logs -f", "cancel"))
    assert said.splitlines()[1:] == [f"the run goes on; {follows} follows it, {stops} stops it"]


def test_numbers_alone_are_told_at_most_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """Another reason or place is told at once; free memory that moves is not."""
    now = [0.0]
    progress = follow.Progress(clock=lambda: now[0])

    def told(at: float, free: int, **changes: Any) -> str:
        now[0] = at
        reason = {"kind": "fit", "resource": "ram", "message": f"room is {free} MB", **changes}
        progress.show({"run_id": "r", "status": "queued", "reasons": [reason]}, "")
        return capsys.readouterr().err

    assert "room is 1 MB" in told(0.0, 1)
    assert told(1.0, 2) == ""
    assert told(59.0, 3) == ""
    assert "room is 4 MB" in told(60.0, 4)
    assert "room is 5 MB" in told(61.0, 5, who=["ada"])


def test_what_a_run_is_warned_of_is_said_once(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal says each warning when it first shows up."""
    warned = {"warnings": ["a hint in vain"]}
    gate.on_submit = lambda _body: {"status": "active", "phase": "running", **warned}

    def go_on() -> None:
        run_id = gate.wait_for(lambda: next(iter(gate.runs), None))
        gate.wait_for(lambda: gate.polls(run_id) > 1)
        gate.put(run_id, **DONE, **warned)

    thread = threading.Thread(target=go_on)
    thread.start()
    assert cli.main(["run", "n", "--", "true"]) == exits.OK
    thread.join()
    assert capsys.readouterr().err.count("warning: a hint in vain") == 1


def test_nothing_that_a_run_said_acts_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons and warnings that carry controls are shown without them, line by line."""
    hostile = "\x1b]0;taken\x07\x1b[2J\x9b31m"
    ended = {"run_id": "r", "status": "ended", "end": "failed", "exit_reason": hostile}
    follow.Progress().show({**ended, "warnings": [f"a hint in vain{hostile}"]}, "")
    shown = capsys.readouterr().err
    assert "a hint in vain" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_a_hint_that_was_too_low_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """The terminal says once what to raise a hint to, when the run that held more has ended."""
    term = {"resource": "ram", "origin": "hint", "need_bytes": 276 << 20, "margin_bytes": 256 << 20}
    state = {"run_id": "r", "peaks": {"ram": 926 << 20}, "estimate": {"terms": [term]}}
    progress = follow.Progress()
    progress.show({**state, "status": "active", "phase": "running"}, "")
    assert "hint" not in capsys.readouterr().err
    for _ in range(2):
        progress.show({**state, "status": "ended", "end": "completed"}, "")
    assert capsys.readouterr().err.count("raise it to --hint-ram 1024MB") == 1


def test_help_offers_no_option_that_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that is only recorded is accepted and not offered."""
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    shown = capsys.readouterr().out
    assert "--exclusive" in shown
    assert "--class" not in shown
    assert "--evictable" not in shown


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize(("offered", "warns"), [("data\n", True), ("", False)])
def test_input_that_is_lost_is_warned_of(tmp_path: Path, offered: str, warns: bool) -> None:
    """A command that is fed by a file or a pipe would get nothing: that is said, on stderr."""
    command = [sys.executable, "-m", "jupyter_gpugate", "run", "n", "--", "cat"]
    (tmp_path / "fed").write_text(offered, encoding="utf-8")
    with (tmp_path / "fed").open(encoding="utf-8") as fed:
        done = subprocess.run(
            command, cwd=ROOT, stdin=fed, capture_output=True, text=True, check=True
        )
    assert ("standard input is empty" in done.stderr) == warns
    done = subprocess.run(
        command, cwd=ROOT, input=offered, capture_output=True, text=True, check=True
    )
    assert ("standard input is empty" in done.stderr) == warns
