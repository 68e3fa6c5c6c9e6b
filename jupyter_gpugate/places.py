"""The places of a user's state, lock, sockets and runs, and checks that they are private.

Shared by all processes of the package: standard library only, CPython 3.9.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from jupyter_gpugate.proc import boot_id

#: The user API, below the base URL of a server and on the user's socket.
API_PATH: Final = "/gpugate/api/v1"
#: Set by the server extension; every kernel that it starts inherits it.
SOCKET_VARIABLE: Final = "GPUGATE_USER_SOCKET"
#: A server sets both: while they are equal, the user has not named a socket.
SERVER_VARIABLE: Final = "GPUGATE_SERVER_SOCKET"
SOCKET_NAME: Final = "gpugate.sock"
#: In a state folder: the path of its gate's socket, as text.
SOCKET_RECORD: Final = "socket"
#: The kernel's limit on the path of a unix socket.
LONGEST_SOCKET_PATH: Final = 107
#: Below any data folder: where clients leave the inputs of runs.
STAGING: Final = ("gpugate", "staging")
#: A path that begins like this means an abstract socket, not a file.
ABSTRACT: Final = "@gpugate-"

#: The place of the state if the home is unsuitable; survives a reboot.
FALLBACK: Final = Path("/var/tmp")  # noqa: S108 - the folder below it is private, and checked
#: Places of the lock if neither the home nor the fallback is suitable: lost at a reboot, like it.
SPARE: Final = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - the same holds for the one below it

#: Modes of a folder that let others write to it, or do anything with it.
WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
OPEN: Final = stat.S_IRWXG | stat.S_IRWXO


class NotPrivate(PermissionError):
    """A folder is not this user's alone; ``is_open`` if only its mode is the problem."""

    def __init__(self, folder: Path, problem: str, *, is_open: bool = False) -> None:
        super().__init__(f"{folder} {problem}")
        self.problem = problem
        self.is_open = is_open


# -- names -----------------------------------------------------------------------------------------


def home() -> str:
    """Return the real path of this user's home; "" for a user without one."""
    try:
        return os.path.realpath(Path.home())
    except RuntimeError:
        return ""


def gate_name() -> str:
    """Name the one gate that this user has on this machine, whatever its settings."""
    parts = (boot_id(), str(os.geteuid()), home())
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def lock_file(name: str) -> str:
    """Name the file that is locked for the gate of this name."""
    return f"gate-{name[:16]}.lock"


def abstract_path(name: str) -> str:
    """Return the path that denotes the abstract socket of the gate of this name."""
    return f"{ABSTRACT}{name}"


def socket_address(path: str) -> str:
    """Return the address of the socket with this path, which may denote an abstract one."""
    return f"\0{path[1:]}" if path.startswith(ABSTRACT) else path


# -- folders ---------------------------------------------------------------------------------------


def in_shared(folder: Path) -> Path:
    """Name this user's folder in one that all users share."""
    return folder / f"gpugate-{os.geteuid()}"


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's socket: the session's runtime folder, else one in /tmp."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime, "gpugate")
    return spare_runtime_folder()


def spare_runtime_folder() -> Path:
    """Return the folder of the socket for a session without a runtime folder."""
    return in_shared(SPARE[0])


def state_folders(environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the folders where a gate keeps its state unless a setting says otherwise."""
    state_home = Path(environ.get("XDG_STATE_HOME", ""))
    if state_home.is_absolute():
        yield state_home / "gpugate"
    yield from _state_at_home()
    yield in_shared(FALLBACK)


def lock_folders() -> Iterator[Path]:
    """Yield the folders for the lock of this user, which no setting moves."""
    yield from _state_at_home()
    yield from map(in_shared, (FALLBACK, *SPARE))


def data_folder() -> Path:
    """Return Jupyter's data folder, also where jupyter_core is not installed."""
    with contextlib.suppress(ImportError):
        from jupyter_core.paths import jupyter_data_dir

        return Path(jupyter_data_dir())
    explicit = os.environ.get("JUPYTER_DATA_DIR")
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(explicit) if explicit else Path(share, "jupyter")


def runs_folder() -> Path:
    """Return the folder of all runs unless a setting says otherwise."""
    return data_folder() / "gpugate" / "runs"


def staging_folder() -> Path:
    """Return the folder in which a client leaves the inputs of runs."""
    return data_folder().joinpath(*STAGING)


def _state_at_home() -> Iterator[Path]:
    own = home()
    if own:
        yield Path(own, ".local", "state", "gpugate")


# -- checks ----------------------------------------------------------------------------------------


def check_private(folder: Path, refused: int, *, follow: bool = True) -> None:
    """Check that a folder is this user's and has none of the ``refused`` modes.

    Raises `NotPrivate`, or another `OSError` where it cannot be looked at.
    """
    named = folder.lstat()
    found = folder.stat() if follow else named
    uid, mode = os.geteuid(), stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate(folder, "is not a directory")
    if found.st_uid != uid:
        raise NotPrivate(folder, f"belongs to user {found.st_uid}, not to {uid}")
    if named.st_uid not in {uid, 0}:
        raise NotPrivate(folder, f"is a link of user {named.st_uid}")
    if mode & refused:
        raise NotPrivate(folder, f"is open to others (mode {mode:04o})", is_open=True)


def check_own(folder: Path, setting: str, *, closed: bool = False) -> None:
    """Make a configured folder, private, or check the one that exists, which keeps its mode.

    Others must not write to it; with ``closed``, not even enter it.  Raises `PermissionError`, or
    another `OSError`, which names the setting.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        # A group with the user's own number is, by custom, the user's alone.
        writable = stat.S_IWOTH if found.st_gid == found.st_uid else WRITABLE
        check_private(folder, OPEN if closed else writable)
    except NotPrivate as fault:
        alone = "enter" if closed else "write to"
        raise PermissionError(
            f"{setting}: {fault}; name a directory that only you can {alone}"
        ) from None
    except OSError as error:
        raise type(error)(error.errno, f"{setting}: {error.strerror}", str(folder)) from None


def make_private(folder: Path, setting: str) -> None:
    """Make one of our own folders, or close the one that exists to others; follow no link.

    Raises `PermissionError` where it is another user's, or no folder.
    """
    with contextlib.suppress(FileExistsError):  # not a folder, or a link to nowhere
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} is not a directory of user {os.geteuid()}: move it away, or set {setting}"
        )
    if stat.S_IMODE(found.st_mode) & OPEN:
        folder.chmod(stat.S_IRWXU)


def open_private(path: Path, flags: int) -> int:
    """Open a plain file of this user, made with mode 0600 where ``flags`` say so; follow no link.

    Raises `PermissionError` for anything else that has its name.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        _check_plain(path, os.fstat(descriptor))
    except PermissionError:
        os.close(descriptor)
        raise
    return descriptor


def check_plain(path: Path) -> None:
    """Raise `PermissionError` where a path leads to anything but a plain file of this user."""
    with contextlib.suppress(FileNotFoundError):
        _check_plain(path, path.lstat())


def write_private(path: Path, text: str) -> None:
    """Write a file of this user, replacing anything with its name."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def _check_plain(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        problem = f"is not a plain file of user {os.geteuid()}: move it away"
        raise PermissionError(errno.EPERM, problem, str(path))
