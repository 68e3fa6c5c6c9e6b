"""The lock of the gate: one process at a time holds the lock of a user and of a state directory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jupyter_gpugate.gate import kernel_name
from jupyter_gpugate.gate.journal.local_disk import lock_directory
from jupyter_gpugate.places import gate_name, lock_file, open_private
from jupyter_gpugate.proc import boot_id, start_ticks


class LockHolder(NamedTuple):
    """The process that holds the lock."""

    boot_id: str
    pid: int
    start_ticks: int


class GateLock:
    """The right to be the gate, until `release` or this process's end.

    If only a file were locked, a second gate could start once it is removed.  So an abstract socket
    is held as well: with the given name, else one derived from the file's path.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path = path
        self.name = name or hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
        self.listener: socket.socket | None = None  # under the name; None while a stranger has it
        self._descriptor: int | None = None
        self._record = ""

    def acquire(self) -> bool:
        """Take the lock if it is free; return whether this object holds it.

        Raises `OSError` where the file cannot be made.
        """
        if self._descriptor is not None:
            return True
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _lock_file(self.path)
        if descriptor is None:
            return False
        try:
            self.listener = kernel_name.take(self.name)
            self._write(descriptor)
        except FileExistsError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            self._give_up_name()
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it could remove another's."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
        self._record = ""
        self._give_up_name()

    def renew(self) -> bool:
        """Create the file again if it was removed; return whether that was necessary."""
        if self._descriptor is None or _is_at(self._descriptor, self.path):
            return False
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _lock_file(self.path)
        if descriptor is None:
            return False
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._write(descriptor)
        return True

    def record(self, text: str) -> None:
        """Write a line for clients into the file, beside the holder's identity."""
        self._record = text
        if self._descriptor is not None:
            self._write(self._descriptor)

    def holder(self) -> LockHolder | None:
        """Return the living process that wrote itself down as holder; None if there is none."""
        try:
            boot, pid, ticks = self._lines()[0].split()
            found = LockHolder(boot, int(pid), int(ticks))
            alive = boot_id() == boot and start_ticks(found.pid) == found.start_ticks
        except (OSError, ValueError, IndexError):
            return None
        return found if alive else None

    def recorded(self) -> str:
        """Return the line that the holder has written; "" if there is none."""
        try:
            return self._lines()[1] if self.holder() is not None else ""
        except (OSError, ValueError, IndexError):
            return ""

    def _lines(self) -> list[str]:
        with os.fdopen(open_private(self.path, os.O_RDONLY), encoding="ascii") as file:
            return file.read().splitlines()

    def _write(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{_own_text()}\n{self._record}\n".encode("ascii"), 0)

    def _give_up_name(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None


def user_lock() -> GateLock:
    """Return the lock that only one gate of this user on this machine can hold, with any settings.

    It differs for another home, as in a container, and for another machine, where the pids
    of this one mean nothing.
    """
    name = gate_name()
    return GateLock(lock_directory() / lock_file(name), name)


def _lock_file(path: Path) -> int | None:
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Removed between the two calls, it would be a lock that no other process sees.
        if _is_at(descriptor, path):
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _own_text() -> str:
    return f"{boot_id()} {os.getpid()} {start_ticks(os.getpid())}"
