"""Where a user's own socket, runs and records lie."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

SOCKET_VARIABLE = "GPUGATE_USER_SOCKET"
#: The kernel's limit on the path of a unix socket.
LONGEST_SOCKET_PATH = 107


class UnsafePath(RuntimeError):
    """A directory that must be the user's own is not."""


def user_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """The path of this user's socket; its directory exists, 0700, and is the user's own."""
    explicit = environ.get(SOCKET_VARIABLE)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if explicit:
        path = Path(explicit)
    elif runtime and Path(runtime).is_dir():
        path = Path(runtime, "gpugate", "gpugate.sock")
    else:
        path = Path(f"/tmp/gpugate-{os.getuid()}", "gpugate.sock")  # noqa: S108 - owner is checked
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise UnsafePath(
            f"{path} is too long for a socket ({LONGEST_SOCKET_PATH} bytes): set {SOCKET_VARIABLE}"
        )
    own_directory(path.parent)
    return path


def own_directory(path: Path) -> Path:
    """Make a directory of mode 0700, or check that the one there is the user's own."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UnsafePath(f"{path} is not a directory of yours: remove it, or set {SOCKET_VARIABLE}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def runs_directory() -> Path:
    """Where run directories lie unless a trait says otherwise."""
    return Path(jupyter_data_dir()) / "gpugate" / "runs"
