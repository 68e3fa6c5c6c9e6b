"""What a server tells of its runs without being asked: events, a hook, figures, activity."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.kit.controlled_runs import waits_for
from tests.kit.real_server import Places, Served, until

TRANSITION = "urn:jupyter-gpugate:run-transition:v1"


FIELDS = {"run_id", "name", "status", "phase", "attempt", "end", "reason", "at"}


OF_THE_BUS = {
    "schema_id",
    "__timestamp__",
    "__schema__",
    "__schema_version__",
    "__metadata_version__",
}


class Listener:
    """A subscriber to a server's event bus, on a real websocket."""

    def __init__(self, server: Served) -> None:
        self.heard: list[dict[str, Any]] = []
        self._url = f"ws://127.0.0.1:{server.port}/api/events/subscribe"
        self._token = server.token
        self._listening = threading.Event()
        self._closing: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self._thread.start()
        assert self._listening.wait(60)

    async def _listen(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        headers = {"Authorization": f"token {self._token}"}
        socket = await websocket_connect(HTTPRequest(self._url, headers=headers))
        self._listening.set()
        closing = asyncio.ensure_future(self._closing.wait())
        while not closing.done():
            read = asyncio.ensure_future(socket.read_message())
            await asyncio.wait({read, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not read.done() or read.result() is None:
                break
            message = json.loads(read.result() or "")
            if message["schema_id"] == TRANSITION:
                self.heard.append(message)
        socket.close()
        await asyncio.wait({read}, timeout=60)  # until the other side has closed as well

    def of(self, run_id: str) -> list[str]:
        """How a run went: its phases, or its status where it has none."""
        return [e["phase"] or e["status"] for e in list(self.heard) if e["run_id"] == run_id]

    def close(self) -> None:
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(60)


@pytest.fixture
def listen() -> Iterator[Callable[[Served], Listener]]:
    """Subscribe to the event bus of a server."""
    listeners: list[Listener] = []

    def begin(server: Served) -> Listener:
        listeners.append(Listener(server))
        return listeners[-1]

    yield begin
    for listener in listeners:
        listener.close()


def told_ended(listener: Listener, run_id: str) -> bool:
    """Whether the end of a run was told."""
    return "ended" in listener.of(run_id)


def test_every_step_of_a_run_is_an_event(
    server: Served, listen: Callable[[Served], Listener], tmp_path: Path
) -> None:
    """Queued, granted, starting, running, ended, each once and in order, however quick it was; with
    nothing in it but names and words.
    """
    listener = listen(server)
    release = tmp_path / "release"
    comment = "# a-secret-of-the-source\n"
    slow = server.submit("slow", comment + waits_for(release), environment={"KEY": "a-secret-key"})
    server.active(slow)
    quick = server.completed("quick", "pass")["run_id"]
    release.touch()
    way = ["queued", "granted", "starting", "running", "ended"]
    for run_id in (slow, quick):
        until(partial(told_ended, listener, run_id), f"{run_id} is told")
        assert listener.of(run_id) == way
    told = json.dumps(listener.heard)
    assert "secret" not in told
    assert str(server.places.root) not in told
    for event in listener.heard:
        assert set(event) - OF_THE_BUS == FIELDS
    (last,) = [e for e in listener.heard if e["run_id"] == slow and e["status"] == "ended"]
    assert (last["end"], last["name"], last["attempt"]) == ("completed", "slow", 1)


def test_why_it_waits_and_why_it_ended_are_words(
    server: Served, listen: Callable[[Served], Listener], tmp_path: Path
) -> None:
    """A run that waits says the kind of its reason, one that is stopped passes stopping."""
    listener = listen(server)
    server.ask("POST", "/drain", {})
    waits = server.submit("waits", "pass")
    until(lambda: listener.of(waits) == ["queued"])
    (queued,) = [event for event in listener.heard if event["run_id"] == waits]
    assert queued["reason"] == "drain"
    server.ask("POST", f"/runs/{waits}/cancel")
    server.ask("DELETE", "/drain")
    until(lambda: listener.of(waits) == ["queued", "ended"])
    failing = server.ended(server.submit("fails", "import sys\nsys.exit(3)"))["run_id"]
    until(lambda: "ended" in listener.of(failing))
    (ended,) = [e for e in listener.heard if e["run_id"] == failing and e["status"] == "ended"]
    assert (ended["end"], ended["reason"]) == ("failed", server.run(failing)["exit_reason"])
    stopped = server.submit("stopped", waits_for(tmp_path / "never"))
    server.active(stopped)
    server.ask("POST", f"/runs/{stopped}/cancel")
    until(lambda: "ended" in listener.of(stopped))
    assert [e["end"] for e in listener.heard if e["run_id"] == stopped][-1] == "cancelled"


def test_an_end_is_told_though_the_run_is_deleted(
    server: Served, listen: Callable[[Served], Listener]
) -> None:
    """Whoever deletes a run the moment it has ended hides no end: nobody waits for it for ever."""
    listener = listen(server)
    for _ in range(3):
        run_id = server.completed("brief", "pass")["run_id"]
        assert server.ask("DELETE", f"/runs/{run_id}").status == 200
        until(partial(told_ended, listener, run_id), f"{run_id} is told")
    ends = [event["end"] for event in listener.heard if event["status"] == "ended"]
    assert ends == 3 * ["completed"]
    assert server.figures()['gpugate_runs{status="active"}'] == 0


def test_a_server_that_forwards_tells_the_same(
    start: Callable[..., Served], listen: Callable[[Served], Listener], tmp_path: Path
) -> None:
    """Whoever hosts the gate, each server has each event once; when the host is killed the one that
    takes over goes on telling, and a run that ended meanwhile is told as well.
    """
    first, second = start(), start()
    listener = listen(second)
    release = tmp_path / "release"
    run_id = first.submit("long", waits_for(release))
    until(lambda: listener.of(run_id) == ["queued", "granted", "starting", "running"])
    release.touch()
    first.kill()
    until(lambda: "ended" in listener.of(run_id), "its end is told by the server that is left")
    later = second.completed("later", "pass")["run_id"]
    until(lambda: "ended" in listener.of(later))
    assert listener.of(run_id) == ["queued", "granted", "starting", "running", "ended"]
    assert listener.of(later) == ["queued", "granted", "starting", "running", "ended"]


def test_the_feed_says_what_was_missed(server: Served, tmp_path: Path) -> None:
    """Whoever knows another epoch gets where all unfinished runs stand; whoever is up to date waits
    until something happens.
    """
    first = server.ask("GET", "/transitions").json
    assert (first["gap"], first["unfinished"], first["transitions"]) == (True, {}, [])
    place = f"/transitions?epoch={first['epoch']}&after={first['last']}"
    assert server.ask("GET", place).json["transitions"] == []
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(server.ask("GET", f"{place}&wait=60").json)
    )
    waiting.start()
    run_id = server.submit("live", waits_for(tmp_path / "release"))
    waiting.join()
    assert found[0]["transitions"][0]["run_id"] == run_id
    assert found[0]["transitions"][0]["status"] == "queued"
    server.active(run_id)
    beyond = server.ask("GET", f"/transitions?epoch={first['epoch']}&after=99999").json
    assert beyond["gap"] is True
    assert beyond["unfinished"][run_id]["phase"] == "running"


HOOK = """
import json, os, threading

def ended(run):
    with open(os.path.join(os.path.dirname(__file__), "told"), "a") as told:
        told.write(json.dumps([run["run_id"], run["end"], run["status"]]) + "\\n")
    if run["name"] == "bad":
        raise RuntimeError("a-mistake-of-the-site")
"""


def test_a_hook_is_called_when_a_run_ends(start: Callable[..., Served], places: Places) -> None:
    """A site's own function gets the run's answer; what it raises is logged and stops nothing."""
    folder = places.root / "site"
    folder.mkdir()
    (folder / "site_hooks.py").write_text(HOOK)
    server = start("--GpuGate.run_ended_hook=site_hooks.ended", PYTHONPATH=str(folder))
    bad = server.completed("bad", "pass")["run_id"]
    good = server.ended(server.submit("good", "1/0"))["run_id"]

    def told() -> list[Any]:
        path = folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    until(lambda: len(told()) == 2, "both ends are told")
    assert told() == [[bad, "completed", "ended"], [good, "failed", "ended"]]
    assert "a-mistake-of-the-site" in server.log.read_text()


def test_a_hook_that_cannot_be_imported_is_said_at_the_start(start: Callable[..., Served]) -> None:
    """A misspelt name is said when the server starts, not when the first run ends."""
    server = start("--GpuGate.run_ended_hook=no_such_module.ended")
    assert "'no_such_module.ended' cannot be imported" in server.log.read_text()
