"""The lock of a user: one gate per user and home, whatever the settings."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.gate import kernel_name
from jupyter_gpugate.gate.lock import user_lock
from tests.integration.lock_holders import Process, Starts


@pytest.fixture
def start() -> Iterator[Starts]:
    """Start other processes, and end them with the test."""
    with ExitStack() as ending:

        def starting(script: str, *arguments: str) -> Process:
            process = Process(script, *arguments)
            ending.callback(process.kill)
            return process

        yield starting


# -- the lock of a user ---------------------------------------------------------------------------


USER = """
import os, sys
from jupyter_gpugate.gate.lock import user_lock
if sys.argv[1]:
    os.setuid(int(sys.argv[1]))
lock = user_lock()
print(lock.acquire(), lock.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the user a home of this test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.usefixtures("home")
def test_a_leader_with_a_full_line_of_callers_is_still_the_leader(start: Starts) -> None:
    """A stopped gate that nobody can call any more is not taken for a stranger, file or no file."""
    lock = user_lock()
    assert lock.acquire()
    assert lock.listener is not None
    lock.listener.listen(0)
    callers = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    for caller in callers:
        caller.settimeout(0)
        with suppress(BlockingIOError):
            caller.connect(kernel_name.address_of(lock.name))
    lock.path.unlink()

    assert start(USER, "").answer.startswith("False")

    for caller in callers:
        caller.close()
    lock.release()


@pytest.mark.parametrize(
    "variable", ["XDG_STATE_HOME", "XDG_RUNTIME_DIR", "GPUGATE_USER_SOCKET", "JUPYTER_DATA_DIR"]
)
@pytest.mark.usefixtures("home")
def test_no_setting_lets_a_user_have_two_gates(
    variable: str, tmp_path: Path, start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is that of the user, wherever state, socket and runs are told to lie."""
    assert start(USER, "").answer.startswith("True")

    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))

    assert not user_lock().acquire()


def test_a_home_by_two_names_is_one_home(
    home: Path, start: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another home, as in a container, has a gate of its own; a link to the same has not."""
    home.mkdir()
    assert start(USER, "").answer.startswith("True")
    home.with_name("link").symlink_to(home)

    monkeypatch.setenv("HOME", str(home.with_name("link")) + "/")
    assert not user_lock().acquire()

    monkeypatch.setenv("HOME", str(home.with_name("another")))
    lock = user_lock()
    assert lock.acquire()
    lock.release()


@pytest.mark.usefixtures("home")
def test_a_lock_file_that_was_removed_is_made_anew(start: Starts) -> None:
    """A cleaner of old files takes neither the lock nor what is recorded in it for long."""
    lock = user_lock()
    assert lock.acquire()
    lock.record("here")
    assert not lock.renew()
    shutil.rmtree(lock.path.parent)

    assert lock.renew()

    assert user_lock().recorded() == "here"
    assert start(USER, "").answer.startswith("False")
    lock.release()
    assert user_lock().recorded() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_squatted_directory_keeps_nobody_from_the_lock(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user whose home will not do passes over a directory that a stranger has taken first."""
    home.write_text("no directory")
    squatted, free = tmp_path / "var-tmp", tmp_path / "tmp"
    monkeypatch.setattr(places, "FALLBACK", squatted)
    monkeypatch.setattr(places, "SPARE", (free,))
    (squatted / "gpugate-0").mkdir(parents=True)
    os.chown(squatted / "gpugate-0", 12345, 12345)

    lock = user_lock()

    assert lock.path.parent == free / "gpugate-0"
    assert lock.acquire()
    lock.release()
    os.chown(free / "gpugate-0", 12345, 12345)
    with pytest.raises(PermissionError, match="move it away"):
        user_lock()
