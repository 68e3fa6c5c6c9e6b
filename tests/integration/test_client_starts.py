"""The client starts a gate where there is none."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.client import discovery
from jupyter_gpugate.client.connection import connect
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.places import SOCKET_VARIABLE
from jupyter_gpugate.proc import RUN_MODULE
from tests.kit.gate_stand_in import PATIENCE_S, GateStandIn, gate_at

ROOT = Path(__file__).resolve().parents[2]

RUN = "20261129-143600-abcde"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this user's runtime folder an empty one, and no other place one of theirs."""
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(places, "spare_runtime_folder", lambda: tmp_path / "in-tmp")
    monkeypatch.setattr(places, "state_folders", lambda _environ: [tmp_path / "state"])
    return tmp_path


@pytest.fixture
def gate(runtime: Path) -> Iterator[GateStandIn]:
    """Serve in this user's runtime folder."""
    with gate_at(runtime / "gpugate" / "gpugate.sock") as gate:
        yield gate


# -- starting a gate --------------------------------------------------------------------------

GATE_PROGRAM = """\
import os, pathlib, signal, sys
sys.path.insert(0, {root!r})
from tests.kit.gate_stand_in import gate_at
about = {{
    "argv": sys.argv[1:],
    "session": os.getsid(0) == os.getpid(),
    "environment": dict(os.environ),
    "parent": os.getppid(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "pid": os.getpid(),
}}
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
with gate_at(pathlib.Path({socket!r})) as gate:
    gate.answers["/machine"] = about
    signal.sigwait({{signal.SIGTERM}})
"""


INTERPRETER = """\
#!/bin/sh
if [ "$1" = -I ]; then exec {python} "$@"; fi
{gate}
"""


@pytest.fixture
def interpreter(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a shell command stand for the gate that this Python would start."""
    path = runtime / "python"
    python = os.path.realpath("/proc/self/exe")

    def stands_for_the_gate(command: str) -> None:
        path.write_text(INTERPRETER.format(python=python, gate=command), encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return stands_for_the_gate


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for somebody to ask how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return state.rpartition(")")[2].split()[0] in ("Z", "X")


def end(pid: int) -> None:
    """End a gate that a test has started, and see it gone."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while not has_ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_where_no_gate_is_one_is_started(
    runtime: Path, interpreter: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs `jupyter_gpugate serve --user`, nobody's child, in its own session, no tokens, and
    imports nothing by a relative path.
    """
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    monkeypatch.setenv("GPUGATE_RUN_ID", RUN)
    monkeypatch.setenv("PYTHONPATH", ":/usr/lib:.")
    path, script = runtime / "gpugate" / "gpugate.sock", runtime / "gate.py"
    script.write_text(GATE_PROGRAM.format(root=str(ROOT), socket=str(path)), encoding="utf-8")
    interpreter(f'exec {sys.executable} {script} "$@"')
    about = connect().machine()
    try:
        assert about["argv"] == ["-c", RUN_MODULE, "jupyter_gpugate", "serve", "--user"]
        assert about["session"]
        assert about["parent"] != os.getpid()
        assert about["stdin"] == "/dev/null"
        assert "JUPYTERHUB_API_TOKEN" not in about["environment"]
        assert "GPUGATE_RUN_ID" not in about["environment"]
        assert about["environment"]["PYTHONPATH"].split(":") == [str(ROOT), "/usr/lib"]
        assert (runtime / "gpugate" / "gate.log").stat().st_mode & 0o777 == 0o600
        assert connect().socket_path == path
    finally:
        end(about["pid"])


def test_a_gate_that_does_not_start_says_why(
    interpreter: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its log is in the error, as a sentence, as soon as it has failed, and nothing of
    the attempt stays open here.
    """
    held = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(discovery, "FORESTALLED_S", 1e6)
    monkeypatch.setattr(discovery, "START_WAIT_S", 1e6)
    interpreter("echo 'lab.paths.UnsafePath: the path is too long' >&2; exit 3")
    with pytest.raises(
        GateError, match=r"^the gate did not start: the path is too long \(.*gate\.log has more\)$"
    ):
        connect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= held


def test_a_gate_that_was_forestalled_is_no_failure(
    runtime: Path, interpreter: Callable[[str], None]
) -> None:
    """Of two that start together one ends at once; both clients come to the other."""
    interpreter(f"touch {runtime}/ended; exit 0")
    path = runtime / "gpugate" / "gpugate.sock"
    found = threading.Event()

    def serve_late() -> None:
        while not (runtime / "ended").exists():
            time.sleep(0.01)
        with gate_at(path):
            found.wait(PATIENCE_S)

    other = threading.Thread(target=serve_late)
    other.start()
    try:
        assert connect().socket_path == path
    finally:
        found.set()
        other.join()


def test_a_wait_for_a_starting_gate_can_be_given_up(
    runtime: Path, interpreter: Callable[[str], None]
) -> None:
    """An interrupted cell does not wait for the gate that it has asked for."""
    pid = runtime / "pid"
    interpreter(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60")
    with pytest.raises(GateUnreachable, match="given up"):
        connect(give_up=pid.exists)
    end(int(pid.read_text(encoding="utf-8")))
