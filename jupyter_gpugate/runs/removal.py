"""Removes the folders of a run, at any depth and whatever their modes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jupyter_gpugate.runs.ids import RUN_ID, checked

#: A draft or a half-removed run that is older is abandoned.
ABANDONED_S: Final = 3600.0

#: How often to empty a folder that a process still writes to.
_ROUNDS: Final = 3
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_run(path: Path) -> str:
    """Remove a run's directory as `remove_at_once` does."""
    checked(path.name)
    return remove_at_once(path)


def remove_at_once(path: Path) -> str:
    """Remove a folder; return which files remain, and why, or "".

    It disappears at once, its files a little later.  Raises `OSError` where it cannot
    even be renamed.
    """
    aside = path.with_name(f".gone-{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return ""
    if not stat.S_ISDIR(aside.lstat().st_mode):  # something else has been put in its place
        aside.unlink()
        return ""
    return remove_tree(aside)


def remove_left_behind(root: Path, names: re.Pattern[str] = RUN_ID) -> list[str]:
    """Remove leftover drafts and half-removed folders of these names; return which files cannot be.

    The names are those that the folders have when they are whole.
    """
    left = []
    left_behind = re.compile(rf"\.(new|gone)-{names.pattern}(-[0-9a-f]{{8}})?")
    with contextlib.suppress(OSError):
        for name in filter(left_behind.fullmatch, sorted(os.listdir(root))):  # noqa: PTH208 - names
            with contextlib.suppress(OSError):
                if _is_abandoned(root / name):
                    left.append(remove_tree(root / name))
    return [problem for problem in left if problem]


def remove_tree(path: Path | str, below: int | None = None) -> str:
    """Remove a folder and its content; return which files remain, and why, or "".

    ``below`` is an open folder that the path begins in.  A folder inside that is not empty is
    moved up before its turn comes, so no depth needs a recursion, a long path or many descriptors.
    No link is followed, and an inaccessible folder of this user is made accessible.
    """
    stuck: dict[str, str] = {}
    for _ in range(_ROUNDS):
        stuck = {}
        try:
            with _entered(path, below) as top:
                _empty(top, stuck)
            os.rmdir(path, dir_fd=below)
            return ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                stuck = stuck or {str(path): str(error.strerror)}
        if stuck:
            break
    reason = next(iter(stuck.values()), "a process is still writing to it")
    return f"{path}: {len(stuck) or 'some'} of its entries cannot be removed ({reason})"


def _empty(top: int, stuck: dict[str, str]) -> None:
    todo = deque(os.listdir(top))
    prefix, number = f".{secrets.token_hex(8)}", 0
    while todo:
        name = todo.popleft()
        with _noted(name, stuck):
            if _is_removed(name, top):
                continue
            before = len(stuck)
            with _entered(name, top) as inner:
                for child in os.listdir(inner):  # noqa: PTH208 - below a descriptor
                    with _noted(f"{name}/{child}", stuck):
                        if not _is_removed(child, inner):
                            number += 1
                            moved = f"{prefix}-{number}"
                            _move_up(child, inner, moved, top)
                            todo.append(moved)
            if len(stuck) == before:
                os.rmdir(name, dir_fd=top)


@contextlib.contextmanager
def _noted(name: str, stuck: dict[str, str]) -> Iterator[None]:
    """Record why one entry remains, and go on with the others."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        stuck[name] = error.strerror or str(error)


def _is_removed(name: str, below: int) -> bool:
    """Remove a file, a link or an empty folder; return False for a folder with something in it."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=below, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=below)
            return True
        os.rmdir(name, dir_fd=below)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _move_up(child: str, inner: int, name: str, top: int) -> None:
    try:
        os.rename(child, name, src_dir_fd=inner, dst_dir_fd=top)
    except PermissionError:  # a folder that cannot be written to cannot be moved either
        make_accessible(child, inner)
        os.rename(child, name, src_dir_fd=inner, dst_dir_fd=top)


@contextlib.contextmanager
def _entered(path: Path | str, below: int | None = None) -> Iterator[int]:
    """Open a folder to be emptied."""
    make_accessible(path, below)
    descriptor = os.open(path, _FOLDER, dir_fd=below)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_accessible(path: Path | str, below: int | None = None) -> None:
    """Make a folder of this user accessible to this user."""
    handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
    try:
        found = os.fstat(handle)
        if found.st_uid == os.geteuid() and found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101 - no link on the way
    finally:
        os.close(handle)


def _is_abandoned(path: Path) -> bool:
    """Return whether a draft or a half-removed folder is this user's and old."""
    found = path.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and time.time() - found.st_mtime > ABANDONED_S
