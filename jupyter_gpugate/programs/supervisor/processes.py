"""Processes as the kernel lists them: their identity, their descendants, and signals to them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar


class Proc(NamedTuple):
    """A process of this boot: a pid alone is no identity."""

    pid: int
    ticks: int


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` from the state on; empty when the process is gone."""
    try:  # no `content`: this is read for each process of a tree again and again
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def has_ended(fields: list[bytes]) -> bool:
    """Whether these are the fields of a dead process: state Z is that of its first thread only."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def threads_of(pid: int) -> list[str]:
    """Return the folders of the threads that are left of a process whose first thread has ended.

    Files about its memory, such as ``statm`` and ``environ``, are then empty in its own folder and
    not in theirs.
    """
    fields = stat_fields(pid)
    if not fields or fields[0] not in (b"Z", b"X") or has_ended(fields):
        return []
    with suppress(OSError):
        task = f"/proc/{pid}/task"
        return [f"{task}/{thread}" for thread in os.listdir(task) if thread != str(pid)]
    return []


def content(path: str) -> bytes:
    """Read a file; empty where it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def read_proc(pid: int, name: str) -> bytes:
    """Read a file about the memory of a process; empty where there is nothing to be read."""
    text = content(f"/proc/{pid}/{name}")
    for folder in [] if text else threads_of(pid):
        text = text or content(f"{folder}/{name}")
    return text


def process(pid: int) -> Proc | None:
    """Identify the process that has this pid now; None when there is none."""
    fields = stat_fields(pid)
    return Proc(pid, int(fields[19])) if fields else None


def all_pids() -> list[int]:
    """Return the pids of all processes that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children_of(pid: int) -> list[int]:
    """Return the pids of the children of every thread of a process, where the kernel lists them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as children:
                found += map(int, children.read().split())
    return found


def children_by_parent() -> dict[int, list[int]]:
    """Return the pids by parent pid over the whole process table."""
    table: dict[int, list[int]] = {}
    for pid in all_pids():
        fields = stat_fields(pid)
        if fields:
            table.setdefault(int(fields[1]), []).append(pid)
    return table


#: How often to look for processes that were started while the others were being stopped.
STOPPING_ROUNDS = 20


def descendants(root: int) -> Iterator[Proc]:
    """Yield every process below ``root``, including zombies."""
    lists = os.path.exists("/proc/thread-self/children")
    table = {} if lists else children_by_parent()
    todo = [root]
    while todo:
        pid = todo.pop()
        for child in map(process, children_of(pid) if lists else table.get(pid, [])):
            if child is not None:
                yield child
                todo.append(child.pid)


def is_alive(one: Proc) -> bool:
    """Whether this very process still runs; a zombie does not."""
    fields = stat_fields(one.pid)
    return bool(fields) and int(fields[19]) == one.ticks and not has_ended(fields)


def send(one: Proc, number: int) -> bool:
    """Signal exactly this process; False when it is gone or not ours to signal."""
    handle = None
    with suppress(AttributeError, OSError):  # a Python or a kernel without pidfd
        handle = os.pidfd_open(one.pid)
    try:
        # Read after the handle is open: from here on the handle cannot mean another process.
        if process(one.pid) != one:
            return False
        if handle is None:
            os.kill(one.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


P = TypeVar("P")


def stop_then_kill(find: Callable[[], Iterable[P]], send: Callable[[P, int], object]) -> None:
    """Send SIGKILL to all processes that ``find`` returns; to be repeated, since they may fork.

    They are stopped first.  Processes that fill every free place would otherwise replace each one
    that is killed, for as long as they are faster than this one.
    """
    stopped: set[P] = set()
    for _ in range(STOPPING_ROUNDS):
        new = set(find()) - stopped
        if not new:
            break
        for one in new:
            send(one, signal.SIGSTOP)
        stopped |= new
    for one in {*stopped, *find()}:
        send(one, signal.SIGKILL)


def kill_descendants(root: int) -> None:
    """Send every process below ``root`` SIGKILL; to be repeated."""
    stop_then_kill(lambda: descendants(root), send)


def kill_all(root: int) -> None:
    """Kill and wait until this process, ``root``, has no child left."""
    with suppress(ChildProcessError):
        while True:
            kill_descendants(root)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.02)


def carriers(tag: bytes) -> list[Proc]:
    """Find living processes of this user, except this one, with ``tag`` in their environment."""
    found = []
    for pid in all_pids():
        with suppress(OSError):
            one = process(pid)
            if one is None or pid == os.getpid() or os.stat(f"/proc/{pid}").st_uid != os.getuid():
                continue
            if tag in read_proc(pid, "environ").split(b"\0") and is_alive(one):
                found.append(one)
    return found
