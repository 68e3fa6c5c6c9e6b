"""The API at the start and at the end of its server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.real_server import Answer, Served


@pytest.mark.behaviour(139)
def test_the_first_call_meets_a_whole_gate(places: Any) -> None:
    """However early a call comes, it is answered in full, or told that the gate starts."""
    asked = [
        "/queue",
        "/runs",
        "/machine",
        "/samples",
        "/transitions",
        "/estimate?name=x",
        "/panel",
    ]
    found: list[Answer] = []

    class Impatient(Served):
        """Asks everything at once as soon as somebody listens."""

        def _answers(self) -> bool:
            assert self.process.poll() is None, self.log.read_text()
            try:
                found.append(self.ask("GET", asked[0]))
            except OSError:
                return False
            callers = [
                threading.Thread(target=lambda path=path: found.append(self.ask("GET", path)))
                for path in asked
            ]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            return True

    server = Impatient(places)
    try:
        assert len(found) == len(asked) + 1
        for answer in found:
            assert answer.status in (200, 404, 503), answer.body
            if answer.status != 200:
                assert set(answer.json) == {"error", "message", "detail"}
        assert "Traceback" not in server.log.read_text()
    finally:
        server.stop()


@pytest.mark.behaviour(140)
def test_nothing_goes_on_behind_a_server_that_has_stopped(start: Callable[..., Served]) -> None:
    """With no run unfinished, a stopped server leaves no process, no socket and no complaint,
    though a poll was waiting when it stopped.
    """
    server = start()
    server.completed("over", "pass")
    tag = server.ask("GET", "/queue").headers["etag"].replace('"', "%22")
    ended = threading.Event()

    def poll() -> None:
        try:
            server.ask("GET", f"/queue?wait=60&etag={tag}")
        except OSError:
            pass
        finally:
            ended.set()

    threading.Thread(target=poll, daemon=True).start()
    server.stop()
    assert server.process.returncode == 0
    assert ended.wait(60)
    assert not server.places.socket.exists()
    mark = f"XDG_RUNTIME_DIR={server.places.runtime}".encode()
    assert [pid for pid in pids() if mark in environment_of(pid)] == []
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "was destroyed" not in log
    assert "never awaited" not in log


def pids() -> list[int]:
    """Every process there is."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment_of(pid: int) -> bytes:
    """What a process was started with, if it may be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
