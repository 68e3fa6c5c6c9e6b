"""The gate's abstract socket: a name that only the kernel keeps, so that it cannot be removed.

Any user may take any name, so a name that another user holds is ignored.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Final

from jupyter_gpugate.places import abstract_path, socket_address
from jupyter_gpugate.proc import peer_of

#: The backlog; the kernel lowers it to its own limit.
BACKLOG: Final = 4096
_LISTENING: Final = 0x10000  # the flag in /proc/net/unix


def address_of(digest: str) -> bytes:
    """Return the socket address of a digest."""
    return socket_address(abstract_path(digest)).encode()


def take(digest: str) -> socket.socket | None:
    """Listen under the name; None if a process of another user holds it.

    Raises `FileExistsError` if a process of this user or of root holds it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address_of(digest))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        if _is_strangers(digest):
            return None
        raise FileExistsError(errno.EEXIST, "another process uses this name", digest) from None
    return listener


def _is_strangers(digest: str) -> bool:
    """Return whether another user's process has the name; root's is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(address_of(digest))
        except ConnectionRefusedError:
            return True  # a gate always listens
        except BlockingIOError:
            return not _is_own(digest)  # its backlog is full, so that it cannot be asked
        return not peer_of(probe).is_trusted


def _is_own(digest: str) -> bool:
    """Return whether a process of this user, or root's, has the listening socket open."""
    ends = {f"socket:[{inode}]" for inode in _listening(digest)}
    return any(_has_open(process, ends) for process in Path("/proc").glob("[0-9]*"))


def _listening(digest: str) -> list[str]:
    """Return the inodes of the sockets that listen under the name."""
    text = abstract_path(digest)
    rows = Path("/proc/self/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = (row.split() for row in rows[1:])
    return [row[6] for row in fields if row[7:] == [text] and int(row[3], 16) & _LISTENING]


def _has_open(process: Path, ends: set[str]) -> bool:
    try:
        if process.stat().st_uid not in {0, os.geteuid()}:
            return False
        return any(str(fd.readlink()) in ends for fd in (process / "fd").iterdir())
    except OSError:
        return False  # gone, or not to be looked into: then it is no gate of this user
