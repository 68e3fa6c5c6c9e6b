"""A gate that somebody needs from within a run belongs to no run."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.client import discovery, enclosing_run
from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateUnreachable
from jupyter_gpugate.proc import start_ticks
from tests.kit.real_server import PATIENCE_S, Places, extensions, until

CLI = str(Path(sys.executable).with_name("jupyter-gpugate"))
SERVER = [
    str(Path(sys.executable).with_name("jupyter-server")),
    "--no-browser",
    "--allow-root",
    "--ServerApp.port=0",
    extensions(),
]


def listener(places: Places) -> int | None:
    """The process behind the user's socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.connect(str(places.socket))
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", credentials)[0])
    return None


def above(pid: int) -> list[int]:
    """The process and all of its ancestors."""
    found = []
    while pid > 0:
        found.append(pid)
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return found


@pytest.mark.parametrize("how", ["clean environment", "serve", "server"])
def test_a_gate_that_a_run_has_need_of_is_no_part_of_it(
    how: str, places: Places, tmp_path: Path
) -> None:
    """Whatever a run starts while there is no gate, the one that comes is below no supervisor, has
    no mark of the run, and outlives it; the run completes.
    """
    environ = places.environ()
    ready, release, done = tmp_path / "ready", tmp_path / "release", tmp_path / "done"
    commands: dict[str, list[Any]] = {
        "clean environment": ["env", "-i", *(f"{k}={v}" for k, v in environ.items()), CLI, "queue"],
        "serve": [CLI, "serve", "--user"],
        "server": SERVER,
    }
    source = f"""\
import os, subprocess, time
open({str(ready)!r}, "w").close()
while not os.path.exists({str(release)!r}): time.sleep(0.05)
started = subprocess.Popen({commands[how]!r}, stdout=subprocess.DEVNULL)
while not os.path.exists({str(done)!r}): time.sleep(0.05)
started.kill()
"""
    command = [sys.executable, "-m", "jupyter_gpugate", "serve", "--user"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, cwd="/") as gate:
        until(lambda: listener(places) == gate.pid, "the gate listens")
        body = {"name": "outer", "source": source, "environment": environ, "gpus": 0}
        run_id = Client(places.socket).submit(body)["run_id"]
        until(ready.exists, "the run runs")
        gate.kill()
    release.touch()

    new = until(lambda: (pid := listener(places)) != gate.pid and pid, "another gate listens")

    tree = json.loads((places.runs / run_id / "attempts" / "1" / "tree.json").read_text())
    assert tree["tree"]
    assert not {pid for pid, _ in (tree["supervisor"], *tree["tree"])} & set(above(new))
    assert b"GPUGATE_RUN_ID" not in Path(f"/proc/{new}/environ").read_bytes()
    done.touch()
    client = Client(places.socket)
    until(lambda: (client.run(run_id).body or {})["status"] == "ended", "the run has ended")
    assert (client.run(run_id).body or {})["end"] == "completed"
    assert listener(places) == new
    assert start_ticks(new) is not None


def test_a_gate_that_cannot_be_outside_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where no supervisor takes the wish up, the answer says how to have a gate."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(discovery, "START_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(enclosing_run, "attempt_above", lambda: tmp_path / "gone")
    with pytest.raises(GateUnreachable, match="start one outside"):
        discovery.start_gate()
    (tmp_path / "attempt").mkdir()
    monkeypatch.setattr(enclosing_run, "TAKEN_S", 0.2)
    monkeypatch.setattr(enclosing_run, "attempt_above", lambda: tmp_path / "attempt")
    with pytest.raises(GateUnreachable, match="start one outside"):
        discovery.start_gate()
    assert list((tmp_path / "attempt").iterdir()) == []
