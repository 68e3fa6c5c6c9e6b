"""A supervisor as a real process, with a real gate on a unix socket: from "go" to the end."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.messages import Refusal
from jupyter_gpugate.core.reports import EndReport, Peaks, RunReport
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.runs.outcome import stop_in
from tests.integration.supervisor_process import (
    Make,
    as_cell,
    python,
    until,
)


def mark(path: Path) -> list[str]:
    """Return a program that shows that it ran."""
    return python(f"open({str(path)!r}, 'w').close()")


def test_no_user_code_runs_before_the_gate_says_go(make: Make, tmp_path: Path) -> None:
    """While no gate is there the supervisor asks and waits; it starts once one says go."""
    attempt = make(argv=mark(tmp_path / "ran"))
    attempt.gate.close()
    attempt.gate.replies["started"] = (503, {"error": "starting"})
    attempt.start()
    attempt.gate.open()
    first = attempt.gate.wait_for("started")
    until(lambda: len(attempt.gate.all("started")) > 1, "a second question")
    assert not (tmp_path / "ran").exists()
    attempt.gate.replies["started"] = (200, {"verdict": "go"})
    assert attempt.end()["outcome"] == "completed"
    assert (tmp_path / "ran").exists()
    assert first["run_id"] == attempt.run_id
    assert (first["fence"], first["pid"]) == (7, attempt.pid)
    assert first["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize(
    "reply", [(409, to_json(Refusal("fence", "this lease is over"))), (200, {"verdict": "fenced"})]
)
def test_a_fenced_attempt_ends_without_running(
    make: Make, tmp_path: Path, reply: tuple[int, dict[str, Any]]
) -> None:
    """An attempt whose fence is old never starts, and has nothing to tell the gate."""
    attempt = make(argv=mark(tmp_path / "ran"))
    attempt.gate.replies["started"] = reply
    end = attempt.start().end()
    assert (end["outcome"], end["reason"]) == ("not_started", "fenced")
    assert not (tmp_path / "ran").exists()
    assert not attempt.gate.all("finished")


def test_without_any_gate_an_attempt_gives_up_in_the_end(make: Make, tmp_path: Path) -> None:
    """After the time that it holds its fence it ends as not started, and tells the next gate so."""
    attempt = make(argv=mark(tmp_path / "ran"))
    attempt.change_supervisor("HOLD_FENCE_S = 600.0", "HOLD_FENCE_S = 0.3")
    attempt.gate.close()
    attempt.start()
    until((attempt.path / "_DONE").exists, "the record")
    attempt.gate.open()
    end = attempt.end()
    assert end["outcome"] == "not_started"
    assert end["peaks"]["ram_bytes"] is None
    assert attempt.gate.all("finished")[0]["end"] == end
    assert not (tmp_path / "ran").exists()


def test_a_cancel_before_go_starts_nothing(make: Make, tmp_path: Path) -> None:
    """A run that is cancelled while its supervisor waits for the gate ends cancelled, unrun."""
    attempt = make(argv=mark(tmp_path / "ran"))
    attempt.gate.replies["started"] = (503, {})
    attempt.start()
    attempt.gate.wait_for("started")
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"
    assert not (tmp_path / "ran").exists()


def test_a_program_that_cannot_be_started_fails_with_the_reason(make: Make) -> None:
    """A command that does not exist is a failed run with plain words, and nothing stays behind."""
    end = make(argv=["no-such-program-anywhere"]).start().end()
    assert end["outcome"] == "failed"
    assert "cannot start" in end["reason"]
    assert "no-such-program-anywhere" in end["reason"]


@pytest.mark.parametrize(
    ("code", "outcome", "reason", "number"),
    [
        ("", "completed", "", 0),
        ("raise SystemExit(3)", "failed", "exit 3", 3),
        ("import os; os.abort()", "failed", "signal SIGABRT", -signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", "failed", "signal SIGKILL", -9),
    ],
)
def test_the_end_is_on_the_disk_and_told_to_the_gate(
    make: Make, code: str, outcome: str, reason: str, number: int
) -> None:
    """Whatever the exit, there is an outcome and the last file, and the gate hears the same."""
    attempt = make(argv=python(code)).start()
    end = attempt.end()
    assert (end["outcome"], end["reason"], end["exit_code"]) == (outcome, reason, number)
    assert attempt.gate.all("finished")[-1] == {
        "run_id": attempt.run_id,
        "fence": 7,
        "end": end,
    }
    outcome_file = attempt.outcome()
    assert outcome_file["kill"] is None
    assert outcome_file["wall_started"] <= outcome_file["wall_ended"]
    assert json.loads((attempt.path / "tree.json").read_text())["tree"] == []


def test_messages_have_the_form_of_the_protocol(make: Make) -> None:
    """Ends, reports, peaks and trees are read by the protocol's own codec without a complaint."""
    attempt = make(argv=["sleep", "600"]).start()
    beat = attempt.gate.wait_for("heartbeat", lambda beat: beat["report"]["ram_held_bytes"])
    attempt.stop("cancelled")
    end = attempt.end()
    # A gate of an older version does not know what only a service reports.
    assert to_json(from_json(EndReport, end)) == {**end, "ready": None}
    assert to_json(from_json(RunReport, beat["report"])) == beat["report"]
    assert to_json(from_json(Peaks, beat["peaks"])) == beat["peaks"]
    assert from_json(tuple[ProcessKey, ...], beat["tree"])[0].pid == attempt.pid
    assert set(beat) == {
        "run_id", "fence", "tree", "report", "peaks", "episode", "resumed", "phase", "stop_reason"
    }  # fmt: skip


def test_a_cell_runs_in_the_interpreter_and_with_the_flags_it_was_given(make: Make) -> None:
    """The bootstrap gets the attempt's directory and the worker's number."""
    attempt = as_cell(make(flags=["-X", "dev"]), "import sys\nprint(sys.flags.dev_mode, worker)")
    assert attempt.start().end()["outcome"] == "completed"
    assert attempt.output() == "True 0\n"


def test_a_cell_that_leaves_before_its_end_has_not_completed(make: Make) -> None:
    """Exit code 0 alone does not make a cell complete."""
    end = as_cell(make(), "import os\nos._exit(0)").start().end()
    assert (end["outcome"], end["reason"]) == ("failed", "exit 0 before the end of the cell")


def test_one_failing_worker_stops_the_run(make: Make) -> None:
    """The others are stopped, and the outcome is the failing worker's."""
    body = "import sys, time\nsys.exit(4) if worker == 1 else time.sleep(600)"
    attempt = as_cell(make(workers=3), body).start()
    end = attempt.end()
    assert (end["outcome"], end["reason"]) == ("failed", "exit 4")
    assert attempt.outcome()["kill"]["means"] == "term"
    assert attempt.tagged() == []


def test_episodes_and_displays_are_recorded_as_they_come(make: Make) -> None:
    """Each finished episode is a line on the disk and counts in the beats and in the end."""
    body = (
        "for i in range(3): tell('episode', index=2*i+worker, worker=worker, kept=True)\n"
        "tell('display', data={'text/plain': 'hi'})\n"
        "tell('error', ename='E')\n"
        "import os; os.write(int(os.environ['GPUGATE_EVENTS_FD']), b'no json\\n[1]\\n')\n"
    )
    attempt = as_cell(make(workers=2, episodes=6), body).start()
    assert attempt.end()["episodes_done"] == 6
    lines = attempt.lines("episodes.jsonl")
    assert sorted(line["index"] for line in lines) == [0, 1, 2, 3, 4, 5]
    assert [line["index"] for line in lines if line["worker"] == 1] == [1, 3, 5]
    shown = [(line["event"], line["worker"]) for line in attempt.lines("display.jsonl")]
    assert sorted(shown) == [("display", 0), ("display", 1)]
    assert [line["event"] for line in attempt.lines("messages.jsonl")] == ["error", "error"]


def test_finished_episodes_are_told_while_the_run_goes_on(make: Make) -> None:
    """A beat carries how many episodes have ended."""
    body = "import time\ntell('episode', index=0, worker=0)\ntime.sleep(600)"
    attempt = as_cell(make(episodes=5), body).start()
    attempt.gate.wait_for("heartbeat", lambda beat: beat["episode"] == 1)
    attempt.stop("cancelled")
    assert attempt.end()["episodes_done"] == 1


def test_a_time_limit_counts_from_go(make: Make) -> None:
    """Waiting for the gate costs nothing; past the limit the run fails with that reason."""
    attempt = make(argv=["sleep", "600"], time_limit_s=0.3)
    attempt.gate.replies["started"] = (503, {})
    attempt.start()
    until(lambda: len(attempt.gate.all("started")) > 2, "more time than the limit")
    attempt.gate.replies["started"] = (200, {"verdict": "go"})
    end = attempt.end()
    assert (end["outcome"], end["reason"]) == ("failed", "time_limit")
    assert attempt.outcome()["stop"] is None
    assert end["duration_s"] >= 0.3


#: A machine that is suspended for an hour shows it on the boot clock alone.
SUSPENDED = """import time
_begun, _read = time.monotonic(), time.clock_gettime
def _leap(which):
    slept = which == time.CLOCK_BOOTTIME and time.monotonic() > _begun + 0.5
    return _read(which) + 3600 * slept
time.clock_gettime = _leap
if not __package__:"""


def test_time_asleep_is_no_time_run(make: Make) -> None:
    """A machine that is suspended for longer than the limit of a run does not end it."""
    attempt = make(argv=["sleep", "1.5"], time_limit_s=60.0)
    attempt.change_supervisor("if not __package__:", SUSPENDED)
    end = attempt.start().end()
    assert (end["outcome"], end["reason"]) == ("completed", "")
    assert end["duration_s"] < 3600


@pytest.mark.parametrize(
    ("reason", "outcome", "told"),
    [
        ("cancelled", "cancelled", "cancelled"),
        ("evicted", "evicted", "evicted"),
        (None, "failed", "terminated"),
    ],
)
def test_a_stop_ends_with_its_reason(
    make: Make, reason: str | None, outcome: str, told: str
) -> None:
    """The file beside the signal says why; a bare SIGTERM ends as terminated."""
    attempt = make(argv=["sleep", "600"]).start()
    attempt.gate.wait_for("heartbeat")
    attempt.stop(reason)
    end = attempt.end()
    assert (end["outcome"], end["reason"]) == (outcome, told)
    assert stop_in(attempt.outcome()) == Stop.of(StopKind(told))
    kill = attempt.outcome()["kill"]
    assert kill["means"] == "term"
    assert kill["survivors"] == []
    assert kill["ms"] >= 0


def test_a_stop_file_is_found_without_its_signal(make: Make) -> None:
    """A stop asked for before anybody could hear the signal is obeyed at the next beat."""
    attempt = make(argv=["sleep", "600"]).start()
    attempt.gate.wait_for("heartbeat")
    (attempt.path / "stop.json").write_text(json.dumps({"reason": "evicted", "at": 1.0}))
    assert attempt.end()["outcome"] == "evicted"
