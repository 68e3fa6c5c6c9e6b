"""A real supervisor over a real attempt directory, and a little gate on a unix socket beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import jupyter_gpugate.programs
from jupyter_gpugate.core.codec import ProtocolError, from_json, to_json
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.messages import MESSAGES, Go, Recorded, Verdict
from jupyter_gpugate.programs.supervisor.cgroups import cgroup_directory
from jupyter_gpugate.runs.directory import write_stop

PROGRAMS = Path(jupyter_gpugate.programs.__file__).parent
PATIENCE_S = 120.0
KINDS = {kind.name: kind for kind in MESSAGES}

#: Stands in for the real bootstrap: runs the cell, then says that it came to its end.
WORKER = """
import json, os, sys
events = int(os.environ["GPUGATE_EVENTS_FD"])
def tell(event, **fields):
    os.write(events, json.dumps({"event": event, **fields}).encode() + b"\\n")
with open(os.path.join(sys.argv[1], "cell.py")) as cell:
    code = compile(cell.read(), cell.name, "exec")
exec(code, {"tell": tell, "worker": int(sys.argv[2]), "__name__": "__main__"})
tell("result")
"""

#: Holds memory the way a program does that touches every page of it once.
TOUCH = "held = bytearray(%d << 20)\nfor at in range(0, len(held), 4096): held[at] = 1\n"


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition to hold, and return what it returned."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)
    return value


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = True
    gate: Gate


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.gate.answer(self.path.removeprefix("/lease/v1/"), body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


class Gate:
    """Answers the lease messages as told, and remembers and checks them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.problems: list[str] = []  # messages that no gate would accept
        self.replies: dict[str, tuple[int, dict[str, Any]]] = {
            "started": (200, to_json(Go())),
            "heartbeat": (200, to_json(Verdict(next_in=0.2))),
            "finished": (200, to_json(Recorded())),
        }
        self._server: _Server | None = None

    def answer(self, message: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.messages.append((message, body))
        try:
            from_json(KINDS[message], body)
        except ProtocolError as error:
            self.problems.append(f"{message}: {error}")
        return self.replies[message]

    def all(self, message: str) -> list[dict[str, Any]]:
        return [body for name, body in list(self.messages) if name == message]

    def wait_for(self, message: str, holds: Callable[[dict[str, Any]], Any] = bool) -> Any:
        """Wait for a message that fits, and return its body."""
        return until(lambda: next(filter(holds, self.all(message)), None), message)

    def open(self) -> None:
        """Listen at the path, as a gate that has just started does."""
        self.path.unlink(missing_ok=True)
        self._server = _Server(str(self.path), _Handler)
        self._server.gate = self
        threading.Thread(target=self._server.serve_forever, args=(0.01,)).start()

    def close(self) -> None:
        """Go away; the path stays, as after a kill."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class Attempt:
    """An attempt's directory and the supervisor that lives in it."""

    def __init__(self, root: Path, gate: Gate, **launch: Any) -> None:
        self.gate = gate
        self.run_id = f"20260101-000000-{os.urandom(3).hex()}"
        run = root / self.run_id
        self.path = run / "attempts" / "1"
        self.path.mkdir(parents=True)
        self.programs = root / f"programs-{self.run_id}" / "gpugate_programs"
        others = shutil.ignore_patterns("__pycache__", "worker", "fingerprint")
        shutil.copytree(PROGRAMS, self.programs, ignore=others)
        (self.programs / "worker").mkdir()
        (self.programs / "worker" / "__main__.py").write_text(WORKER)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(root)}
        self.launch: dict[str, Any] = {
            "run_id": self.run_id, "attempt": 1, "fence": 7, "socket": str(gate.path),
            "kind": "program", "interpreter": sys.executable, "flags": [], "argv": [],
            "cwd": str(root), "umask": None, "path": [], "env_file": "../../env.json",
            "workers": 1, "episodes": 1, "parameters": {}, "inputs": [], "outputs": [],
            "devices": [], "caps": {}, "device_totals": {}, "enforcement": "none",
            "time_limit_s": None, "grace_s": 10.0, "heartbeat_s": 2.0, "oom_score_adj": 500,
            "resume_from": None, **launch,
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def change_supervisor(self, old: str, new: str) -> None:
        """Change one line in this attempt's own copy."""
        copies = list((self.programs / "supervisor").glob("*.py"))
        (copy,) = (path for path in copies if old in path.read_text())
        source = copy.read_text()
        assert source.count(old) == 1
        copy.write_text(source.replace(old, new))

    def start(
        self,
        *,
        before: tuple[str, ...] = (),
        python: str = sys.executable,
        flags: tuple[str, ...] = (),
    ) -> Attempt:
        """Start the supervisor as the run side does, in a session of its own."""
        (self.path.parents[1] / "env.json").write_text(json.dumps(self.environment))
        (self.path / "launch.json").write_text(json.dumps(self.launch))
        supervisor = str(self.programs / "supervisor" / "__main__.py")
        self.process = subprocess.Popen(
            [*before, python, "-I", "-S", *flags, supervisor, "."],
            cwd=self.path,
            env={},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self, reason: str | None) -> None:
        """Ask for a stop as the run side does: the reason in a file, then SIGTERM."""
        if reason is not None:
            write_stop(self.path, Stop.of(StopKind(reason)))
        os.kill(self.pid, signal.SIGTERM)

    def end(self) -> dict[str, Any]:
        """Wait for the supervisor to go, and return its end report."""
        assert self.process is not None
        assert self.process.wait(PATIENCE_S) == 0
        assert (self.path / "_DONE").exists()
        end: dict[str, Any] = self.outcome()["end"]
        return end

    def outcome(self) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads((self.path / "outcome.json").read_text())
        return outcome

    def output(self) -> str:
        log = self.path / "output.log"
        return log.read_text() if log.exists() else ""

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / name).read_text().splitlines()]

    def tagged(self) -> list[int]:
        """Pids of the living processes that carry this run's tag."""
        tag, found = f"GPUGATE_RUN_ID={self.run_id}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if tag in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def clear(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for pid in self.tagged():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        cgroup = Path(cgroup_directory("") or "", f"gpugate-{self.run_id}-1")
        if cgroup.exists():  # a killed supervisor could not take it away
            empty(cgroup)
            cgroup.rmdir()


@contextlib.contextmanager
def attempts() -> Iterator[Callable[..., Attempt]]:
    """Give out attempts that share one gate, open at first; clear them all up at the end."""
    # Not pytest's own folder: a unix socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="gpugate-") as folder:
        gate = Gate(Path(folder) / "gate.sock")
        gate.open()
        made: list[Attempt] = []

        def make(**launch: Any) -> Attempt:
            made.append(Attempt(Path(folder), gate, **launch))
            return made[-1]

        try:
            yield make
        finally:
            for attempt in made:
                attempt.clear()
            gate.close()
        assert gate.problems == []


Make = Callable[..., Attempt]


def as_cell(attempt: Attempt, body: str) -> Attempt:
    """Make the attempt a cell's."""
    attempt.launch["kind"] = "cell"
    (attempt.path / "cell.py").write_text(body)
    return attempt


def needs(possible: bool, what: str) -> None:
    """Skip, saying why, where a thing is not possible."""
    if not possible:
        pytest.skip(f"needs {what}")


def is_set(setting: Path, value: int) -> bool:
    """Set one value of a cgroup; False where there is no such setting or no right to it."""
    try:
        setting.write_text(str(value))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def limited_cgroup(
    controller: str, v1: dict[str, int], v2: dict[str, int]
) -> Iterator[tuple[str, ...]]:
    """Make a cgroup with limits; give the command that starts a supervisor in it.

    The first limit has to take, the others are set where there are such settings.
    """
    for root, limits in ((f"/sys/fs/cgroup/{controller}", v1), ("/sys/fs/cgroup", v2)):
        path = Path(root) / f"gpugate-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            took = [is_set(path / name, value) for name, value in limits.items()]
            if took[0]:
                yield ("sh", "-c", f'echo $$ > {path}/cgroup.procs && exec "$@"', "-")
                return
        finally:
            empty(path)
            path.rmdir()
    pytest.skip(f"needs a {controller} cgroup that can be made and limited")


def empty(cgroup: Path) -> None:
    """Kill what a failed test left in a cgroup; no process there can fork meanwhile."""
    is_set(cgroup / "pids.max", 0)

    def is_empty() -> bool:
        pids = (cgroup / "cgroup.procs").read_text().split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return not pids

    until(is_empty, "an empty cgroup")


def python(code: str) -> list[str]:
    """Return the command of a program in this interpreter."""
    return [sys.executable, "-c", code]
