"""The gate's lock between real processes: one leader, whatever happens to the file."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jupyter_gpugate.gate import kernel_name
from jupyter_gpugate.gate.lock import GateLock
from jupyter_gpugate.proc import boot_id
from tests.integration.lock_holders import Process, Starts

LEADER = """
import sys, subprocess
from pathlib import Path
from jupyter_gpugate.gate.lock import GateLock
lock = GateLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
for line in sys.stdin:
    if line.strip() == "release":
        lock.release()
    elif line.strip() == "child":
        print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid, flush=True)
        continue
    print("done", flush=True)
"""


SQUATTER = """
import os, socket, sys
os.setuid(12345)
name = socket.socket(socket.AF_UNIX)
address = b"\\0" + bytes.fromhex(sys.argv[1])
name.bind(address)
if sys.argv[2] != "only binds":
    name.listen(0)
callers = []
while sys.argv[2] == "has a full line":
    callers.append(socket.socket(socket.AF_UNIX))
    callers[-1].settimeout(0)
    try:
        callers[-1].connect(address)
    except BlockingIOError:
        break
print("True", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Starts]:
    """Start other processes, and end them with the test."""
    with ExitStack() as ending:

        def starting(script: str, *arguments: str) -> Process:
            process = Process(script, *arguments)
            ending.callback(process.kill)
            return process

        yield starting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a lock in a directory that is not there yet."""
    return tmp_path / "state" / "gate.lock"


def test_one_of_two_processes_leads(path: Path, start: Starts) -> None:
    """The first takes the lock, the second does not, and both can tell who has it."""
    leader = start(LEADER, str(path))
    assert leader.answer == "True"

    second = GateLock(path)

    assert second.acquire() is False
    holder = second.holder()
    assert holder is not None
    assert (holder.boot_id, holder.pid) == (boot_id(), leader.popen.pid)


def test_a_holder_may_ask_again(path: Path) -> None:
    """Taking what one has is no conflict with oneself."""
    lock = GateLock(path)

    assert lock.acquire()
    assert lock.acquire()
    lock.release()


def test_a_directory_made_for_the_lock_is_its_owners_alone(path: Path) -> None:
    """Nobody else looks into it, from the first moment on."""
    lock = GateLock(path.parent / "state" / path.name)
    assert lock.acquire()
    assert (path.parent / "state").stat().st_mode & 0o777 == 0o700
    lock.release()


def test_a_lock_that_was_given_back_is_not_held_any_more(path: Path) -> None:
    """Giving it back again does no harm, and to have it again it has to be free."""
    lock, other = GateLock(path), GateLock(path)
    assert lock.acquire()
    lock.release()
    lock.release()

    assert other.acquire()
    assert not lock.acquire()
    other.release()
    assert lock.acquire()
    lock.release()


def test_a_released_lock_is_free(path: Path, start: Starts) -> None:
    """After its holder gave it back the lock has no holder, and the next one takes it."""
    leader = start(LEADER, str(path))
    leader.ask("release")

    lock = GateLock(path)

    assert lock.holder() is None
    assert lock.acquire()
    lock.release()


def test_a_killed_leader_leaves_a_free_lock(path: Path, start: Starts) -> None:
    """What a dead process wrote into the file keeps nobody out."""
    leader = start(LEADER, str(path))
    leader.kill()

    lock = GateLock(path)

    assert lock.holder() is None
    assert lock.acquire()
    lock.release()


def test_a_leaders_children_do_not_keep_its_lock(path: Path, start: Starts) -> None:
    """A process that the leader started outlives it without holding the lock."""
    leader = start(LEADER, str(path))
    child = int(leader.ask("child"))
    leader.kill()
    lock = GateLock(path)

    try:
        os.kill(child, 0)
        assert lock.acquire()
    finally:
        os.kill(child, signal.SIGKILL)
        lock.release()


def test_a_stopped_leader_is_still_the_leader(path: Path, start: Starts) -> None:
    """A gate that does not answer is not taken over from while it lives."""
    leader = start(LEADER, str(path))
    leader.popen.send_signal(signal.SIGSTOP)

    assert [GateLock(path).acquire() for _ in range(5)] == [False] * 5

    leader.popen.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("removed", ["file", "directory"])
def test_removing_the_file_makes_no_second_leader(path: Path, removed: str, start: Starts) -> None:
    """However often others try, they do not lead while the first process lives."""
    leader = start(LEADER, str(path))
    if removed == "file":
        path.unlink()
    else:
        shutil.rmtree(path.parent)

    assert [GateLock(path).acquire() for _ in range(5)] == [False] * 5

    leader.kill()
    lock = GateLock(path)
    assert lock.acquire()
    lock.release()


def test_a_file_removed_while_it_is_taken_is_not_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file that others can no longer see makes nobody the leader."""
    take = fcntl.flock

    def removed_first(descriptor: int, operation: int) -> None:
        path.unlink()
        take(descriptor, operation)

    lock = GateLock(path)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(fcntl, "flock", removed_first)
        assert not lock.acquire()

    assert lock.acquire()
    lock.release()


def test_two_directories_have_two_leaders(tmp_path: Path) -> None:
    """A lock says nothing about another directory's."""
    locks = [GateLock(tmp_path / name / "gate.lock") for name in ("a", "b")]

    assert [lock.acquire() for lock in locks] == [True, True]

    for lock in locks:
        lock.release()


def test_a_path_through_a_link_is_the_same_lock(tmp_path: Path, start: Starts) -> None:
    """Two names of one directory have one leader."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    start(LEADER, str(tmp_path / "real" / "gate.lock"))
    (tmp_path / "real" / "gate.lock").unlink()

    assert not GateLock(tmp_path / "link" / "gate.lock").acquire()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("how", ["listens", "only binds", "has a full line"])
def test_a_stranger_who_takes_the_name_keeps_nobody_out(
    path: Path, how: str, start: Starts
) -> None:
    """Anybody may take any name: one that is another user's is gone without."""
    lock = GateLock(path)
    address = kernel_name.address_of(lock.name)
    assert start(SQUATTER, address[1:].hex(), how).answer == "True"

    assert lock.acquire()

    assert not GateLock(path).acquire()
    lock.release()


def test_a_link_in_the_place_of_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    """A planted link does not make the gate write elsewhere."""
    path.parent.mkdir()
    path.symlink_to(tmp_path / "victim")

    with pytest.raises(OSError, match="symbolic links"):
        GateLock(path).acquire()

    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("text", ["", "garbage", "a b c", f"{'0' * 36} 1 1\n"])
def test_a_file_that_names_nobody_has_no_holder(path: Path, text: str) -> None:
    """Whatever stands in the file, a holder is a process that lives."""
    path.parent.mkdir()
    path.write_text(text)

    assert GateLock(path).holder() is None
