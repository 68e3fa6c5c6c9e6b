"""Damaged journals, killed supervisors and dying gates: nothing is lost or started twice."""

from __future__ import annotations

import http.client
import json
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.places import API_PATH
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
from tests.kit.external_processes import external_process, running
from tests.kit.real_server import PATIENCE_S, Answer, Places, Served, until

GB = 1 << 30


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Where the cells of this test write."""
    return Notes(tmp_path)


@pytest.mark.behaviour(19, 56)
def test_a_damaged_journal_costs_no_run(
    places: Places, notes: Notes, start: Callable[..., Served]
) -> None:
    """A journal that is no database any more is moved aside: history stays, a live run goes on to
    its end, and what waited waits again in its order and runs once.
    """
    first = start()
    past = first.completed("past", "pass")
    live = first.submit("live", notes.cell("live"))
    tree = tree_of(first, live)
    first.ask("POST", "/drain", {})
    queued = [first.submit(f"waits-{n}", notes.cell("live")) for n in range(3)]
    first.kill()
    journal = places.root / "state" / "gpugate" / "gate.sqlite"
    for path in journal.parent.glob("gate.sqlite*"):
        path.write_bytes(b"no database" * 1000)

    second = start()
    assert list(journal.parent.glob("gate.sqlite.corrupt-*"))
    assert second.run(past["run_id"])["end"] == "completed"
    until(lambda: set(notes.ran()) == {live, *queued}, "what waited is started")
    fences = [first_fence(second, run) for run in queued]
    assert fences == sorted(fences)
    assert all(is_alive(process) for process in tree)
    notes.end("live")
    assert [second.ended(run)["end"] for run in (live, *queued)] == ["completed"] * 4
    assert sorted(notes.ran()) == sorted([live, *queued])


# -- a supervisor is killed -----------------------------------------------------------------------

STRAYS = """
import signal, subprocess, sys
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(10000)"
subprocess.Popen([sys.executable, "-c", deaf], env={}, start_new_session=True)
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
"""


PATRICIDE = """
import os, pathlib, subprocess
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
ticks = pathlib.Path(f"/proc/{{child.pid}}/stat").read_text().rpartition(")")[2].split()[19]
pathlib.Path("{born}").write_text(f"{{child.pid}} {{ticks}}")
os.kill(os.getppid(), 9)
child.wait()
"""


@pytest.mark.behaviour(8, 15, 124)
def test_what_a_killed_supervisor_leaves_is_found_and_stopped(
    shared_server: Served, notes: Notes
) -> None:
    """A supervisor killed with -9: the rest of its tree is stopped, wherever it went, the run is
    lost and not run again, and all that was charged is given back.
    """
    server = shared_server
    run_id = server.submit("stray", notes.cell("never", STRAYS))
    tree = tree_of(server, run_id, least=4)
    os.kill(tree[0].pid, signal.SIGKILL)
    row = server.ended(run_id)
    assert (row["end"], row["exit_reason"]) == ("lost", "its supervisor was killed")
    assert all(gone(process) for process in tree)
    assert notes.ran() == [run_id]
    assert times_told(server, run_id, "started") == 1

    born = notes.path("born")  # too late for anybody to have seen it
    row = server.ended(server.submit("patricide", PATRICIDE.format(born=born)))
    assert row["end"] == "lost"
    assert gone(ProcessKey(*map(int, born.read_text().split())))
    until(lambda: server.queue()["reservations"]["ram"] == 0, "all charges are given back")


@pytest.mark.behaviour(133)
def test_a_run_whose_notebook_is_gone_does_not_wait_for_it(
    shared_server: Served, notes: Notes
) -> None:
    """When the kernel of a waiting cell ends, its run is withdrawn, unless it was detached."""
    server = shared_server
    with external_process() as pid:
        kernel = _as_kernel(pid)
        live = server.submit("live", notes.cell("live"), kernel=kernel)
        server.active(live)
        server.ask("POST", "/drain", {})
        waits = server.submit("waits", "pass", kernel=kernel)
        detached = server.submit("detached", "pass", kernel=kernel, detach=True)
        assert waiting_ids(server) == [waits, detached]
    row = server.ended(waits)
    assert (row["end"], row["exit_reason"]) == ("cancelled", "the notebook's kernel is gone")
    assert waiting_ids(server) == [detached]
    assert server.run(live)["phase"] == "running"
    late = server.submit("late", "pass", kernel=kernel)  # sent by a kernel that died meanwhile
    assert server.ended(late)["end"] == "cancelled"
    server.ask("DELETE", "/drain")
    notes.end("live")
    assert [server.ended(run)["end"] for run in (live, detached)] == ["completed"] * 2


# -- the gate is killed between two steps ---------------------------------------------------------


class Breakable:
    """Servers of one user that can be told at which step to die, and are then replaced."""

    def __init__(self, places: Places, start: Callable[..., Served]) -> None:
        self._order = places.root / "failpoint"
        config = places.root / "config" / "jupyter_server_config.py"
        config.parent.mkdir()
        config.write_text(
            "import pathlib, signal\n"
            "from jupyter_gpugate.gate import failpoints\n"
            f"order = pathlib.Path({str(self._order)!r})\n"
            "def arm(*_):\n"
            "    failpoints.arm(order.read_text())\n"
            "    order.unlink()\n"
            "signal.signal(signal.SIGUSR2, arm)\n"
        )
        self._start = start
        self.server = start()

    def dies_at(self, failpoint: str, method: str, path: str, body: Any = None) -> None:
        """Have this question kill the server at a step of it; start the next one."""
        self._order.write_text(f"{failpoint}:kill9")
        self.server.process.send_signal(signal.SIGUSR2)
        until(lambda: not self._order.exists(), "the failpoint is armed")
        with suppress(OSError):
            answer = self.server.ask(method, path, body)
            raise AssertionError(f"answered all the same: {answer.body!r}")
        self.server.process.wait(PATIENCE_S)
        self.server = self._start()


@pytest.mark.behaviour(6, 19, 123)
def test_a_gate_that_dies_between_two_steps_starts_nothing_twice(
    places: Places, notes: Notes, start: Callable[..., Served]
) -> None:
    """Killed right before or after a submit or grants are written down: a repeated submit is one
    run, what was granted is started by the next gate, and every run is started exactly once.
    """
    breakable = Breakable(places, start)
    notes.end("at once")
    runs = []
    for failpoint in ("store.commit.before", "store.commit.after"):
        key = secrets.token_hex(8)
        body = {"name": "keyed", "source": notes.cell("at once"), "idempotency_key": key}
        breakable.dies_at(failpoint, "POST", "/runs", body)
        answer = breakable.server.ask("POST", "/runs", body)
        assert answer.status in (200, 202)
        runs.append(answer.json["run_id"])
        assert breakable.server.ended(runs[-1])["end"] == "completed"
    assert notes.ran() == runs

    breakable.server.ask("POST", "/drain", {})
    queued = [breakable.server.submit(f"r{n}", notes.cell("at once")) for n in range(3)]
    breakable.dies_at("store.commit.before", "DELETE", "/drain")
    assert waiting_ids(breakable.server) == queued
    assert notes.ran() == runs
    breakable.dies_at("store.commit.after", "DELETE", "/drain")
    assert [breakable.server.ended(run)["end"] for run in queued] == ["completed"] * 3

    everything = [*runs, *queued]
    listed = breakable.server.ask("GET", "/runs?sort=oldest").json["runs"]
    assert [row["run_id"] for row in listed] == everything
    assert sorted(notes.ran()) == sorted(everything)
    for run in queued:
        assert times_told(breakable.server, run, "granted") == 1
        assert times_told(breakable.server, run, "started") == 1


# -- at any moment --------------------------------------------------------------------------------


class SocketConnection(http.client.HTTPConnection):
    """HTTP over the user's own socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask_host(places: Places, method: str, path: str, body: Any = None) -> Answer | None:
    """Ask whoever hosts the gate now; None while nobody answers."""
    connection = SocketConnection(places.socket)
    try:
        connection.request(method, API_PATH + path, json.dumps(body) if body else None)
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Submitter:
    """Submits runs one after the other, each again and again until it is acknowledged."""

    def __init__(self, places: Places, notes: Notes, count: int, rng: random.Random) -> None:
        self.acknowledged: list[str] = []
        self._places, self._notes, self._count, self._rng = places, notes, count, rng
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._submit_all, daemon=True)
        self._thread.start()

    @property
    def is_through(self) -> bool:
        return len(self.acknowledged) == self._count

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _submit_all(self) -> None:
        for number in range(self._count):
            body = {
                "name": f"run-{number}",  # a name of its own: what was measured counts for none
                "source": self._notes.cell("at once", f"time.sleep({self._rng.uniform(0, 0.5)})"),
                "hints": {"ram_bytes": 6 * GB},  # so that some have to wait
                "idempotency_key": secrets.token_hex(8),
            }
            while not self._closed.is_set():
                answer = ask_host(self._places, "POST", "/runs", body)
                if answer is not None and answer.status in (200, 202):
                    self.acknowledged.append(answer.json["run_id"])
                    break
                assert answer is None or answer.status == 503, answer.body
                self._closed.wait(0.05)


@pytest.mark.soak
@pytest.mark.behaviour(6, 15, 19, 123)
def test_kills_at_any_moment_lose_and_repeat_nothing(
    places: Places, notes: Notes, start: Callable[..., Served], soaking: bool
) -> None:
    """The host of the gate is killed again and again while runs are submitted: each acknowledged
    run exists once, runs once, completes, and was granted in its order.
    """
    seed = int(os.environ.get("SEED") or secrets.randbelow(1 << 32))
    print(f"SEED={seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    kills, runs = (200, 250) if soaking else (20, 25)
    notes.end("at once")
    command = [sys.executable, "-m", "jupyter_gpugate", "serve", "--user"]
    submitter = Submitter(places, notes, runs, random.Random(seed))
    log = (places.root / "host.log").open("wb")
    for _ in range(kills):
        with running(command, env=places.environ(), stderr=log):
            if rng.random() < 0.7:  # the rest die while they take up what is on the disk
                until(lambda: ask_host(places, "GET", "/queue"), "the host answers")
            time.sleep(rng.uniform(0, 0.4))
    log.close()

    server = start()
    until(lambda: submitter.is_through, "all are acknowledged")
    submitter.close()
    ends = [server.ended(run_id)["end"] for run_id in submitter.acknowledged]
    assert Counter(ends) == {"completed": runs}
    assert Counter(notes.ran()) == dict.fromkeys(submitter.acknowledged, 1)
    listed = server.ask("GET", "/runs?sort=oldest&limit=1000").json["runs"]
    assert [row["run_id"] for row in listed] == submitter.acknowledged
    fences = [first_fence(server, run_id) for run_id in submitter.acknowledged]
    assert fences == sorted(fences)
