"""Where a user's own socket, runs and records lie."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

from jupyter_gpugate.gate.journal.local_disk import check_own

SOCKET_VARIABLE = "GPUGATE_USER_SOCKET"
#: A server sets both: while they are equal, the user has not named a socket.
SERVER_VARIABLE = "GPUGATE_SERVER_SOCKET"
#: The kernel's limit on the path of a unix socket.
LONGEST_SOCKET_PATH = 107


class UnsafePath(RuntimeError):
    """A directory that must be the user's own is not."""


def user_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """The path of this user's socket; its directory exists, 0700, and is the user's own."""
    explicit = environ.get(SOCKET_VARIABLE)
    if explicit:
        try:
            check_absolute(Path(explicit))
            check_length(Path(explicit))
            check_own(Path(explicit).parent, SOCKET_VARIABLE, closed=True)
        except (OSError, UnsafePath) as error:
            # A server set it for its kernels, and its folder was removed since: ignore it.
            if explicit != environ.get(SERVER_VARIABLE):
                raise UnsafePath(str(error)) from None
        else:
            return Path(explicit)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    in_session = bool(runtime) and Path(runtime).is_dir()
    path = Path(runtime, "gpugate", "gpugate.sock") if in_session else spare_socket()
    check_length(path)
    own_directory(path.parent)
    return path


def spare_socket() -> Path:
    """Where the socket lies for a session without a runtime directory."""
    return Path(f"/tmp/gpugate-{os.getuid()}", "gpugate.sock")  # noqa: S108 - owner is checked


def check_absolute(path: Path) -> None:
    """Raise `UnsafePath` for a relative path, which depends on the working directory."""
    if not path.is_absolute():
        raise UnsafePath(f"{SOCKET_VARIABLE}: {path} is not an absolute path")


def check_length(path: Path) -> None:
    """Raise `UnsafePath` where the kernel would not take a path for a socket."""
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise UnsafePath(
            f"{path} is too long for a socket ({LONGEST_SOCKET_PATH} bytes): set {SOCKET_VARIABLE}"
        )


def own_directory(path: Path) -> Path:
    """Make a directory of mode 0700, or check that the one there is the user's own."""
    with suppress(FileExistsError):  # something else than a directory, or a link to nowhere
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
