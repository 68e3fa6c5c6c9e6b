"""Files in memory that processes have open or mapped, or that lie in a file system."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from .processes import all_pids, read_proc

MOST_ENTRIES = 20_000  # of file systems in memory, in one look


class Inode(NamedTuple):
    """The identity of a file."""

    device: int
    number: int


def opened_by(
    pids: Iterable[int], devices: Container[int], changed_since: float | None = None
) -> dict[Inode, str]:
    """Return files on these devices that processes have open, with a path that leads there now.

    With a time, only those that are open for writing and were changed since.
    """
    found: dict[Inode, str] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):
            for number in os.listdir(folder):
                with suppress(OSError):
                    path = f"{folder}/{number}"
                    status = os.stat(path)
                    if status.st_dev not in devices or not stat.S_ISREG(status.st_mode):
                        continue
                    # The link's own mode is that of the open file.
                    is_written = os.lstat(path).st_mode & stat.S_IWUSR
                    if changed_since is None or (is_written and status.st_ctime >= changed_since):
                        found[Inode(status.st_dev, status.st_ino)] = path
    return found


def mapped_by(
    pids: Iterable[int], devices: Container[int], changed_since: float
) -> dict[Inode, str]:
    """Return files on these devices that processes have mapped to write to them."""
    found: dict[Inode, str] = {}
    for pid in pids:
        for line in read_proc(pid, "maps").splitlines():
            words = line.split(None, 5)
            if len(words) < 6 or words[1] != b"rw-s":  # noqa: PLR2004 - the path comes last
                continue
            with suppress(OSError):
                path = os.fsdecode(words[5])
                status = os.stat(path)
                inode = Inode(status.st_dev, status.st_ino)
                is_it = inode.device in devices and inode.number == int(words[4])
                if is_it and status.st_ctime >= changed_since:
                    found[inode] = path
    return found


def opened_elsewhere(
    pids: set[int], wanted: Iterable[Inode], devices: Container[int]
) -> set[Inode]:
    """Return which of these files are open or mapped in a process that is not among ``pids``."""
    others = {*all_pids()} - pids
    found = set(opened_by(others, devices))
    left = {b"%d" % inode.number: inode for inode in wanted if inode not in found}
    for pid in others if left else ():
        for line in read_proc(pid, "maps").splitlines():
            words = line.split(None, 5)
            if len(words) > 4 and words[4] in left:  # noqa: PLR2004 - the inode
                found.add(left[words[4]])
    return found


def changed_files(mounts: dict[int, str], since: float) -> Iterator[tuple[Inode, str]]:
    """Yield files of this user in these file systems that have changed since a time."""
    left = MOST_ENTRIES
    todo = list(mounts.items())
    while todo and left > 0:
        device, folder = todo.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                left -= 1
                status = entry.stat(follow_symlinks=False)
                if status.st_dev != device:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    todo.append((device, entry.path))
                elif (
                    stat.S_ISREG(status.st_mode)
                    and status.st_uid == os.getuid()
                    and status.st_ctime >= since
                ):
                    yield Inode(status.st_dev, status.st_ino), entry.path


def unattached_segments(pids: Container[int], made_since: float) -> int:
    """Return the bytes of System V segments of these processes that no process has attached."""
    total = 0
    with suppress(OSError, ValueError, IndexError), open("/proc/sysvipc/shm", "rb") as table:
        names, *rows = (line.split() for line in table)
        for row in rows:
            segment = dict(zip(names, row))
            is_ours = int(segment[b"cpid"]) in pids
            if is_ours and segment[b"nattch"] == b"0" and int(segment[b"ctime"]) >= made_since:
                total += int(segment[b"rss"]) + int(segment[b"swap"])
    return total


def written_bytes(pids: Iterable[int]) -> int:
    """Return the bytes that these processes, and children they waited for, have written to files.

    The kernel adds the count of a child to that of its parent when the parent waits for it.
    """
    total = 0
    for pid in pids:
        with suppress(ValueError, IndexError):
            total += int(read_proc(pid, "io").partition(b"wchar:")[2].split(None, 1)[0])
    return total


def size_of(path: str) -> int:
    """Return the bytes that a file holds; 0 when it is gone."""
    with suppress(OSError):
        return os.stat(path).st_blocks * 512
    return 0


def renamed(path: str, inode: int) -> str:
    """Return the name that a file has in its folder now; "" when it is not there any more."""
    with suppress(OSError), os.scandir(os.path.dirname(path)) as entries:
        return next((entry.path for entry in entries if entry.inode() == inode), "")
    return ""
