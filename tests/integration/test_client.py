"""The client finds its own user's gate, trusts no other, and starts one where there is none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.client import connection as clients
from jupyter_gpugate.client import discovery, gate_record
from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.gate.lock import user_lock
from jupyter_gpugate.places import SERVER_VARIABLE, SOCKET_VARIABLE
from jupyter_gpugate.proc import RUN_MODULE
from jupyter_gpugate.server.paths import UnsafePath, user_socket
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


# -- asking -----------------------------------------------------------------------------------


def test_a_refusal_keeps_the_gates_words_and_numbers(gate: GateStandIn) -> None:
    """What the gate says about a bad request reaches the caller whole; a person does not get the
    name of a field of the HTTP interface.
    """
    detail = {"field": "hints.ram_bytes", "limit_bytes": 24}
    body = {"error": "bad_input", "message": "hints.ram_bytes: needs more", "detail": detail}
    gate.refusals[("POST", "/runs")] = (400, body)
    with pytest.raises(GateError) as refusal:
        connect(start=False).submit({"name": "x"})
    assert refusal.value.message == "hints.ram_bytes: needs more"
    assert str(refusal.value) == "needs more"
    assert (refusal.value.code, refusal.value.status) == ("bad_input", 400)
    assert refusal.value.detail == detail


def test_a_gate_in_trouble_says_so_at_once(gate: GateStandIn) -> None:
    """A full disk is told to the user, not retried in silence."""
    body = {"error": "disk", "message": "the disk is full", "detail": {}}
    gate.refusals[("POST", "/runs")] = (503, body)
    with pytest.raises(GateUnreachable, match="the disk is full"):
        connect(start=False).submit({"name": "x"})
    assert len(gate.bodies("/runs")) == 1


def test_a_submit_whose_answer_was_lost_queues_one_run(gate: GateStandIn) -> None:
    """The repeated request carries the same key, so that the run is there once."""
    cut = threading.Event()

    def lose_the_first(_body: object) -> dict[str, str]:
        if not cut.is_set():
            cut.set()
            gate.refusals[("POST", "/runs")] = (0, None)
        return {}

    gate.on_submit = lose_the_first

    def mend() -> None:
        gate.wait_for(lambda: len(gate.bodies("/runs")) > 1)
        gate.refusals.clear()

    mended = threading.Thread(target=mend)
    gate.refusals[("POST", "/runs")] = (0, None)
    mended.start()
    answer = connect(start=False).submit({"name": "x", "idempotency_key": "k"})
    mended.join()
    assert list(gate.runs) == [answer["run_id"]]
    assert {body["idempotency_key"] for body in gate.bodies("/runs")} == {"k"}


def test_a_submit_that_takes_long_is_told_how_far_it_is(gate: GateStandIn) -> None:
    """It is asked for again under its key until it is a run."""
    told: list[str] = []
    reading = (202, {"run_id": None, "status": "reading"})
    gate.refusals[("POST", "/runs")] = reading

    def go_on(status: str) -> None:
        told.append(status)
        gate.refusals.clear()

    answer = connect(start=False).submit({"name": "x", "idempotency_key": "k"}, told=go_on)
    assert (told, list(gate.runs)) == (["reading"], [answer["run_id"]])
    assert len(gate.bodies("/runs")) >= 2


def test_a_gate_that_falls_silent_while_it_reads_is_told_as_such(
    gate: GateStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is left with a bare time-out: what was being done is said first."""
    monkeypatch.setattr(clients, "_PATIENCE_S", 0.0)
    gate.refusals[("POST", "/runs")] = (202, {"run_id": None, "status": "reading"})

    def fall_silent(_status: str) -> None:
        gate.refusals[("POST", "/runs")] = (0, None)

    with pytest.raises(GateUnreachable, match=r"still reading your sources \(\d+ s\)"):
        connect(start=False).submit({"name": "x", "idempotency_key": "k"}, told=fall_silent)


def test_an_unchanged_run_is_not_sent_again(gate: GateStandIn) -> None:
    """A look with the tag of what is known comes back empty until something has changed."""
    gate.put(RUN, status="queued")
    client = connect(start=False)
    first = client.run(RUN)
    assert first.body is not None
    assert client.run(RUN, wait_s=0.01, etag=first.etag).body is None
    gate.put(RUN, status="active")
    changed = client.run(RUN, wait_s=PATIENCE_S, etag=first.etag)
    assert changed.body is not None
    assert changed.body["status"] == "active"


def test_an_id_is_data_in_the_address(gate: GateStandIn) -> None:
    """Whatever is passed for an id names one run and cannot reach another route."""
    with pytest.raises(GateError, match="there is no run"):
        connect(start=False).run("../queue?x=1")
    assert gate.asked[-1].path == "/runs/../queue?x=1"


def test_a_closed_client_asks_no_more(gate: GateStandIn) -> None:
    """After close nothing is sent."""
    client = connect(start=False)
    client.close()
    with pytest.raises(GateUnreachable, match="closed"):
        client.queue()
    assert gate.asked == []


def test_a_gate_that_went_away_is_unreachable(gate: GateStandIn) -> None:
    """A closed socket is an answer of its own kind: the request may be repeated."""
    client = connect(start=False)
    gate.close()
    with pytest.raises(GateUnreachable, match=r"no gate (answers|in)"):
        client.queue()


def test_pauses_between_tries_grow_to_five_seconds() -> None:
    """A gate that comes back is not met by a storm."""
    pauses = clients.Pauses()
    taken = [pauses.next() for _ in range(7)]
    assert taken == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


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
