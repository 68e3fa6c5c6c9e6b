"""Services through HTTP, the magic and the terminal: real servers on a stand-in GPU."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import gpugate
from tests.acceptance.evaluations import MB, evaluation, holds, vram
from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.controlled_runs import processes_of
from tests.kit.front_end import notebook
from tests.kit.real_server import Places, Served, until

#: Holds memory of its GPU; its /health answers 503 until a file exists, then 200.
SERVER = f"""
import http.server, os, runpy, sys
size, port, opens = sys.argv[1:]
runpy.run_path({str(HOLDER)!r})["hold_gpu"](0, int(size))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if os.path.exists(opens) else 503)
        self.end_headers()
    def log_message(self, *_):
        pass
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


class Service:
    """A model server that holds 6 GB, and is ready when the test says so."""

    def __init__(self, tmp_path: Path, name: str = "chat") -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.opens = tmp_path / f"{name}-{self.port}.open"
        program = tmp_path / "server.py"
        program.write_text(SERVER)
        self.name = name
        self.url = f"http://127.0.0.1:{self.port}/health"
        self.argv = [sys.executable, str(program), str(6 * GB), str(self.port), str(self.opens)]

    def body(self, **fields: Any) -> dict[str, Any]:
        """The body of its submit; its port and file do not change the memory needed."""
        free = [str(self.port), str(self.opens)]
        given = {"name": self.name, "argv": self.argv, "memory_irrelevant": free}
        return {**given, "service": True, "ready_url": self.url, **fields}

    def submit(self, server: Served, **fields: Any) -> str:
        """Submit it; its run id."""
        answer = server.ask("POST", "/runs", self.body(**fields))
        assert answer.status == 202, answer.body
        return str(answer.json["run_id"])

    def is_ready(self, server: Served, run_id: str) -> dict[str, Any]:
        """Let it be ready, and wait until the gate knows."""
        self.opens.touch()
        row: dict[str, Any] = until(
            lambda: (row := server.run(run_id))["ready"] and row, f"{run_id} is ready"
        )
        return row


@pytest.mark.behaviour(163, 29, 30)
def test_a_service_calibrates_although_it_is_stopped(
    server: Served, stand_in: StandIn, tmp_path: Path
) -> None:
    """Unknown before, it is measured as soon as it is ready, and stopping it is its usual end."""
    uuid, first = stand_in.uuid(0), Service(tmp_path)
    run_id = first.submit(server)
    row = server.active(run_id)
    assert (row["basis"][uuid], row["service"], row["ready"]) == ("watch", True, False)
    until(lambda: holds(server, run_id, uuid, 6 * GB), "the gate has seen what it holds")
    estimate = server.ask("GET", "/estimate?name=chat").json
    assert "vram:run" in estimate["missing"]
    first.is_ready(server, run_id)
    assert server.run(run_id)["status"] == "active"
    terms = {t["resource"]: t for t in server.ask("GET", "/estimate?name=chat").json["terms"]}
    assert {r: (t["origin"], t["n"]) for r, t in terms.items()} == {
        "vram": ("measured", 1),
        "ram": ("measured", 1),
    }
    assert terms["vram"]["peak_bytes"] == 6 * GB
    stopped = server.ask("POST", f"/runs/{run_id}/cancel").json
    assert (stopped["cancelled"], stopped["end"]) == (True, "completed")
    row = server.run(run_id)
    assert (row["end"], row["exit_reason"], row["ready"]) == ("completed", "stopped", True)
    assert row["warnings"] == []
    assert processes_of(run_id) == []
    (seen,) = server.ask("GET", "/calibrations").json["calibrations"]["chat"][:1]
    assert len(seen["observations"]) == 1

    second = Service(tmp_path)
    run_id = second.submit(server)
    row = server.active(run_id)
    assert set(row["basis"].values()) == {"calibrated"}
    assert vram(row["charges"]) == 6 * GB + -(-6 * GB // 10) + 64 * MB
    server.ask("POST", f"/runs/{run_id}/cancel")
    row = server.run(run_id)
    assert (row["end"], row["ready"]) == ("cancelled", False)  # it was still loading


@pytest.mark.behaviour(167, 19)
@pytest.mark.usefixtures("stand_in")
def test_while_a_service_loads_nobody_else_starts_on_its_device(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    """Not even when the gate is killed meanwhile; runs without a GPU are not affected."""
    server = start()
    hints, release = {"vram_bytes": 8 * GB}, tmp_path / "release"
    first, second = Service(tmp_path), Service(tmp_path, "other")
    loading = first.submit(server, hints=hints)
    server.active(loading)
    waiting = second.submit(server, hints=hints)
    plain = server.submit("plain", evaluation(1, release), hints={"vram_bytes": GB})
    for run_id in (waiting, plain):
        reasons = server.waiting(run_id, "loading")["reasons"]
        assert loading in reasons[0]["message"]
        assert reasons[0]["who"] == [loading]
    server.completed("cpu", "pass", gpus=0)
    forecast = server.ask("POST", "/estimate", {"name": "later", "source": "pass"}).json
    assert [reason["kind"] for reason in forecast["reasons"]] == ["loading"]
    server.kill()
    server = start()
    server.waiting(plain, "loading")
    first.is_ready(server, loading)
    server.active(waiting)  # the older of the two, which loads now
    server.waiting(plain, "loading")
    (row,) = [row for row in server.queue()["running"] if row["run_id"] == loading]
    assert (row["service"], row["ready"]) == (True, True)
    server.kill()
    server = start()
    assert until(lambda: server.run(loading)["ready"], "it is still ready")
    server.waiting(plain, "loading")
    second.is_ready(server, waiting)
    server.active(plain)
    release.touch()
    assert server.ended(plain)["end"] == "completed"
    for run_id in (loading, waiting):
        assert server.ask("POST", f"/runs/{run_id}/cancel").json["end"] == "completed"


def test_a_service_that_ends_by_itself_has_failed(shared_server: Served) -> None:
    """Its exit code does not matter."""
    body = {"name": "short", "argv": ["true"], "service": True}
    row = shared_server.ended(shared_server.ask("POST", "/runs", body).json["run_id"])
    assert (row["end"], row["exit_reason"]) == ("failed", "exit 0: the service ended by itself")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ready_url": "http://127.0.0.1:80/"}, "ready_url"),
        ({"service": True, "ready_url": "http://127.0.0.1/"}, "ready_url"),
        ({"service": True, "ready_url": "http://127.0.0.1:70000/"}, "ready_url"),
        ({"service": True, "ready_url": "http://example.org:80/"}, "ready_url"),
        ({"service": True, "ready_url": "http://10.0.0.1:80/"}, "ready_url"),
        ({"service": True, "ready_url": "https://127.0.0.1:80/"}, "ready_url"),
        ({"service": True, "ready_url": "file:///etc/passwd"}, "ready_url"),
        ({"service": True, "ready_url": "http://a@127.0.0.1:80/"}, "ready_url"),
        ({"service": True, "ready_url": "http://127.0.0.1:80/a b"}, "ready_url"),
        ({"service": True, "ready_url": ""}, "ready_url"),
        ({"service": "yes"}, "service"),
        ({"service": True, "outputs": ["x"]}, "outputs"),
        ({"service": True, "episodes": 2}, "episodes"),
    ],
)
def test_half_a_service_is_refused(
    shared_server: Served, fields: dict[str, Any], field: str
) -> None:
    """The message names the field and the fix."""
    answer = shared_server.ask("POST", "/runs", {"name": "never", "source": "x = 1", **fields})
    assert (answer.status, answer.json["detail"]["field"]) == (400, field), answer.body
    assert answer.json["message"].startswith(f"{field}: ")


@pytest.mark.behaviour(163, 167)
@pytest.mark.usefixtures("stand_in", "server")
def test_a_cell_ends_when_its_service_is_ready(places: Places, tmp_path: Path) -> None:
    """The service goes on, the next cell uses it, and a handle stops it."""
    service = Service(tmp_path)
    cell = f"import subprocess\nsubprocess.run({service.argv!r}, check=True)"  # as a person would
    head = f"%%gated_eval chat --service --ready {service.url} --vram 8GB --hint-ram 200MB"
    with notebook(places) as front_end:
        running = front_end.start(f"{head}\n{cell}")
        front_end.shows(running, "chat · loading")
        assert any("no other run starts on its GPU" in text for text in running.texts)
        service.opens.touch()
        done = front_end.end_of(running)
        assert not done.error, done.error
        assert "chat · ready" in done.texts[-1]
        (run_id,) = done.run_ids
        asked = f"import urllib.request\nurllib.request.urlopen({service.url!r}).status"
        assert front_end.value(asked) == "200"
        stops = f"import jupyter_gpugate as g\nrun = g.get({run_id!r})\nrun.cancel()['end']"
        assert front_end.value(stops) == "'completed'"
        assert front_end.value("run.wait().status()") == "'completed'"
        wrong = front_end.run(f"%%gated_eval chat --ready {service.url}\npass")
        assert "UsageError: --ready says when a service is ready: add --service" in wrong.printed
        wrong = front_end.run("%%gated_eval chat --service --output x\nx = 1")
        assert "it cannot have --output" in wrong.printed


@pytest.mark.usefixtures("stand_in", "server")
def test_a_handle_waits_until_a_service_is_ready(places: Places, tmp_path: Path) -> None:
    """Whatever else happens instead is an exception of its own."""
    service = Service(tmp_path)
    options = f"name='chat', service=True, ready={service.url!r}, vram='8GB', hint_ram='200MB'"
    submits = f"import jupyter_gpugate as g\nrun = g.submit({service.argv!r}, {options})"
    with notebook(places) as front_end:
        assert not front_end.run(submits).error
        late = front_end.run("run.wait_until_ready(0.1)")
        assert late.ename == "TimeoutError"
        assert "has not become ready" in late.error["evalue"]
        service.opens.touch()
        assert front_end.value("run.wait_until_ready().status()") == "'running'"
        assert front_end.value("run.cancel()['end']") == "'completed'"
        gone = front_end.run("run.wait_until_ready()")
        assert gone.ename == "RunFailed"
        assert "it was stopped" in gone.error["evalue"]
        plain = front_end.run("g.submit(['true'], name='plain', gpus=0).wait_until_ready()")
        assert plain.ename == "ValueError"


#: Of a service in a terminal.
OPTIONS = ("--hint-vram", "8GB", "--hint-ram", "200MB", "--service")


@pytest.mark.usefixtures("stand_in")
def test_a_terminal_waits_until_a_service_is_ready(places: Places, tmp_path: Path) -> None:
    """With `wait --ready`, which fails for one that has been stopped."""
    service = Service(tmp_path)
    words = (*OPTIONS, "--detach", "--ready", service.url, "--", *service.argv)
    run_id = gpugate(places, "run", service.name, *words).stdout.split()[-1]
    done = gpugate(places, "wait", "--ready", "--timeout", "1s", run_id)
    assert (done.returncode, "have not ended or become ready" in done.stderr) == (75, True)
    service.opens.touch()
    done = gpugate(places, "wait", "--ready", run_id)
    assert (done.returncode, done.stdout) == (0, f"{run_id} chat · ready\n")
    gpugate(places, "cancel", run_id)
    assert gpugate(places, "wait", "--ready", run_id).returncode == 1
    assert gpugate(places, "wait", run_id).returncode == 0


@pytest.mark.behaviour(163)
@pytest.mark.usefixtures("stand_in")
def test_a_service_in_a_terminal_ends_with_0_when_it_is_stopped(
    places: Places, tmp_path: Path
) -> None:
    """The command waits for the stop, which is no failure; of one that loads it is a cancel."""

    def foreground(service: Service) -> subprocess.Popen[str]:
        words = ("run", service.name, *OPTIONS, "--ready", service.url, "--", *service.argv)
        return subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpugate", *words],
            env=places.environ(),
            cwd=places.notebooks,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def says(process: subprocess.Popen[str], words: str) -> str:
        assert process.stderr is not None
        return next(line for line in process.stderr if words in line)

    service = Service(tmp_path)
    with foreground(service) as process:
        says(process, "chat · loading")
        service.opens.touch()
        run_id = says(process, "chat · ready").split()[0]
        done = gpugate(places, "cancel", run_id)
        assert f"{run_id} is stopped: cleanly" in done.stdout
        assert process.wait() == 0
        says(process, "chat · stopped")
    with foreground(Service(tmp_path)) as process:
        run_id = says(process, "chat · loading").split()[0]
        process.send_signal(signal.SIGINT)  # nobody is at the terminal: it cancels
        assert process.wait() == 130
    listed = json.loads((places.runs / run_id / "summary.json").read_text())
    assert (listed["end"], listed["reason"]) == ("cancelled", "cancelled")
    done = gpugate(places, "run", "chat", "--ready", service.url, "--", "true")
    assert (done.returncode, "add --service" in done.stderr) == (2, True)
    done = gpugate(places, "run", "chat", "--service", "--ready", "http://host:1/", "--", "true")
    assert (done.returncode, "localhost" in done.stderr) == (2, True)
