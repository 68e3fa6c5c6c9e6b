"""How a gate is reached while its socket comes and goes, and who is let go when too many call."""

from __future__ import annotations

import asyncio
import getpass
import http.client
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from jupyter_gpugate.client import discovery
from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.runs.lease_client import UnixClient
from jupyter_gpugate.server import doors
from tests.integration.gate_processes import Gate, Starts, state, submitted
from tests.kit.real_server import PATIENCE_S, Places, Served, until


@pytest.fixture
def start(places: Places) -> Iterator[Starts]:
    """Start gates of one user."""
    started: list[Gate] = []

    def begin(*before: str, **environ: str) -> Gate:
        started.append(Gate(places, *before, **environ))
        return started[-1]

    yield begin
    for gate in started:
        gate.process.kill()
        gate.process.wait()


def held(release: Path) -> str:
    """A cell that lasts until a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.05)"


# -- the socket that goes away --------------------------------------------------------------------


def unlink(places: Places) -> None:
    """A cleaner takes the socket."""
    places.socket.unlink()


def remove_folder(places: Places) -> None:
    """A cleaner takes the folder with it."""
    shutil.rmtree(places.socket.parent)


def remove_session(places: Places) -> None:
    """The whole runtime directory goes, and nothing can be made in its place."""
    shutil.rmtree(places.runtime)


def replace_by_dead_socket(places: Places) -> None:
    """Somebody else has listened there, and does so no more."""
    places.socket.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(places.socket))


@pytest.mark.parametrize(
    "remove",
    [unlink, remove_folder, remove_session, replace_by_dead_socket],
    ids=lambda remove: str(remove.__name__),
)
def test_a_gate_whose_socket_goes_away_is_still_reached(
    remove: Callable[[Places], None], places: Places, start: Starts, tmp_path: Path
) -> None:
    """Old and new clients come through, a wait in flight is answered, the run ends as usual, and a
    session that begins anew finds the socket at its place.
    """
    gate = start()
    client = gate.client()
    assert client.socket_path == places.socket
    run_id = submitted(client, held(tmp_path / "release"))
    until(lambda: state(client, run_id).get("phase") == "running", "it runs")
    with discovery.dial(places.socket, PATIENCE_S) as line:
        waiting = http.client.HTTPConnection("localhost")
        waiting.sock = line
        etag = client.run(run_id).etag
        waiting.request("GET", f"/gpugate/api/v1/runs/{run_id}?wait=60&etag={etag}")

        remove(places)

        found = until(gate.find, "the gate is found")
        again = submitted(Client(found), "print('again')")
        until(lambda: state(Client(found), again)["status"] == "ended", "the next run ends")
        (tmp_path / "release").touch()
        until(lambda: state(Client(gate.find() or found), run_id)["status"] == "ended", "it ends")
        assert state(Client(gate.find() or found), run_id)["end"] == "completed"
        assert waiting.getresponse().status == 200
    places.runtime.mkdir(mode=0o700, exist_ok=True)
    until(lambda: gate.find() == places.socket, "the socket is at its place")
    assert places.socket.parent.stat().st_mode & 0o777 == 0o700
    gate.process.send_signal(signal.SIGTERM)
    assert gate.process.wait(PATIENCE_S) == 0
    assert not places.socket.exists()


def test_a_gate_that_ends_leaves_anothers_socket(places: Places, start: Starts) -> None:
    """What lies at the place of its socket by then is removed by nobody else."""
    gate = start()
    gate.client()
    gate.process.send_signal(signal.SIGSTOP)
    places.socket.unlink()
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(str(places.socket))
        another.listen()
        gate.process.terminate()
        gate.process.send_signal(signal.SIGCONT)
        gate.process.wait(PATIENCE_S)
        assert places.socket.exists()


def test_gates_of_two_homes_do_not_fight_for_one_socket(
    places: Places, start: Starts, tmp_path: Path
) -> None:
    """The second listens beside the first, each client comes to the gate of its own home, and the
    usual place is taken once it is free.
    """
    other = tmp_path / "other-home"
    other.mkdir()
    first = start()
    assert first.client().socket_path == places.socket
    own = places.socket.stat().st_ino
    second = start(HOME=str(other), XDG_STATE_HOME=str(other / "state"))
    beside = until(lambda: (at := second.find()) != places.socket and at, "the second gate listens")
    assert beside.parent == places.socket.parent
    assert places.socket.stat().st_ino == own
    assert first.find() == places.socket
    first.process.terminate()
    first.process.wait(PATIENCE_S)
    until(lambda: second.find() == places.socket, "it has moved")
    assert not beside.exists()


# -- one gate, whatever the settings --------------------------------------------------------------


@pytest.mark.parametrize(
    "variable", ["XDG_STATE_HOME", "XDG_RUNTIME_DIR", "GPUGATE_USER_SOCKET", "JUPYTER_DATA_DIR"]
)
def test_a_second_gate_with_other_settings_gives_way(
    variable: str, places: Places, start: Starts
) -> None:
    """It ends, and says once which settings are in force; its own terminals find the first one, or
    are told that the socket that they name is not the gate's.
    """
    first = start()
    client = first.client()
    (places.runtime / "other").mkdir(mode=0o700)
    named = variable == "GPUGATE_USER_SOCKET"
    elsewhere = places.runtime / "other" / "x.sock" if named else places.runtime / "other"
    second = start(**{variable: str(elsewhere)})
    assert second.process.wait(PATIENCE_S) == 0
    assert second.said().count("runs with other settings") == 1
    assert str(elsewhere) in second.said()
    assert client.queue()["owner"] == getpass.getuser()
    assert second.find() == (None if named else places.socket)
    assert (variable in second.refusal) == named
    assert first.process.poll() is None


def test_a_server_with_other_settings_forwards_and_takes_over(
    places: Places, start: Starts, tmp_path: Path
) -> None:
    """Its pages show the first gate's runs; when that one ends, it hosts the gate by its own
    settings, and the first one's end takes nothing along.
    """
    gate = start(GPUGATE_USER_SOCKET=str(places.runtime / "gpugate" / "other.sock"))
    client = gate.client()
    run_id = submitted(client, held(tmp_path / "release"))
    state_directory = tmp_path / "configured"
    server = Served(places, f"--GpuGate.state_directory={state_directory}")
    try:
        assert server.run(run_id)["status"] in ("queued", "active")
        assert "runs with other settings" in server.log.read_text()
        gate.process.terminate()
        gate.process.wait(PATIENCE_S)
        until(places.socket.exists, "the server listens")
        until(lambda: server.ask("GET", "/queue").status == 200, "the server answers")
        (tmp_path / "release").touch()
        assert server.ended(run_id)["end"] == "completed"
        assert (state_directory / "gate.sqlite").exists()
    finally:
        server.stop()


def test_a_server_that_hosts_the_gate_needs_no_socket(places: Places) -> None:
    """With every way to its socket gone and none that can be made, the pages are answered."""
    server = Served(places)
    try:
        assert server.queue()["tick"]
        shutil.rmtree(places.runtime)
        places.runtime.write_text("no directory")
        completed = server.completed("x", "print(1)", gpus=0)
        assert completed["end"] == "completed"
    finally:
        server.stop()
        places.runtime.unlink()


# -- places that are not the user's ---------------------------------------------------------------


@pytest.mark.parametrize(("mode", "names"), [(0o1777, "open"), (0o755, "open"), (0o2775, "open")])
def test_a_folder_that_a_socket_is_named_in_keeps_its_mode(
    mode: int, names: str, places: Places, start: Starts
) -> None:
    """Others may be at home there: gate and client refuse, name the setting, and change nothing."""
    shared = places.runtime / "shared"
    shared.mkdir()
    shared.chmod(mode)
    gate = start(GPUGATE_USER_SOCKET=str(shared / "x.sock"))
    assert gate.process.wait(PATIENCE_S) == 1
    assert "GPUGATE_USER_SOCKET" in gate.said()
    assert names in gate.said()
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpugate", "queue"],
        env=gate.environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "GPUGATE_USER_SOCKET" in done.stderr
    assert "chmod" not in done.stderr
    assert list(shared.iterdir()) == []
    assert shared.stat().st_mode & 0o7777 == mode


def test_the_process_of_a_gate_reaches_it_without_a_socket(places: Places) -> None:
    """While it listens nowhere at all, what it serves in its own process is answered."""

    async def body() -> None:
        places.socket.parent.mkdir(mode=0o700)
        application = Application([("/x", RequestHandler)])
        own = doors.Doors(doors.GateServer(application), places.socket, "0" * 64)
        own.open(None)
        own.close()

        async def dial() -> IOStream:
            return own.inside()

        client = UnixClient(dial)
        answer = await client.fetch("/x", request_timeout=PATIENCE_S)
        assert answer.code == 405
        client.close()

    asyncio.run(body())
