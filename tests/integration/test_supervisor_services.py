"""A supervisor whose run is a service: when it is ready, and how it ends."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.messages import Verdict
from tests.integration.supervisor_process import Attempt, Make, python

#: Answers 503 until a file exists, then 200; its path is the first argument, its port the second.
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        fine = self.path == "/health?full=1" and os.path.exists(sys.argv[1])
        self.send_response(204 if fine else 503)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""
FOREVER = "import time\nwhile True: time.sleep(1)"


@pytest.fixture
def port() -> int:
    """A port on loopback that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def service(make: Make, argv: list[str], **launch: Any) -> Attempt:
    """Start a service."""
    return make(argv=argv, service=True, **launch).start()


def heard(attempt: Attempt, *, ready: bool) -> None:
    """Wait for a heartbeat of the running service that says so."""

    def fits(body: dict[str, Any]) -> bool:
        return body["phase"] == "running" and body["ready"] is ready

    attempt.gate.wait_for("heartbeat", fits)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_service_is_ready_once_its_url_answers(
    make: Make, tmp_path: Path, port: int, host: str
) -> None:
    """Refused connections and other answers than 2xx are those of a service that loads."""
    opens = tmp_path / "open"
    url = f"http://{host}:{port}/health?full=1"
    attempt = service(make, [*python(SERVER), str(opens), str(port)], ready_url=url)
    heard(attempt, ready=False)
    opens.touch()
    heard(attempt, ready=True)
    attempt.stop("cancelled")
    end = attempt.end()
    assert (end["outcome"], end["reason"], end["ready"]) == ("completed", "stopped", True)
    beats = [body["ready"] for body in attempt.gate.all("heartbeat")]
    assert beats == sorted(beats)  # never less ready than before
    assert attempt.gate.wait_for("finished")["end"]["ready"] is True


def test_a_url_that_never_answers_blocks_nothing(make: Make) -> None:
    """The connection is taken and nothing comes: heartbeats go on, and so does a stop."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        attempt = service(make, python(FOREVER), ready_url=f"http://127.0.0.1:{port}/")
        link, _ = silent.accept()
        asked = len(attempt.gate.all("heartbeat"))
        attempt.gate.wait_for("heartbeat", lambda _: len(attempt.gate.all("heartbeat")) > asked + 3)
        heard(attempt, ready=False)
        attempt.stop("cancelled")
        end = attempt.end()
        link.close()
    assert (end["outcome"], end["reason"], end["ready"]) == ("cancelled", "cancelled", False)


def test_a_url_that_another_process_answers_fails_the_service(
    make: Make, tmp_path: Path, port: int
) -> None:
    """It would seem to be ready at once, and teach that it needs nothing."""
    (tmp_path / "open").touch()
    url = f"http://127.0.0.1:{port}/health?full=1"
    other = make(argv=[*python(SERVER), str(tmp_path / "open"), str(port)], service=True)
    other.launch["ready_url"] = url
    other.start()
    heard(other, ready=True)
    end = service(make, python(FOREVER), ready_url=url).end()
    assert (end["outcome"], end["ready"]) == ("failed", False)
    assert end["reason"].startswith("port_in_use: ")


def test_without_a_url_the_gate_says_when_it_is_ready(make: Make) -> None:
    """In its answer to a heartbeat."""
    attempt = service(make, python(FOREVER))
    heard(attempt, ready=False)
    attempt.gate.replies["heartbeat"] = (200, to_json(Verdict(next_in=0.2, ready=True)))
    heard(attempt, ready=True)
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "completed"


@pytest.mark.parametrize(
    ("code", "reason"),
    [("pass", "exit 0: the service ended by itself"), ("raise SystemExit(3)", "exit 3")],
)
def test_a_service_that_ends_by_itself_has_failed(make: Make, code: str, reason: str) -> None:
    """Whatever its exit code."""
    end = service(make, python(code)).end()
    assert (end["outcome"], end["reason"]) == ("failed", reason)


@pytest.mark.parametrize(("is_ready", "outcome"), [(True, "completed"), (False, "failed")])
def test_a_time_limit_is_a_stop(make: Make, *, is_ready: bool, outcome: str) -> None:
    """For a service that was ready by then; one that still loads has failed."""
    attempt = make(argv=python(FOREVER), service=True, time_limit_s=2.0)
    attempt.gate.replies["heartbeat"] = (200, to_json(Verdict(next_in=0.2, ready=is_ready)))
    end = attempt.start().end()
    assert (end["outcome"], end["reason"]) == (outcome, "time_limit")


def test_a_service_in_the_background_is_waited_for(make: Make) -> None:
    """Its launcher returns at once; stopping it is its usual end, of which nothing warns."""
    launcher = f"import subprocess, sys; subprocess.Popen([{sys.executable!r}, '-c', {FOREVER!r}])"
    attempt = service(make, python(launcher))
    attempt.gate.replies["heartbeat"] = (200, to_json(Verdict(next_in=0.2, ready=True)))
    attempt.gate.wait_for("heartbeat", lambda body: body["ready"] and len(body["tree"]) > 1)
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "completed"
    assert attempt.lines("messages.jsonl") == []
