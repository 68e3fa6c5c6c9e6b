"""Who is the gate: one process at a time holds the lock of a state directory."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from jupyter_gpugate.gate.clock import boot_id


class LockHolder(NamedTuple):
    """The process that holds the lock."""

    boot_id: str
    pid: int
    start_ticks: int


class GateLock:
    """The right to be the gate of ``path``'s directory, until `release` or this process's end.

    A locked file alone would let a second gate in once somebody removes it, so a name in the
    kernel that no file stands for is taken too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._name: socket.socket | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free; return whether this object holds it.

        Raises `OSError` where the file cannot be made.
        """
        if self._descriptor is not None:
            return True
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _lock_file(self._path)
        if descriptor is None:
            return False
        try:
            taken = self._take_name()
            if taken:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, _own_text().encode(), 0)
        except OSError:
            os.close(descriptor)
            raise
        if not taken:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it could remove another's."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
        if self._name is not None:
            self._name.close()
            self._name = None

    def holder(self) -> LockHolder | None:
        """Return the living process that wrote itself down as holder; None if there is none."""
        try:
            boot, pid, ticks = self._path.read_text(encoding="ascii").split()
            found = LockHolder(boot, int(pid), int(ticks))
            alive = boot_id() == boot and _start_ticks(found.pid) == found.start_ticks
        except (OSError, ValueError):
            return None
        return found if alive else None

    def _take_name(self) -> bool:
        """Take the name; go without it where a stranger does, since anybody may take any name."""
        name = self._name_of_kernel()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(name)
            listener.listen(1)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return _is_strangers(name)
        self._name = listener
        return True

    def _name_of_kernel(self) -> bytes:
        digest = hashlib.sha256(os.fsencode(self._path.resolve())).hexdigest()
        return f"\0gpugate-{digest}".encode()


def _lock_file(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Removed between the two calls, it would be a lock that nobody else looks at.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _is_strangers(name: bytes) -> bool:
    """Return whether another user's process listens under the name; root's is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            return True  # a gate always listens
        except OSError:
            return False  # too many wait in line: nobody answers a gate's name either
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid not in {0, os.geteuid()}


def _own_text() -> str:
    return f"{boot_id()} {os.getpid()} {_start_ticks(os.getpid())}\n"


def _start_ticks(pid: int) -> int:
    # The command's name, in brackets, may hold anything; the start is the 20th field behind it.
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[19])
