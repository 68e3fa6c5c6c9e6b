"""Makes and checks the place of the user's own socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jupyter_gpugate.places import (
    LONGEST_SOCKET_PATH,
    SERVER_VARIABLE,
    SOCKET_NAME,
    SOCKET_VARIABLE,
    check_own,
    make_private,
    runtime_folder,
)


class UnsafePath(RuntimeError):
    """A path cannot be that of the user's socket."""


def user_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of this user's socket; its directory exists and is the user's alone."""
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
    path = runtime_folder(environ) / SOCKET_NAME
    check_length(path)
    try:
        make_private(path.parent, SOCKET_VARIABLE)
    except PermissionError as error:
        raise UnsafePath(str(error)) from None
    return path


def check_absolute(path: Path) -> None:
    """Raise `UnsafePath` for a relative path, which depends on the working directory."""
    if not path.is_absolute():
        raise UnsafePath(f"{SOCKET_VARIABLE}: {path} is not an absolute path")


def check_length(path: Path) -> None:
    """Raise `UnsafePath` for a path that is too long for a unix socket."""
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET_PATH:
        raise UnsafePath(
            f"{path} is too long for a socket ({size} bytes, the limit is {LONGEST_SOCKET_PATH}): "
            f"set {SOCKET_VARIABLE} to a shorter path"
        )
