"""Chooses the gate's state directory: private, and on a disk of this machine.

The journal's locks and its memory-mapped log hold on a local file system only.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

from jupyter_gpugate.places import lock_folders, make_private, state_folders

#: The ``statfs`` types of file systems that other machines write to, or may write to.
NETWORK_TYPES: Final = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x01021997: "9P",
    0x65735546: "FUSE",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0xAAD7AAEA: "PanFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0xBACBACBC: "a shared folder",
    0x786F4256: "a shared folder",
}

_libc = ctypes.CDLL(None, use_errno=True)


def network_file_system(path: Path) -> str | None:
    """Name the network file system that ``path`` is or would be on; None for a local disk.

    Raises `OSError` where the file system cannot be asked.
    """
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return NETWORK_TYPES.get(file_system_type(there))


def file_system_type(path: Path) -> int:
    """Return the magic number of the file system that holds ``path``."""
    answer = (ctypes.c_long * 64)()  # a struct statfs begins with its f_type and is far smaller
    if _libc.statfs(os.fsencode(path), answer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return answer[0] & 0xFFFFFFFF


def state_directory() -> Path:
    """Make and return this user's directory for the journal and the lock, mode 0700.

    ``$XDG_STATE_HOME/gpugate``, else ``~/.local/state/gpugate``, where that is a local disk of the
    user's own; else ``/var/tmp/gpugate-UID``.  Raises `PermissionError` where the last one is not
    this user's.
    """
    *preferred, fallback = state_folders()
    for directory in preferred:
        try:
            if _is_usable(directory):
                return directory
        except OSError:
            continue  # no home, a full or a read-only one: the next place will do
    make_private(fallback, "another state directory")
    return fallback


def lock_directory() -> Path:
    """Make and return the directory of this user's lock, which no setting moves.

    The default state directory if the home is on a local disk, else the first place that no other
    user has taken.  Raises `PermissionError` where none is left.
    """
    fault: OSError = PermissionError(errno.EACCES, "no directory can hold the lock of the gate")
    for directory in lock_folders():
        try:
            if _is_usable(directory):
                return directory
        except OSError as error:
            fault = error
    raise fault


def _is_usable(directory: Path) -> bool:
    """Make a directory on a local disk; return whether it can be written to."""
    if network_file_system(directory) is not None:
        return False
    make_private(directory, "another state directory")
    return os.access(directory, os.W_OK)
