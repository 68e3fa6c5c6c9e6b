"""Runs as they are found, looked at, waited for and removed in a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.acceptance.commands import at_terminal, gpugate, told
from tests.kit.real_server import Places, Served, until


def python(code: str) -> tuple[str, ...]:
    """A command that runs a line of Python."""
    return ("--", sys.executable, "-c", code)


def detached(places: Places, name: str, *words: str) -> str:
    """Queue a command; return the id of the run."""
    done = gpugate(places, "run", name, "--detach", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def held_open(release: Path) -> tuple[str, ...]:
    """A command that prints, waits for a file and prints again."""
    wait = f"while not os.path.exists({str(release)!r}): time.sleep(0.05)"
    return python(f"import os, time\nprint('first', flush=True)\n{wait}\nprint('second')")


@pytest.mark.behaviour(172)
def test_runs_are_listed_with_parameters_and_shown_whole(places: Places) -> None:
    """The list has each run with its parameters, and can be narrowed down; one run shows how it
    ended, its parameters, its attempt with its peak, its files, and the end of its output.
    """
    assert "there is no run yet" in gpugate(places, "runs").stdout
    good = python("x = bytearray(60 << 20)")
    assert gpugate(places, "run", "one", "--set", "batch=8", *good).returncode == 0
    bad = python("print('near'); raise SystemExit(7)")
    assert gpugate(places, "run", "two", "--set-free", "seed=1", *bad).returncode == 7
    listed = gpugate(places, "runs").stdout
    assert [line.split()[1] for line in listed.splitlines()] == ["state", "failed", "completed"]
    assert "one batch=8" in listed
    assert "two seed=1" in listed
    (failed,) = told(places, "runs", "--status", "failed", "--json")["runs"]
    assert (failed["name"], failed["parameters"]) == ("two", {"seed": "1"})
    names = [row["name"] for row in told(places, "runs", "--sort", "oldest", "--json")["runs"]]
    assert names == ["one", "two"]
    assert len(told(places, "runs", "-n", "1", "--json")["runs"]) == 1
    assert "no run is named three" in gpugate(places, "runs", "--name", "three").stdout
    shown = gpugate(places, "show", "two").stdout
    run_id = failed["run_id"]
    for words in ("two seed=1 · failed (exit 7)", "1: failed (exit 7)", "peak RAM", "| near"):
        assert words in shown
    assert str(places.runs / run_id) in shown
    whole = told(places, "show", run_id[-5:], "--json")
    (attempt,) = whole["attempts"]
    assert attempt["charges"]["ram"] >= attempt["peaks"]["ram"] > 0
    assert (whole["run_id"], attempt["outcome"], attempt["exit_code"]) == (run_id, "failed", 7)


@pytest.mark.behaviour(172)
def test_a_wait_ends_with_the_worst_end_and_leaves_runs_alone(
    places: Places, tmp_path: Path
) -> None:
    """0 if all have completed; else the code of the worst; an interrupt cancels nothing."""
    good = detached(places, "good", *python("pass"))
    bad = detached(places, "bad", *python("raise SystemExit(7)"))
    assert gpugate(places, "wait", good).returncode == 0
    done = gpugate(places, "wait", good, bad)
    assert done.returncode == 7
    assert f"{bad} bad · failed (exit 7)" in done.stdout
    release = tmp_path / "release"
    live = detached(places, "live", *held_open(release))
    assert gpugate(places, "wait", live, "--timeout", "1s").returncode == 75
    with at_terminal(places, "wait", "good", "live") as waiting:
        waiting.shows("good · completed")
        waiting.interrupts()
        assert waiting.ended() == 130
    assert "the run goes on" in waiting.drawn
    release.touch()
    assert gpugate(places, "wait", "live").returncode == 0


@pytest.mark.behaviour(172)
def test_output_is_followed_through_the_end_of_a_gate(places: Places, tmp_path: Path) -> None:
    """`logs` prints what there is; with -f it goes on, also when the gate is killed, and ends with
    the run.
    """
    release = tmp_path / "release"
    run_id = detached(places, "live", *held_open(release))
    until(lambda: gpugate(places, "logs", "live").stdout == "first\n", "it has printed")
    command = [sys.executable, "-m", "jupyter_gpugate", "logs", "-f", "live"]
    with subprocess.Popen(
        command, env=places.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "first\n"
        (gate,) = gates_of(places)
        os.kill(gate, signal.SIGKILL)
        release.touch()
        rest, said = following.communicate(timeout=200)
    assert (following.returncode, rest) == (0, "second\n"), said
    assert f"{run_id} live · completed" in said
    assert gpugate(places, "logs", run_id, "-n", "1").stdout == "second\n"
    assert told(places, "logs", run_id, "--json")["output"] == "first\nsecond\n"


def gates_of(places: Places) -> list[int]:
    """The processes that host a gate of this user without a Jupyter server."""
    mark, found = f"XDG_RUNTIME_DIR={places.runtime}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_ours = mark in (entry / "environ").read_bytes()
        except OSError:
            continue
        if is_ours and {b"serve", b"--user"} <= {*words} and b"-c" in words:
            found.append(int(entry.name))
    return found


@pytest.mark.behaviour(172)
def test_several_runs_are_cancelled_after_one_question(places: Places, tmp_path: Path) -> None:
    """By name or all at once: asked once at a terminal, refused without one and without --yes; the
    answer names every run.
    """
    release = tmp_path / "release"
    ids = [detached(places, "long", *held_open(release)) for _ in range(2)]
    other = detached(places, "other", *held_open(release))
    refused = gpugate(places, "cancel", "--name", "long")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    with at_terminal(places, "cancel", "--name", "long") as asking:
        asking.shows("cancel these 2 runs? [y/N]")
        asking.types("n\n")
        asking.shows("nothing was changed")
        assert asking.ended() == 1
    assert len(told(places, "runs", "--status", "unfinished", "--json")["runs"]) == 3
    with at_terminal(places, "cancel", "--name", "long") as asking:
        asking.shows("cancel these 2 runs? [y/N]")
        asking.types("y\n")
        assert asking.ended() == 0
    assert all(f"{run_id} is cancelled" in asking.drawn for run_id in ids)
    done = gpugate(places, "cancel", "--all", "--yes")
    assert (done.returncode, f"{other} is cancelled" in done.stdout) == (0, True)
    assert "no run is waiting or active" in gpugate(places, "cancel", "--all", "--yes").stdout


@pytest.mark.behaviour(172)
def test_only_ended_runs_are_removed(places: Places, tmp_path: Path) -> None:
    """One by one or by name; a live run stays, and the message says how to stop it."""
    ended = detached(places, "mine", *python("pass"))
    gpugate(places, "wait", ended)
    live = detached(places, "mine", *held_open(tmp_path / "release"))
    refused = gpugate(places, "rm", live)
    assert refused.returncode == 1
    assert f"`jupyter gpugate cancel {live}` stops it" in refused.stderr
    done = gpugate(places, "rm", "--name", "mine", "--yes")
    assert (done.returncode, done.stdout) == (0, f"{ended} is removed\n")
    assert "waiting or active stay" in done.stderr
    assert [path.name for path in places.runs.glob("2*")] == [live]
    assert gpugate(places, "cancel", "mine").returncode == 0
    assert gpugate(places, "rm", live[-5:]).returncode == 0
    assert not list(places.runs.glob("2*"))


@pytest.mark.behaviour(172)
def test_the_queue_is_drawn_again_until_an_interrupt(server: Served, tmp_path: Path) -> None:
    """`top` shows runs as they come and go, and its end is the end of no run; without a terminal it
    says what to use instead.
    """
    places = server.places
    release = tmp_path / "release"
    source = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.1)"
    with at_terminal(places, "top") as view:
        view.shows("no run is active and none is waiting")
        run_id = server.submit("seen", source, parameters={"batch": "8"})
        view.shows("seen batch=8")
        view.interrupts()
        assert view.ended() == 0
    assert server.run(run_id)["status"] == "active"
    release.touch()
    piped = gpugate(places, "top")
    assert (piped.returncode, "`queue` prints the queue once" in piped.stderr) == (2, True)
    server.ended(run_id)


@pytest.mark.behaviour(172)
def test_every_list_of_runs_shows_their_parameters(server: Served) -> None:
    """The queue and the list over HTTP, the panel's page and the card, and the queue as text; of a
    program the command too.
    """
    server.ask("POST", "/drain", {})
    cell = server.submit("cell", "pass", parameters={"batch": "8", "note": "<b>"})
    program = {"name": "program", "argv": ["/bin/sleep", "5"], "parameters": {"seed": "1"}}
    run_id = server.ask("POST", "/runs", program).json["run_id"]
    for rows in (server.queue()["queued"], server.ask("GET", "/runs").json["runs"]):
        found = {row["run_id"]: (row["parameters"], row["command"]) for row in rows}
        assert found[cell] == ({"batch": "8", "note": "<b>"}, "")
        assert found[run_id] == ({"seed": "1"}, "/bin/sleep 5")
    page = server.ask("GET", "/panel").json["html"]
    assert "cell batch=8 note=&#x27;&lt;b&gt;&#x27;" in page
    assert "program seed=1  sleep 5" in page
    card = server.ask("GET", f"/runs/{cell}/card").json["html"]
    assert "cell batch=8 note=&#x27;&lt;b&gt;&#x27;" in card
    assert "cell batch=8 note='<b>'" in gpugate(server.places, "queue").stdout


@pytest.mark.behaviour(172)
def test_top_gives_each_look_as_a_line_of_json(server: Served) -> None:
    """A program reads one snapshot after the other."""
    command = [sys.executable, "-m", "jupyter_gpugate", "top", "--json"]
    with subprocess.Popen(
        command, env=server.places.environ(), stdout=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        ticks = [json.loads(top.stdout.readline())["tick"] for _ in range(2)]
        ending = threading.Timer(100, top.kill)
        ending.start()
        top.send_signal(signal.SIGINT)
        top.stdout.read()
        assert top.wait(100) == 0
        ending.cancel()
    assert ticks[0] < ticks[1]
