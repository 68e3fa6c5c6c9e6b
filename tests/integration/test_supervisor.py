"""A supervisor as a real process, with a real gate on a unix socket: from "go" to the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.messages import Refusal, Verdict
from jupyter_gpugate.core.reports import EndReport, Peaks, RunReport
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.programs.supervisor.cgroups import cgroup_directory, memberships
from tests.integration.supervisor_process import (
    PATIENCE_S,
    TOUCH,
    Attempt,
    attempts,
    limited_cgroup,
    python,
    until,
)

MB = 1 << 20
Make = Callable[..., Attempt]


@pytest.fixture
def make() -> Iterator[Make]:
    """Give attempts that share a gate, and clear up after them."""
    with attempts() as give:
        yield give


def needs(possible: bool, what: str) -> None:
    """Skip, saying why, where a thing is not possible."""
    if not possible:
        pytest.skip(f"needs {what}")


def mark(path: Path) -> list[str]:
    """Return a program that shows that it ran."""
    return python(f"open({str(path)!r}, 'w').close()")


# -- going


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


# -- ending


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
    assert to_json(from_json(EndReport, end)) == end
    assert to_json(from_json(RunReport, beat["report"])) == beat["report"]
    assert to_json(from_json(Peaks, beat["peaks"])) == beat["peaks"]
    assert from_json(tuple[ProcessKey, ...], beat["tree"])[0].pid == attempt.pid
    assert set(beat) == {
        "run_id", "fence", "tree", "report", "peaks", "episode", "phase", "stop_reason"
    }  # fmt: skip


def cell(attempt: Attempt, body: str) -> Attempt:
    """Make the attempt a cell's."""
    attempt.launch["kind"] = "cell"
    (attempt.path / "cell.py").write_text(body)
    return attempt


def test_a_cell_runs_in_the_interpreter_and_with_the_flags_it_was_given(make: Make) -> None:
    """The bootstrap gets the attempt's directory and the worker's number."""
    attempt = cell(make(flags=["-X", "dev"]), "import sys\nprint(sys.flags.dev_mode, worker)")
    assert attempt.start().end()["outcome"] == "completed"
    assert attempt.output() == "True 0\n"


def test_a_cell_that_leaves_before_its_end_has_not_completed(make: Make) -> None:
    """Exit code 0 alone does not make a cell complete."""
    end = cell(make(), "import os\nos._exit(0)").start().end()
    assert (end["outcome"], end["reason"]) == ("failed", "exit 0 before the end of the cell")


def test_one_failing_worker_stops_the_run(make: Make) -> None:
    """The others are stopped, and the outcome is the failing worker's."""
    body = "import sys, time\nsys.exit(4) if worker == 1 else time.sleep(600)"
    attempt = cell(make(workers=3), body).start()
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
    attempt = cell(make(workers=2, episodes=6), body).start()
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
    attempt = cell(make(episodes=5), body).start()
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
    assert end["duration_s"] >= 0.3


#: A machine that is suspended for an hour shows it on the boot clock alone.
SUSPENDED = """import time
_begun, _read = time.monotonic(), time.clock_gettime
def _leap(which):
    slept = which == time.CLOCK_BOOTTIME and time.monotonic() > _begun + 0.5
    return _read(which) + 3600 * slept
time.clock_gettime = _leap
from .main import main
"""


def test_time_asleep_is_no_time_run(make: Make) -> None:
    """A machine that is suspended for longer than the limit of a run does not end it."""
    attempt = make(argv=["sleep", "1.5"], time_limit_s=60.0)
    attempt.change_supervisor("from .main import main\n", SUSPENDED)
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


# -- a gate that is away, restarts, or says stop


def test_a_gate_that_is_away_never_stops_a_run(make: Make, tmp_path: Path) -> None:
    """The run goes on and ends on the disk; the next gate hears of it."""
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('on')"
    attempt = make(argv=python(waits)).start()
    attempt.gate.wait_for("heartbeat")
    attempt.gate.close()
    attempt.gate.path.unlink()
    with socket.socket(socket.AF_UNIX) as dying:
        dying.settimeout(PATIENCE_S)
        dying.bind(str(attempt.gate.path))
        dying.listen()
        for _ in range(2):  # beats that find a gate, but no answer
            dying.accept()[0].close()
    go.touch()
    until((attempt.path / "_DONE").exists, "the record")
    assert attempt.output() == "on\n"
    assert not attempt.gate.all("finished")
    attempt.gate.open()
    assert attempt.end()["outcome"] == "completed"
    assert attempt.gate.all("finished")[0]["end"]["outcome"] == "completed"


def test_beats_go_on_with_a_gate_that_has_restarted(make: Make) -> None:
    """A gate that comes back at the same path hears the next beat, without a new start."""
    attempt = make(argv=["sleep", "600"]).start()
    attempt.gate.wait_for("heartbeat")
    attempt.gate.close()
    attempt.gate.messages.clear()
    attempt.gate.open()
    attempt.gate.wait_for("heartbeat", lambda beat: beat["phase"] == "running")
    assert not attempt.gate.all("started")
    attempt.stop("cancelled")
    attempt.end()


def test_a_gate_that_never_answers_holds_up_nothing(make: Make) -> None:
    """A gate that takes the connection and stays silent delays neither the run nor its record."""
    attempt = make(argv=python("import time; time.sleep(0.5); print('done')"))
    attempt.start()
    attempt.gate.wait_for("started")
    attempt.gate.close()
    attempt.gate.path.unlink()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(attempt.gate.path))
        mute.listen(64)
        until((attempt.path / "_DONE").exists, "the record")
    assert attempt.output() == "done\n"
    assert attempt.outcome()["end"]["outcome"] == "completed"


def test_a_supervisor_whose_record_stands_leaves_when_told(make: Make) -> None:
    """While only the gate's answer is missing, a SIGTERM ends the wait."""
    attempt = make(argv=python(""))
    attempt.gate.replies["finished"] = (500, {})
    attempt.start()
    attempt.gate.wait_for("finished")
    until((attempt.path / "_DONE").exists, "the record")
    attempt.stop(None)
    assert attempt.end()["outcome"] == "completed"


def test_an_end_is_told_until_it_is_recorded(make: Make) -> None:
    """A gate that fails to record an end hears it again."""
    attempt = make(argv=python(""))
    attempt.gate.replies["finished"] = (500, {})
    attempt.start()
    until(lambda: len(attempt.gate.all("finished")) > 1, "a second try")
    attempt.gate.replies["finished"] = (200, {"recorded": True})
    attempt.end()


def test_a_fence_that_is_over_stops_the_tree(make: Make) -> None:
    """A beat answered by 409 ends the run, and the gate is not told of an end it refuses."""
    attempt = make(argv=["sleep", "600"])
    attempt.gate.replies["heartbeat"] = (409, to_json(Refusal("fence", "this lease is over")))
    end = attempt.start().end()
    assert (end["outcome"], end["reason"]) == ("lost", "fenced")
    assert attempt.tagged() == []
    assert not attempt.gate.all("finished")


def test_a_gate_may_say_stop_in_a_beat(make: Make) -> None:
    """The answer's reason becomes the end's."""
    attempt = make(argv=["sleep", "600"])
    attempt.gate.replies["heartbeat"] = (200, to_json(Verdict.to_stop(Stop.of(StopKind.EVICTED))))
    end = attempt.start().end()
    assert (end["outcome"], end["reason"]) == ("evicted", "evicted")


# -- what the run finds around it


@pytest.mark.behaviour(10)
def test_a_run_is_a_process_tree_of_its_own(make: Make) -> None:
    """Supervisor and worker live in sessions of their own, and what is printed is in the file."""
    tells = "import os, time; print(os.getsid(0) == os.getpid(), os.getppid()); time.sleep(600)"
    attempt = make(argv=python(tells)).start()
    until(lambda: attempt.output() == f"True {attempt.pid}\n", "the output")
    beat = attempt.gate.wait_for("heartbeat", lambda beat: len(beat["tree"]) == 2)
    assert os.getsid(attempt.pid) == attempt.pid
    assert beat["tree"][0][0] == attempt.pid
    assert beat["tree"][1][0] in attempt.tagged()
    attempt.stop("cancelled")
    attempt.end()


def test_a_program_finds_the_users_circumstances(make: Make, tmp_path: Path) -> None:
    """Command by the run's own PATH, working directory, umask, environment and tags."""
    tool = tmp_path / "bin" / "my-tool"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\numask\npwd\necho "$GREETING $GPUGATE_RUN_ID $GPUGATE_WORKER"\n')
    tool.chmod(0o700)
    attempt = make(argv=["my-tool"], umask=0o027, cwd=str(tmp_path))
    attempt.environment.update(PATH=f"{tool.parent}:{os.environ['PATH']}", GREETING="hello")
    assert attempt.start().end()["outcome"] == "completed"
    assert attempt.output() == f"0027\n{tmp_path}\nhello {attempt.run_id} 0\n"


def test_workers_are_told_apart(make: Make) -> None:
    """Each worker of a program knows its number and how many there are."""
    tells = "import os; print(os.environ['GPUGATE_WORKER'] + '/' + os.environ['GPUGATE_WORKERS'])"
    attempt = make(argv=python(tells), workers=3)
    assert attempt.start().end()["outcome"] == "completed"
    assert sorted(attempt.output().splitlines()) == ["[0] 0/3", "[1] 1/3", "[2] 2/3"]


def test_the_kernel_takes_a_run_before_its_supervisor(make: Make) -> None:
    """When memory runs out the run's processes go first: the setting is theirs alone."""
    reads = "print(open('/proc/self/oom_score_adj').read(), end='')"
    own = Path("/proc/self/oom_score_adj").read_text()
    attempt = make(argv=python(reads + "; import time; time.sleep(600)")).start()
    until(lambda: attempt.output() == "500\n", "the setting")
    assert Path(f"/proc/{attempt.pid}/oom_score_adj").read_text() == own
    attempt.stop("cancelled")
    attempt.end()


def test_a_run_does_not_inherit_what_its_supervisor_ignores(make: Make) -> None:
    """An interrupt works inside the run as in any process."""
    attempt = make(argv=python("import os, signal; os.kill(os.getpid(), signal.SIGINT)"))
    end = attempt.start().end()
    assert end["reason"] == "signal SIGINT"
    assert "KeyboardInterrupt" in attempt.output()


def test_the_records_are_the_owners_alone(make: Make) -> None:
    """Files of a run are readable by its owner only, whatever the umask was."""
    attempt = make(argv=python("print('secret')"), umask=0)
    attempt.start().end()
    for name in ("output.log", "outcome.json", "tree.json", "episodes.jsonl", "_DONE"):
        assert stat.S_IMODE((attempt.path / name).stat().st_mode) == 0o600, name


def python39() -> str | None:
    """Find the oldest interpreter that a supervisor must work on, here or in pyenv's places."""
    places = [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")]
    for path in map(str, filter(None, places)):
        done = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)
        if done.stdout.startswith("Python 3.9."):
            return path
    return None


def test_the_oldest_python_will_do(make: Make) -> None:
    """A supervisor lives, measures and stops under CPython 3.9 as under any later one."""
    found = python39()
    if found is None:
        pytest.skip("needs CPython 3.9")
    attempt = make(argv=["sleep", "600"]).start(python=found)
    attempt.gate.wait_for("heartbeat", lambda beat: beat["report"]["ram_held_bytes"])
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"


# -- output


def test_output_is_in_the_order_of_writing(make: Make) -> None:
    """Lines of stdout and stderr come out exactly as they were written, in turns."""
    writes = (
        "import sys\n"
        "for i in range(2000): print(i, file=(sys.stdout, sys.stderr)[i % 2])\n"
        "print('no end of line', end='')"
    )
    attempt = make(argv=python(writes))
    assert attempt.start().end()["outcome"] == "completed"
    assert attempt.output() == "".join(f"{i}\n" for i in range(2000)) + "no end of line"


def test_lines_of_several_workers_do_not_mix(make: Make) -> None:
    """Every line is one worker's, whole and in that worker's order."""
    writes = "import os\nfor i in range(500): print(os.environ['GPUGATE_WORKER'] * 50, i)"
    attempt = make(argv=python(writes), workers=2)
    assert attempt.start().end()["outcome"] == "completed"
    lines = attempt.output().splitlines()
    for worker in "01":
        expected = [f"[{worker}] {worker * 50} {i}" for i in range(500)]
        assert [line for line in lines if line.startswith(f"[{worker}]")] == expected
    assert len(lines) == 1000


def test_output_has_a_cap_and_keeps_its_tail(make: Make) -> None:
    """A run that prints without end fills no disk, and its last words are there."""
    attempt = make(argv=python("for i in range(100_000): print(i)"))
    attempt.change_supervisor("OUTPUT_CAP = 64 << 20", "OUTPUT_CAP = 100_000")
    assert attempt.start().end()["outcome"] == "completed"
    text = attempt.output()
    assert len(text) <= 100_000
    assert text.startswith("[gpugate: the first ")
    assert text.endswith("99998\n99999\n")


def test_a_full_disk_harms_no_run(make: Make) -> None:
    """The run goes on while nothing can be written; its end is recorded once there is room."""
    attempt = make(argv=python("print('x' * 2_000_000)"))
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(attempt.path)]
    needs(os.getuid() == 0 and subprocess.run(mounted, check=False).returncode == 0, "mount")
    try:
        ballast = attempt.path / "ballast"
        ballast.write_bytes(b"x" * (MB // 4))
        attempt.start()
        attempt.gate.wait_for("finished")
        assert not (attempt.path / "outcome.json").exists()
        ballast.unlink()
        assert attempt.end()["outcome"] == "completed"
    finally:
        attempt.clear()
        subprocess.run(["umount", "-l", str(attempt.path)], check=True)


# -- memory


@pytest.mark.parametrize("seconds", [0.3, 3.0])
def test_touched_memory_is_measured(make: Make, seconds: float) -> None:
    """The peak is what the run touched, whether it lives for 0.3 s or for 3 s."""
    attempt = make(argv=python(TOUCH % 600 + f"import time; time.sleep({seconds})"))
    peaks = attempt.start().end()["peaks"]
    assert peaks["ram_bytes"] == pytest.approx(600 * MB, rel=0.05)
    assert (peaks["ram_meter"], peaks["ram_covered"]) == ("pss", True)


def test_memory_that_is_gone_at_once_is_measured(make: Make) -> None:
    """A run that ends the moment it has touched its memory leaves its mark."""
    peaks = make(argv=python(TOUCH % 600)).start().end()["peaks"]
    assert peaks["ram_bytes"] == pytest.approx(600 * MB, rel=0.05)


def test_memory_touched_late_is_measured(make: Make) -> None:
    """A run that touches its memory in the last moment of a longer life is measured too."""
    attempt = make(argv=python("import time; time.sleep(1.5)\n" + TOUCH % 600))
    assert attempt.start().end()["peaks"]["ram_bytes"] == pytest.approx(600 * MB, rel=0.05)


def test_short_workers_add_up(make: Make, tmp_path: Path) -> None:
    """Two workers that end as soon as both hold their memory are charged for both."""
    meet = (
        "import os, pathlib, time\n"
        f"here = pathlib.Path({str(tmp_path)!r}, os.environ['GPUGATE_WORKER'])\n"
        "here.touch()\n"
        "while not all((here.parent / n).exists() for n in '01'): time.sleep(0.001)\n"
    )
    attempt = make(argv=python(TOUCH % 300 + meet), workers=2)
    peaks = attempt.start().end()["peaks"]
    assert peaks["ram_bytes"] == pytest.approx(600 * MB, rel=0.08)
    assert not peaks["ram_covered"]


def test_shared_memory_is_counted_once(make: Make) -> None:
    """Children that share their parent's pages do not multiply them."""
    forks = "import os, time\nfor _ in range(4):\n  if not os.fork(): time.sleep(600)\n"
    tells = "for i in range(6000):\n  tell('episode', index=i); time.sleep(0.1)"
    attempt = cell(make(), TOUCH % 200 + forks + tells).start()
    # Readings at the ends of so many episodes were not all too dear.
    beat = attempt.gate.wait_for("heartbeat", lambda b: b["episode"] >= 15)
    attempt.stop("cancelled")
    peaks = attempt.end()["peaks"]
    assert 200 * MB < beat["report"]["ram_held_bytes"] < 260 * MB
    assert peaks["ram_bytes"] < 260 * MB
    assert not peaks["ram_covered"]


def test_a_mark_covers_one_process_only(make: Make) -> None:
    """A second process, even one that the kernel buries by itself, leaves stretches unread."""
    forks = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "if not os.fork(): time.sleep(0.5); os._exit(0)\n"
        "time.sleep(1)"
    )
    end = make(argv=python(forks)).start().end()
    assert end["outcome"] == "completed"
    assert not end["peaks"]["ram_covered"]


def test_pages_of_a_mapped_file_are_shown_and_not_charged(make: Make, tmp_path: Path) -> None:
    """Reading a file through a mapping raises what is mapped, not what is held."""
    with (tmp_path / "data").open("wb") as data:
        data.truncate(200 * MB)
    reads = (
        f"import mmap, time\nfile = open({str(tmp_path / 'data')!r}, 'rb')\n"
        "seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "for at in range(0, len(seen), 4096): seen[at]\n"
        "print('read')\ntime.sleep(600)"
    )
    attempt = make(argv=python(reads)).start()
    beat = attempt.gate.wait_for(
        "heartbeat", lambda b: (b["report"]["mapped_bytes"] or 0) > 190 * MB
    )
    attempt.stop("cancelled")
    assert attempt.end()["peaks"]["ram_bytes"] < 60 * MB
    assert beat["report"]["ram_held_bytes"] < 60 * MB


def test_memory_is_read_at_the_end_of_an_episode(make: Make, tmp_path: Path) -> None:
    """The end of an episode calls for a reading of its own, beside the regular ones."""
    ends = (
        "import time\nwhile not open('go').read(): time.sleep(0.01)\n"
        "del held\ntell('episode', index=0)\ntime.sleep(600)"
    )
    go = tmp_path / "go"
    go.write_text("")
    attempt = cell(make(cwd=str(tmp_path)), TOUCH % 100 + ends)
    attempt.change_supervisor("READING_S = 5.0", "READING_S = 10_000.0")
    attempt.start()
    attempt.gate.wait_for("heartbeat", lambda b: (b["report"]["ram_held_bytes"] or 0) > 100 * MB)
    go.write_text("go")
    attempt.gate.wait_for(
        "heartbeat", lambda b: b["episode"] == 1 and b["report"]["ram_held_bytes"] < 60 * MB
    )
    attempt.stop("cancelled")
    attempt.end()


def test_a_frameworks_own_figures_add_up_over_workers(make: Make) -> None:
    """Peaks, held bytes and overheads of the workers are summed by device; all must have told."""
    body = (
        "import os, time\n"
        "uuid = os.environ['CUDA_VISIBLE_DEVICES']\n"
        "tell('torch', vram_peak={uuid: 300 + worker}, vram_held={uuid: 200}, overhead={uuid: 7})\n"
        "time.sleep(1)"
    )
    attempt = cell(make(workers=2, devices=["GPU-1"]), body).start()
    beat = attempt.gate.wait_for("heartbeat", lambda b: b["peaks"]["vram_covered"])
    assert beat["report"]["vram_held_bytes"] == {"GPU-1": 400}
    assert beat["report"]["device_overhead_bytes"] == {"GPU-1": 14}
    peaks = attempt.end()["peaks"]
    assert (peaks["vram_bytes"], peaks["vram_covered"]) == ({"GPU-1": 601}, True)


# -- out of memory, by evidence


@pytest.mark.behaviour(154)
def test_a_workers_own_evidence_makes_it_oom(make: Make) -> None:
    """What the worker found out about its failure stands in the end; a survived one does not."""
    found = "tell('oom', resource='vram', evidence='own_cap')\n"
    end = cell(make(), found + "raise SystemExit(1)").start().end()
    assert (end["outcome"], end["oom_resource"]) == ("oom", "vram")
    assert end["oom_evidence"] == "own_cap"
    assert cell(make(), found).start().end()["outcome"] == "completed"


@pytest.mark.behaviour(154)
def test_a_kill_by_the_kernel_is_told_from_any_other(make: Make) -> None:
    """The same SIGKILL is an OOM when the kernel counted it in the run's cgroup."""
    limits = {"memory.limit_in_bytes": 100 * MB, "memory.memsw.limit_in_bytes": 100 * MB}
    with limited_cgroup("memory", limits, {"memory.max": 100 * MB, "memory.swap.max": 0}) as into:
        end = make(argv=python(TOUCH % 300)).start(before=into).end()
        killed = make(argv=python("import os; os.kill(os.getpid(), 9)")).start(before=into).end()
    assert (end["outcome"], end["oom_resource"]) == ("oom", "ram")
    assert (end["reason"], end["oom_evidence"]) == ("signal SIGKILL", "host_oom_killer")
    assert (killed["outcome"], killed["oom_evidence"]) == ("failed", "")


@pytest.mark.parametrize("controller", ["memory", ""])
def test_a_run_lives_in_the_cgroup_of_its_notebook(make: Make, controller: str) -> None:
    """The supervisor joins it with all of the run, in the tree of version 2 and in those of 1."""
    cgroup = f"/gpugate-joined-{os.getpid()}"
    names = [n for n in memberships("self") if controller in n.split(",")]
    folder = cgroup_directory(controller, cgroup)
    needs(bool(names and folder), "such a hierarchy")
    try:
        Path(str(folder)).mkdir()
    except OSError as error:
        pytest.skip(f"needs a cgroup that can be made: {error}")
    try:
        attempt = make(argv=["cat", "/proc/self/cgroup"], cgroups={names[0]: cgroup}).start()
        assert attempt.end()["outcome"] == "completed"
        assert cgroup in attempt.output()
    finally:
        until(lambda: removed(Path(str(folder))), "the cgroup is empty")


def removed(cgroup: Path) -> bool:
    """Remove a cgroup, which is possible once its last process has ended."""
    try:
        cgroup.rmdir()
    except OSError:
        return False
    return True


def test_a_run_that_cannot_join_a_cgroup_runs_and_says_so(make: Make) -> None:
    """One that was removed since the submit is no reason to fail."""
    gone = {"": "/gone", "memory": "/gone-too"}
    attempt = make(argv=["true"], cgroups=gone).start()
    assert attempt.end()["outcome"] == "completed"
    (warning,) = attempt.lines("messages.jsonl")
    assert warning["event"] == "warning"
    assert "could not join cgroup /gone: its limits do not bind" in warning["text"]


@pytest.mark.behaviour(154)
def test_a_bus_error_at_a_full_shared_memory_is_oom(make: Make) -> None:
    """SIGBUS while /dev/shm is full names that resource; SIGBUS alone is a failure."""
    hidden = ("unshare", "--mount", "sh", "-c")
    small = (*hidden, 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "-")
    possible = subprocess.run([*small, "true"], check=False, capture_output=True).returncode == 0
    needs(possible, "a mount namespace")
    fills = (
        "import mmap\nfile = open('/dev/shm/full', 'w+b'); file.truncate(8 << 20)\n"
        "seen = mmap.mmap(file.fileno(), 0)\n"
        "for at in range(0, len(seen), 4096): seen[at] = 1\n"
    )
    end = make(argv=python(fills)).start(before=small).end()
    assert (end["outcome"], end["oom_resource"]) == ("oom", "shm")
    assert (end["reason"], end["oom_evidence"]) == ("signal SIGBUS", "shm_full")
    raises = "import os, signal; os.kill(os.getpid(), signal.SIGBUS)"
    end = make(argv=python(raises)).start(before=small).end()
    assert (end["outcome"], end["reason"]) == ("failed", "signal SIGBUS")
