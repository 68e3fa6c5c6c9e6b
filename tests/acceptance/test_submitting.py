"""Submitting runs to a real Jupyter server over HTTP, and what becomes of them."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.real_server import Places, Served, until

WAITS = "import time\nwhile True:\n    time.sleep(0.1)\n"


@pytest.mark.behaviour(1, 2, 3, 5)
def test_a_name_and_a_source_are_enough(server: Served) -> None:
    """A name and a source queue a run at once; it goes queued, active, ended, and stays so."""
    answer = server.ask("POST", "/runs", {"name": "hello", "source": "print(6 * 7)"})
    assert answer.status == 202
    assert answer.json["status"] == "queued"
    run_id = answer.json["run_id"]
    assert re.fullmatch(r"\d{8}-\d{6}-[a-z]{5}", run_id)
    row = server.ended(run_id)
    assert (row["end"], row["attempt"]) == ("completed", 1)
    assert server.output(run_id).strip() == "42"
    story = [entry["event"] for entry in server.ask("GET", f"/runs/{run_id}/story").json["story"]]
    order = ["requested", "granted", "started", "finished"]
    assert [kind for kind in story if kind in order] == order
    assert server.ask("POST", f"/runs/{run_id}/cancel").status == 409
    assert server.run(run_id)["end"] == "completed"


def test_a_hint_in_vain_is_said_on_the_card(server: Served) -> None:
    """A run without a GPU is warned that its hint of GPU memory does nothing, from the start."""
    run_id = server.submit("hinted", "pass", gpus=0, hints={"vram_bytes": 2 << 30})
    warning = "the hint of GPU memory has no effect: the run has no GPU"
    assert server.run(run_id)["warnings"] == [warning]
    assert server.ended(run_id)["warnings"] == [warning]
    card = server.ask("GET", f"/runs/{run_id}/card").json
    assert warning in card["html"]
    plain = server.submit("plain", "pass", gpus=0, hints={"ram_bytes": 1 << 30})
    assert server.ended(plain)["warnings"] == []


@pytest.mark.behaviour(3)
def test_ids_differ_within_one_second(server: Served) -> None:
    """Runs submitted within one second have different ids."""
    ids = [server.submit("same", "pass") for _ in range(10)]
    assert len(set(ids)) == 10


@pytest.mark.behaviour(2)
def test_nothing_is_executed_by_a_submit(server: Served, places: Places) -> None:
    """While the gate takes no new runs, a submit is answered and no code has run."""
    server.ask("POST", "/drain", {"reason": "a test"})
    mark = places.root / "ran"
    run_id = server.submit("touch", f"open({str(mark)!r}, 'w').close()")
    assert server.waiting(run_id, "drain")["status"] == "queued"
    assert not mark.exists()
    assert server.ask("DELETE", "/drain").status == 200
    server.ended(run_id)
    assert mark.exists()


@pytest.mark.behaviour(7, 8)
def test_the_directory_of_a_run_holds_all_of_it(server: Served, places: Places) -> None:
    """Spec, summary, and per attempt source, output, episodes, outcome and _DONE; 0700."""
    source = "for e in episodes:\n    e.keep(e.index)\nprint('done')\n"
    row = server.completed("keeps", source, episodes=3)
    path = Path(row["directory"])
    assert path.parent == places.runs
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    attempt = path / "attempts" / "1"
    assert json.loads((path / "spec.json").read_text())["name"] == "keeps"
    assert json.loads((path / "summary.json").read_text())["end"] == "completed"
    assert "for e in episodes" in (attempt / "cell.py").read_text()
    assert (attempt / "output.log").read_text().strip() == "done"
    assert len((attempt / "episodes.jsonl").read_text().splitlines()) == 3
    outcome = json.loads((attempt / "outcome.json").read_text())
    assert outcome["end"]["outcome"] == "completed"
    assert (attempt / "_DONE").exists()
    assert not (path / "env.json").exists()


@pytest.mark.behaviour(8, 11)
def test_a_run_that_crashes_is_failed_and_harms_nobody(server: Served) -> None:
    """Any way for a run to die leaves the server and the other runs alone."""
    other = server.submit("other", WAITS)
    server.active(other)
    crash = server.ended(server.submit("crash", "import os\nos.kill(os.getpid(), 11)"))
    assert (crash["end"], crash["exit_reason"]) == ("failed", "signal SIGSEGV")
    error = server.ended(server.submit("error", "x = 1\nx / 0\n"))
    assert error["end"] == "failed"
    assert error["error"]["ename"] == "ZeroDivisionError"
    assert "cell.py:2" in re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error["error"]["traceback"]))
    assert server.run(other)["phase"] == "running"
    assert server.ask("POST", f"/runs/{other}/cancel").json["cancelled"]


@pytest.mark.behaviour(10)
def test_a_run_is_a_process_of_its_own_session(server: Served) -> None:
    """The run is no child of the server's session or group, and its output is in its directory."""
    run_id = server.submit("session", f"import os\nprint(os.getsid(0), os.getpgid(0))\n{WAITS}")
    row = server.active(run_id)
    text = until(lambda: server.output(run_id), "the run prints")
    session, group = map(int, text.split())
    assert session != os.getsid(server.process.pid)
    assert group != os.getpgid(server.process.pid)
    assert os.getsid(row["pid"]) not in (0, os.getsid(server.process.pid))
    server.ask("POST", f"/runs/{run_id}/cancel")


@pytest.mark.behaviour(12)
def test_cancelling_takes_queued_and_live_runs(server: Served) -> None:
    """A queued run is taken back at once, a live one is stopped; an unknown one is a 404, which
    tells the ids where a name was given.
    """
    live = server.submit("live", WAITS)
    server.active(live)
    server.ask("POST", "/drain", {})
    queued = server.submit("queued", WAITS)
    by_name = server.ask("POST", "/runs/live/cancel").json
    assert by_name["message"] == f"there is no run live; it is the name of {live}"
    answer = server.ask("POST", f"/runs/{queued}/cancel").json
    assert (answer["end"], answer["means"]) == ("cancelled", "withdrawn")
    assert server.run(queued)["end"] == "cancelled"
    answer = server.ask("POST", f"/runs/{live}/cancel").json
    assert answer["cancelled"]
    assert answer["survivors"] == []
    assert server.run(live)["end"] == "cancelled"
    missing = server.ask("POST", "/runs/20200101-000000-abcde/cancel")
    assert (missing.status, missing.json["error"]) == (404, "not_found")


@pytest.mark.behaviour(13)
def test_a_run_that_ignores_the_first_signal_is_killed(start: Callable[..., Served]) -> None:
    """TERM, the grace period, then KILL; the answer names the means and the milliseconds."""
    server = start("--GpuGate.grace_s=0.5")
    source = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\n{WAITS}"
    run_id = server.submit("deaf", source)
    until(lambda: "deaf" in server.output(run_id))
    assert "deaf" in server.run(run_id)["output_tail"]
    answer = server.ask("POST", f"/runs/{run_id}/cancel").json
    assert answer["cancelled"]
    assert "kill" in answer["means"].lower()
    assert answer["ms"] >= 500


ESCAPES = f"""
import os, signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(10000)"
argv = [sys.executable, "-c", code]
subprocess.Popen(argv)
subprocess.Popen(argv, start_new_session=True)
subprocess.Popen(argv, process_group=0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, argv)
    os._exit(0)
os.wait()
print("escaped")
{WAITS}
"""


@pytest.mark.behaviour(12, 13, 44)
def test_nothing_survives_a_cancel(start: Callable[..., Served]) -> None:
    """Children that left the group, the session or the tree and ignore TERM are gone as well."""
    server = start("--GpuGate.grace_s=0.5")
    run_id = server.submit("escapes", ESCAPES)
    until(lambda: "escaped" in server.output(run_id))
    row = until(lambda: _tree_of(server, run_id, 6), "the gate knows the whole tree")
    answer = server.ask("POST", f"/runs/{run_id}/cancel").json
    assert (answer["cancelled"], answer["survivors"]) == (True, [])
    assert [pid for pid, ticks in row if _lives(pid, ticks)] == []


def _tree_of(server: Served, run_id: str, least: int) -> list[tuple[int, int]] | None:
    for row in server.queue()["running"]:
        if row["run_id"] == run_id and len(row["tree"]) >= least:
            return [(pid, ticks) for pid, ticks in row["tree"]]
    return None


def _lives(pid: int, ticks: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return int(fields[19]) == ticks


@pytest.mark.behaviour(14)
def test_a_run_that_cannot_be_started_ends_with_the_reason(server: Served) -> None:
    """A program that does not exist fails, names itself, and leaves queue and charges clean."""
    answer = server.ask("POST", "/runs", {"name": "ghost", "argv": ["/nonexistent/program"]})
    if answer.status == 202:
        row = server.ended(answer.json["run_id"])
        assert row["end"] == "failed"
        assert "/nonexistent/program" in row["exit_reason"]
    else:
        assert answer.status == 400
        assert "/nonexistent/program" in answer.json["message"]
    snapshot = server.queue()
    assert (snapshot["queued"], snapshot["running"]) == ([], [])
    until(lambda: server.queue()["reservations"]["ram"] == 0, "nothing is reserved any more")


@pytest.mark.behaviour(18)
def test_every_question_about_a_run_has_an_answer(server: Served) -> None:
    """Status, episodes, history by page, one run, export, story, deletion."""
    ids = [
        server.completed("asked", "for e in episodes:\n    e.keep(1)", episodes=2)["run_id"]
        for _ in range(3)
    ]
    first = server.ask("GET", "/runs?limit=2").json
    assert [row["run_id"] for row in first["runs"]] == ids[:0:-1]
    second = server.ask("GET", f"/runs?limit=2&cursor={first['next_cursor']}").json
    assert [row["run_id"] for row in second["runs"]] == ids[:1]
    assert second["next_cursor"] is None
    assert server.ask("GET", "/runs?status=queued").json["runs"] == []
    episodes = server.ask("GET", f"/runs/{ids[0]}/episodes").json["episodes"]
    assert [episode["index"] for episode in episodes] == [0, 1]
    export = server.ask("GET", f"/runs/{ids[0]}/export").json
    assert export["spec"]["name"] == "asked"
    assert export["summary"]["end"] == "completed"
    assert export["story"]
    assert "environment" not in json.dumps(export["spec"])
    assert server.ask("DELETE", f"/runs/{ids[0]}").status == 200
    assert server.ask("GET", f"/runs/{ids[0]}").status == 404
    assert server.ask("GET", "/machine").json["tick"] > 0


@pytest.mark.behaviour(17, 51, 58, 59)
def test_what_was_measured_answers_the_next_estimate(server: Served) -> None:
    """An ended run teaches its peak; an estimate shows it with origin, and reserves nothing."""
    before = server.ask("GET", "/estimate?name=learns")
    assert before.status == 404
    server.completed("learns", "x = bytearray(200 << 20)")
    answer = server.ask("GET", "/estimate?name=learns").json
    (ram,) = [term for term in answer["terms"] if term["resource"] == "ram"]
    assert ram["origin"] == "measured"
    assert ram["n"] == 1
    assert ram["need_bytes"] == ram["peak_bytes"] + ram["margin_bytes"]
    assert ram["peak_bytes"] > 200 << 20
    assert answer["would_start"] is True
    assert 1 <= answer["max_workers"] <= 64
    scaled = server.ask("GET", "/estimate?name=learns&workers=2").json
    (ram2,) = [term for term in scaled["terms"] if term["resource"] == "ram"]
    assert ram2["origin"] == "scaled"
    assert ram2["need_bytes"] > ram["need_bytes"]
    until(lambda: server.queue()["reservations"]["ram"] == 0, "nothing is reserved")
