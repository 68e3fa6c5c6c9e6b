"""``jupyter gpugate`` as a person or a script uses it, with no Jupyter server about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.commands import gpugate, told
from tests.kit.real_server import Places, until


@pytest.mark.behaviour(1, 29, 58, 142)
def test_a_program_runs_and_is_known_from_then_on(places: Places) -> None:
    """With no gate at all one is started; the second run of a program is admitted as measured."""
    (places.notebooks / "work.py").write_text(
        "import sys\nx = bytearray(int(sys.argv[1]) << 20)\nprint('worked')\n"
    )
    run = ("run", "work", "--", sys.executable, "work.py", "150")
    first = gpugate(places, *run)
    assert (first.returncode, first.stdout) == (0, "worked\n"), first.stderr
    second = told(places, "run", "work", "--json", "--", sys.executable, "work.py", "150")
    assert second["end"] == "completed"
    assert second["basis"] == {"ram": "calibrated"}
    assert 150 << 20 < second["peaks"]["ram"] < 250 << 20
    estimate = told(places, "estimate", "work", "--json")
    assert [term["origin"] for term in estimate["terms"]] == ["measured"]
    assert "measured" in gpugate(places, "estimate", "work").stdout
    assert told(places, "queue", "--json")["queued"] == []


def test_the_exit_code_is_the_programs(places: Places) -> None:
    """A script can go by the exit code, and finds the program's words on the output."""
    done = gpugate(places, "run", "fails", "--", "sh", "-c", "echo broken >&2; exit 7")
    assert done.returncode == 7
    assert "broken" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "a b", "--", "true"), "a b"),
        (("run", "n", "--time-limit", "soon", "--", "true"), "soon"),
        (("run", "n"), "--"),
        (("cancel", "20200101-000000-abcde"), "20200101-000000-abcde"),
        (("estimate", "unheard-of"), "unheard-of"),
    ],
)
def test_a_mistake_is_one_clear_line(places: Places, words: tuple[str, ...], named: str) -> None:
    """What is wrong is named on stderr, without a traceback, and nothing is queued."""
    done = gpugate(places, *words)
    assert done.returncode not in (0, None)
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.behaviour(12)
def test_a_detached_run_is_found_and_cancelled_from_elsewhere(places: Places) -> None:
    """--detach gives the id at once; queue shows the run, cancel stops it."""
    begun = told(places, "run", "long", "--detach", "--json", "--", "sleep", "1000")
    run_id = begun["run_id"]
    until(lambda: told(places, "queue", "--json")["running"], "the run is live")
    assert run_id in gpugate(places, "queue").stdout
    assert gpugate(places, "cancel", run_id).returncode == 0
    assert told(places, "queue", "--json")["running"] == []


@pytest.mark.behaviour(154)
def test_why_a_run_was_killed_is_told(places: Places) -> None:
    """An end is classified by its evidence: a signal is a signal and no lack of memory."""
    done = gpugate(places, "run", "killed", "--json", "--", "sh", "-c", "kill -9 $$")
    row = json.loads(done.stdout)
    assert (row["end"], row["exit_reason"]) == ("failed", "signal SIGKILL")
    code = "raise MemoryError('no more')"
    done = gpugate(places, "run", "memory", "--json", "--", sys.executable, "-c", code)
    assert json.loads(done.stdout)["end"] == "failed"


def test_doctor_says_what_can_and_cannot_be_done(places: Places) -> None:
    """In plain sentences, and as JSON; with and without a gate to ask."""
    alone = gpugate(places, "doctor")
    assert alone.returncode == 0, alone.stderr
    assert "RAM is measured" in alone.stdout
    assert "No GPU can be measured here" in alone.stdout
    assert isinstance(told(places, "doctor", "--json"), dict)


def test_a_user_gate_ends_when_nobody_needs_it(places: Places) -> None:
    """`serve --user` listens on a socket of mode 0600 and ends by itself, or when asked to."""
    gate = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpugate", "serve", "--user", "--idle", "2"],
        env=places.environ(),
        stderr=subprocess.DEVNULL,
    )
    until(places.socket.exists, "the gate listens")
    mode = Path(places.socket).stat().st_mode
    assert mode & 0o777 == 0o600
    assert os.stat(places.socket.parent).st_mode & 0o777 == 0o700  # noqa: PTH116
    assert gate.wait(100) == 0
    assert not places.socket.exists()
    gate = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpugate", "serve", "--user"],
        env=places.environ(),
        stderr=subprocess.DEVNULL,
    )
    until(places.socket.exists, "the gate listens again")
    gate.send_signal(signal.SIGTERM)
    assert gate.wait(100) == 0
