"""The client finds its own user's gate and trusts no other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.client import discovery, gate_record
from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.gate.lock import user_lock
from jupyter_gpugate.places import SERVER_VARIABLE, SOCKET_VARIABLE
from jupyter_gpugate.server.paths import UnsafePath, user_socket
from tests.kit.gate_stand_in import GateStandIn, gate_at


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


def test_the_socket_in_the_runtime_folder_is_found(gate: GateStandIn) -> None:
    """Without any setting the session's runtime folder is where the gate is."""
    assert connect(start=False).socket_path == gate.socket_path


def test_what_the_server_told_its_kernel_comes_first(
    gate: GateStandIn, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel goes to the gate that its own Jupyter server named."""
    named = runtime / "named" / "gpugate.sock"
    monkeypatch.setenv(SOCKET_VARIABLE, str(named))
    monkeypatch.setenv(SERVER_VARIABLE, str(named))
    with gate_at(named):
        assert connect(start=False).socket_path == named
    assert connect(start=False).socket_path == gate.socket_path


def test_a_dead_socket_is_passed_over(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket file that nobody listens on any more does not hide the gate that lives."""
    left = runtime / "left" / "gpugate.sock"
    left.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    monkeypatch.setenv(SOCKET_VARIABLE, str(left))
    monkeypatch.setenv(SERVER_VARIABLE, str(left))
    with gate_at(runtime / "in-tmp" / "gpugate.sock") as gate:
        assert connect(start=False).socket_path == gate.socket_path


@pytest.mark.parametrize("named", ["gpugate.sock", "~/gpugate.sock", "./gpugate.sock"])
def test_a_socket_is_named_by_an_absolute_path(
    named: str, gate: GateStandIn, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is refused before a gate is started."""
    monkeypatch.chdir(runtime)
    monkeypatch.setenv(SOCKET_VARIABLE, named)
    with pytest.raises(GateError, match=f"{SOCKET_VARIABLE}: .* is not an absolute path"):
        connect()
    with pytest.raises(UnsafePath, match=f"{SOCKET_VARIABLE}: .* is not an absolute path"):
        user_socket()
    assert not list(runtime.glob("*.log"))
    assert gate.asked == []


def test_a_socket_path_that_is_too_long_names_the_limit(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice is a shorter path, and not to set the variable, which is set already."""
    monkeypatch.setenv(SOCKET_VARIABLE, str(runtime / ("a" * 107)))
    shorter = rf"the limit is 107\): set {SOCKET_VARIABLE} to a shorter path"
    with pytest.raises(UnsafePath, match=shorter):
        user_socket()


@pytest.mark.parametrize("named", ["missing", "dead", "anothers", "open", "no folder"])
def test_a_socket_that_the_user_named_is_the_gates_or_an_error(
    named: str, gate: GateStandIn, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who names a socket is shown the gate behind another one; the error says who named it,
    and advises nothing that would close a shared folder.
    """
    path = runtime / "named" / "gpugate.sock"
    if named != "no folder":
        path.parent.mkdir(mode=0o755 if named == "open" else 0o700)
    if named == "dead":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    if named == "anothers":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder to somebody else")
        os.chown(path.parent, 65534, 65534)
    monkeypatch.setenv(SERVER_VARIABLE, str(gate.socket_path))
    monkeypatch.setenv(SOCKET_VARIABLE, str(path))
    with pytest.raises(GateError, match=f"^{SOCKET_VARIABLE}: .*{runtime}") as refused:
        connect()
    assert "chmod" not in str(refused.value)
    assert gate.asked == []


@pytest.mark.usefixtures("runtime")
def test_the_name_that_the_kernel_keeps_leads_to_the_gate() -> None:
    """A gate whose every file is gone is reached by the name that it listens on as well."""
    lock = user_lock()
    assert lock.acquire()
    try:
        assert discovery.find() is None  # it starts, and answers nobody yet
        lock.record("{}")
        found = discovery.find()
        assert found is not None
        assert [found] == gate_record.kept_by_the_kernel()
        discovery.dial(found, 60).close()
    finally:
        lock.release()
    with pytest.raises(GateUnreachable, match="no gate answers"):
        discovery.dial(found, 60)


def test_the_gate_is_found_by_the_record_in_its_lock(runtime: Path) -> None:
    """What a gate has written down leads to it from wherever a client was started."""
    lock = user_lock()
    assert lock.acquire()
    try:
        with gate_at(runtime / "elsewhere" / "gpugate.sock") as gate:
            lock.record(json.dumps({"socket": str(gate.socket_path), "place": "/gone/by/now"}))
            assert connect(start=False).socket_path == gate.socket_path
            assert gate_record.places() == [Path("/gone/by/now")]
    finally:
        lock.release()


@pytest.mark.parametrize(
    "text", ["", "x", "x\n[]", "x\n{", 'x\n{"socket": 1}', 'x\n{"socket": "x"}']
)
@pytest.mark.usefixtures("runtime")
def test_a_lock_that_names_no_socket_is_passed_over(text: str) -> None:
    """Whatever stands in the file, the answer is that there is no gate."""
    lock = user_lock()
    lock.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock.path.write_text(text)
    assert discovery.find() is None
    lock.path.unlink()


@pytest.mark.usefixtures("runtime")
def test_without_any_gate_the_answer_says_how_to_get_one() -> None:
    """A client that may not start a gate says what would."""
    with pytest.raises(GateUnreachable, match="jupyter gpugate serve --user"):
        connect(start=False)


def test_the_gate_is_found_by_what_it_wrote_down(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another runtime folder, or a squatted one in its place, locks nobody out of their gate."""
    record = runtime / "state" / "socket"
    record.parent.mkdir()
    with gate_at(runtime / "elsewhere" / "gpugate.sock") as gate:
        record.write_text(f"{gate.socket_path}\n", encoding="utf-8")
        assert connect(start=False).socket_path == gate.socket_path
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        (runtime / "in-tmp").mkdir(mode=0o755)
        assert connect(start=False).socket_path == gate.socket_path


@pytest.mark.parametrize("named", ["", "relative/gpugate.sock", "\0", "\n/x\0y"])
def test_a_record_that_names_no_socket_is_passed_over(runtime: Path, named: str) -> None:
    """Whatever stands in the file, the answer is that there is no gate."""
    (runtime / "state").mkdir()
    (runtime / "state" / "socket").write_text(named, encoding="utf-8")
    with pytest.raises(GateUnreachable, match="no gate is running"):
        connect(start=False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_a_record_of_another_user_is_not_followed(runtime: Path) -> None:
    """Nobody is led to a socket by somebody else's word, nor by a link."""
    record = runtime / "state" / "socket"
    record.parent.mkdir()
    with gate_at(runtime / "elsewhere" / "gpugate.sock") as gate:
        record.write_text(str(gate.socket_path), encoding="utf-8")
        os.chown(record, 65534, 65534)
        assert discovery.find() is None
        os.chown(record, 0, 0)
        assert discovery.find() == gate.socket_path
        record.rename(runtime / "moved")
        record.symlink_to(runtime / "moved")
        assert discovery.find() is None


def test_a_folder_that_others_can_enter_is_not_trusted(gate: GateStandIn) -> None:
    """Anybody could have put a socket there: the client says what to do instead of using it."""
    gate.socket_path.parent.chmod(0o755)
    with pytest.raises(GateError, match="chmod 700"):
        connect(start=False)


def test_a_link_in_place_of_the_folder_is_not_followed(gate: GateStandIn, runtime: Path) -> None:
    """A planted link leads nowhere, even to a gate of one's own."""
    real = gate.socket_path.parent
    real.rename(runtime / "moved")
    real.symlink_to(runtime / "moved")
    try:
        with pytest.raises(GateError, match="is not a directory"):
            connect(start=False)
    finally:
        real.unlink()
        (runtime / "moved").rename(real)


LISTEN_AS_NOBODY = """\
import os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o666)
    os.setuid(65534)
    listener.listen()
    print("listening", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a listener of another user")
def test_a_listener_of_another_user_is_not_trusted(runtime: Path) -> None:
    """A socket in the right place that somebody else serves is sent nothing."""
    path = runtime / "gpugate" / "gpugate.sock"
    path.parent.mkdir(mode=0o700)
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN_AS_NOBODY, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"listening\n"
        with pytest.raises(GateError, match="runs under uid 65534, not under yours"):
            Client(path).submit({"name": "x", "environment": {"KEY": "secret"}})
        stranger.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_another_user_is_not_trusted(gate: GateStandIn) -> None:
    """A squatted folder is named with its owner."""
    os.chown(gate.socket_path.parent, 65534, 65534)
    with pytest.raises(GateError, match="belongs to user 65534"):
        connect(start=False)
