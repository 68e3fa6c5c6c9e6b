"""Servers, gates and supervisors that are killed in the middle: runs go on, nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.runs.processes import is_alive
from tests.acceptance.restarts import (
    Notes,
    _as_kernel,
    first_fence,
    gone,
    times_told,
    tree_of,
    waiting_ids,
)
from tests.kit.external_processes import external_process
from tests.kit.real_server import Places, Served, until


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Where the cells of this test write."""
    return Notes(tmp_path)


def user_hosts(places: Places) -> list[int]:
    """The processes that host a gate of this user without a Jupyter server."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            told = (entry / "environ").read_bytes()
            if b"serve" in words and b"--user" in words and os.fsencode(places.runtime) in told:
                found.append(int(entry.name))
    return found


def hosts_gate(server: Served) -> bool:
    """Whether it is this server that listens on the user's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(str(server.places.socket))
        found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", found)
    return bool(pid == server.process.pid)


def reaches(server: Served, run_id: str) -> dict[str, Any]:
    """A run as this server tells it, once a gate answers behind it."""
    found: dict[str, Any] = until(
        lambda: (a := server.ask("GET", f"/runs/{run_id}")).status == 200 and a.json,
        "a gate answers",
    )
    return found


def assert_adopted(server: Served, run_id: str, tree: list[ProcessKey]) -> None:
    """A run goes on under this server as it was: its attempt, its processes, its output."""
    assert server.active(run_id)["attempt"] == 1
    assert set(tree) <= set(tree_of(server, run_id))
    assert times_told(server, run_id, "started") == 1
    printed = len(server.output(run_id))
    until(lambda: len(server.output(run_id)) > printed, "its output goes on")


# -- a server is killed ---------------------------------------------------------------------------


@pytest.mark.behaviour(6, 15, 19, 133)
def test_a_killed_server_takes_nothing_with_it(
    places: Places, notes: Notes, start: Callable[..., Served]
) -> None:
    """Killed with -9: a run ends by itself, another is adopted as it is, what waited waits again in
    order with ids and environment, and history and peaks are those of before.
    """
    first = start(MARK="of the first server")
    past = first.completed("past", "x = bytearray(64 << 20)")
    live = {name: first.submit(name, notes.cell(name)) for name in ("alone", "adopted", "orphan")}
    trees = {name: tree_of(first, run_id) for name, run_id in live.items()}
    until(lambda: "." in first.output(live["adopted"]), "it prints")
    first.ask("POST", "/drain", {"reason": "to keep some waiting"})
    queued = [first.submit(f"waits-{n}", notes.cell("queue")) for n in range(2)]
    environment = {"PATH": os.environ["PATH"], "MARK": "of its own"}
    queued.append(first.submit("waits-2", notes.cell("queue"), environment=environment))
    with external_process() as kernel:
        forsaken = first.submit("forsaken", notes.cell("queue"), kernel=_as_kernel(kernel))
        assert waiting_ids(first) == [*queued, forsaken]
        first.kill()

    assert all(is_alive(process) for tree in trees.values() for process in tree)
    os.kill(trees["orphan"][0].pid, signal.SIGKILL)
    notes.end("alone")
    attempt = places.runs / live["alone"] / "attempts" / "1"
    until((attempt / "_DONE").exists, "it ends without any server")

    second = start()
    assert second.run(past["run_id"]) == past
    alone = second.ended(live["alone"])
    assert (alone["end"], alone["peaks"]["ram"] > 0) == ("completed", True)
    assert_adopted(second, live["adopted"], trees["adopted"])
    orphan = second.ended(live["orphan"])
    assert (orphan["end"], orphan["exit_reason"]) == ("lost", "its supervisor was killed")
    assert all(gone(process) for process in trees["orphan"])
    row = second.ended(forsaken)
    assert (row["end"], row["exit_reason"]) == ("cancelled", "the notebook's kernel is gone")
    assert waiting_ids(second) == queued
    second.ask("DELETE", "/drain")
    notes.end("adopted", "queue")
    assert [second.ended(run)["end"] for run in (live["adopted"], *queued)] == ["completed"] * 4
    marks = [second.output(run).split("\n")[0] for run in queued]
    assert marks == ["of the first server"] * 2 + ["of its own"]
    fences = [first_fence(second, run) for run in queued]
    assert fences == sorted(fences)
    assert sorted(notes.ran()) == sorted([*live.values(), *queued])  # each once


@pytest.mark.behaviour(15, 19)
def test_a_server_that_stops_leaves_its_runs_to_a_small_process(
    places: Places, notes: Notes, start: Callable[..., Served]
) -> None:
    """An orderly stop with unfinished runs starts the user's own process, which goes on with the
    server's settings; a later server forwards to it, and takes over when it ends. That process ends
    for good when it is told to, and still stops no run.
    """
    elsewhere = places.root / "elsewhere"
    options = f"--GpuGate.runs_directory={elsewhere}"
    first = start(options, "--GpuGate.max_running_per_user=1")
    live = first.submit("live", notes.cell("live"))
    tree = tree_of(first, live)
    waits = first.submit("waits", notes.cell("waits"))
    first.waiting(waits, "limits")
    first.stop()

    assert all(is_alive(process) for process in tree)
    notes.end("live")
    until(lambda: notes.ran() == [live, waits], "what waited starts without a Jupyter server")
    (host,) = user_hosts(places)

    second = start(options)
    assert reaches(second, live)["end"] == "completed"
    row = second.active(waits)
    assert second.queue()["traits"]["max_running_per_user"] == 1
    assert user_hosts(places) == [host]

    os.kill(host, signal.SIGTERM)
    until(lambda: not user_hosts(places), "the small process ends")
    reaches(second, waits)
    until(lambda: second.queue()["traits"]["max_running_per_user"] is None, "the server leads")
    assert second.active(waits)["pid"] == row["pid"]
    assert times_told(second, waits, "started") == 1

    second.stop()
    (host,) = user_hosts(places)
    os.kill(host, signal.SIGTERM)
    until(lambda: not user_hosts(places), "whoever ends the small process means it")
    notes.end("waits")
    attempt = elsewhere / waits / "attempts" / "1"
    until((attempt / "_DONE").exists, "the run ends by itself")
    assert json.loads((attempt / "outcome.json").read_text())["end"]["outcome"] == "completed"
    assert notes.ran() == [live, waits]


@pytest.mark.behaviour(15)
def test_a_server_may_be_told_to_stop_its_runs(
    places: Places, notes: Notes, start: Callable[..., Served]
) -> None:
    """With stop_runs_on_exit nothing of a run is left after its server, and nobody goes on."""
    server = start("--GpuGate.stop_runs_on_exit=True")
    live = server.submit("live", notes.cell("live"))
    tree = tree_of(server, live)
    server.ask("POST", "/drain", {})
    waits = server.submit("waits", notes.cell("waits"))
    server.stop()
    assert all(gone(process) for process in tree)
    summaries = [json.loads((places.runs / r / "summary.json").read_text()) for r in (live, waits)]
    assert [summary["end"] for summary in summaries] == ["cancelled", "cancelled"]
    assert user_hosts(places) == []


@pytest.mark.behaviour(15)
def test_a_second_server_forwards_and_takes_over(
    notes: Notes, start: Callable[..., Served]
) -> None:
    """Two servers of one user show one queue; when the one with the gate is killed, the other
    adopts its runs, keeps its queue and has its history.
    """
    with ThreadPoolExecutor() as pool:  # both at once: only one of them gets the gate
        one, other = pool.map(lambda _: start(), range(2))
    first, second = (one, other) if hosts_gate(one) else (other, one)
    assert not hosts_gate(second)
    past = second.completed("past", "pass")["run_id"]
    live = second.submit("live", notes.cell("live"))
    tree = tree_of(first, live)
    first.ask("POST", "/drain", {})
    waits = [server.submit("waits", notes.cell("waits")) for server in (first, second)]
    assert waiting_ids(first) == waiting_ids(second) == waits
    assert first.run(past) == second.run(past)

    first.kill()
    assert reaches(second, past)["end"] == "completed"
    assert second.active(live)["pid"] == tree[0].pid
    assert set(tree) <= set(tree_of(second, live))
    assert times_told(second, live, "started") == 1
    assert waiting_ids(second) == waits
    second.ask("DELETE", "/drain")
    notes.end("live", "waits")
    assert [second.ended(run)["end"] for run in (live, *waits)] == ["completed"] * 3
    assert sorted(notes.ran()) == sorted([live, *waits])
