"""Where the gate keeps its state: a private directory on a disk of this machine.

The journal's locks and its memory-mapped log hold on a local file system only.  In a directory that
others may write to, or once could, anything may lie: no link is followed, and no file of another
user is opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Where the state lies when the home is no place for it; survives a reboot.
FALLBACK: Final = Path("/var/tmp")  # noqa: S108 - the directory below it is private, and checked

#: What ``statfs`` says of file systems that other machines write to as well, or that may be so.
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

#: Where the lock may lie when neither the home nor the fallback will do: lost at a reboot, like it.
SPARE: Final = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - the same holds for the one below it

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
    for directory in _at_home():
        try:
            if network_file_system(directory) is None:
                make_private(directory)
                if os.access(directory, os.W_OK):
                    return directory
        except OSError:
            continue  # no home, a full or a read-only one: the next place will do
    directory = FALLBACK / f"gpugate-{os.geteuid()}"
    make_private(directory)
    return directory


def lock_directory() -> Path:
    """Make and return the directory of this user's lock, which no setting moves.

    The default state directory if the home is on a local disk, else the first place that no other
    user has taken.  Raises `PermissionError` where none is left.
    """
    own = f"gpugate-{os.geteuid()}"
    fault: OSError = PermissionError(errno.EACCES, "no directory can hold the lock of the gate")
    for directory in (*_in_home(), *(place / own for place in (FALLBACK, *SPARE))):
        try:
            if network_file_system(directory) is None:
                make_private(directory)
                if os.access(directory, os.W_OK):
                    return directory
        except OSError as error:
            fault = error
    raise fault


def home_directory() -> str:
    """Return the real path of this user's home; "" for a user without one."""
    try:
        return os.path.realpath(Path.home())
    except RuntimeError:
        return ""


def _at_home() -> Iterator[Path]:
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state_home.is_absolute():
        yield state_home / "gpugate"
    yield from _in_home()


def _in_home() -> Iterator[Path]:
    home = home_directory()
    if home:
        yield Path(home, ".local", "state", "gpugate")


def make_private(directory: Path) -> None:
    """Make ``directory``, for this user alone; raise `PermissionError` where it is another's."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(
            f"{directory} is not a directory of user {os.geteuid()}: move it away,"
            " or set another state directory"
        )
    if stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        directory.chmod(stat.S_IRWXU)


def check_own(directory: Path, setting: str, *, closed: bool = False) -> None:
    """Make ``directory`` private, or check that nobody else can write to it.

    An existing one keeps its mode: it may have other uses.  With ``closed``, others must not
    even enter it.  Raises `PermissionError`, which names the setting that leads there.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        named, found = directory.lstat(), directory.stat()
    except OSError as error:
        raise type(error)(error.errno, f"{setting}: {error.strerror}", str(directory)) from None
    uid, mode = os.geteuid(), stat.S_IMODE(found.st_mode)
    # A group with the user's own number is, by custom, the user's alone.
    others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid != found.st_uid else 0)
    problem = ""
    if not stat.S_ISDIR(found.st_mode):
        problem = "is not a directory"
    elif found.st_uid != uid:
        problem = f"belongs to user {found.st_uid}, not to {uid}"
    elif named.st_uid not in {uid, 0}:
        problem = f"is a link of user {named.st_uid}"
    elif mode & (0o077 if closed else others):
        problem = f"is open to others (mode {mode:04o})"
    if problem:
        alone = "enter" if closed else "write to"
        raise PermissionError(
            f"{setting}: {directory} {problem}; name a directory that only you can {alone}"
        )


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


def _check_plain(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        problem = f"is not a plain file of user {os.geteuid()}: move it away"
        raise PermissionError(errno.EPERM, problem, str(path))


def write_private(path: Path, text: str) -> None:
    """Write a file of this user, replacing anything with its name."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
