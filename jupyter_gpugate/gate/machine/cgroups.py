"""Reads the RAM that the cgroups above this process leave, on every level, in v1 and v2.

A container or a user's slice is often smaller than the machine, which ``/proc/meminfo`` does not
show.  Limits are hierarchical: levels above one without a limit may have one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jupyter_gpugate.gate.machine.kernel_file import KernelFile


class CgroupRoom(NamedTuple):
    """The RAM that one level leaves; ``cgroup`` is its path as in ``/proc/self/cgroup``."""

    cgroup: str
    free_bytes: int


class Cgroups:
    """Every level above this process, found again whenever the process is moved.

    ``proc`` and ``root`` are where procfs and the cgroup hierarchies are mounted.
    """

    def __init__(self, proc: str = "/proc", root: str = "/sys/fs/cgroup") -> None:
        self._root = root
        self._mountinfo = Path(proc, "self", "mountinfo")
        self._membership = KernelFile(f"{proc}/self/cgroup")
        self._known = b""
        self._levels: list[_Level] = []
        self._others: dict[str, list[_Level]] = {}

    @property
    def own(self) -> str:
        """The cgroup of this process, as it was found by the newest reading."""
        return self._levels[0].cgroup if self._levels else ""

    def tightest(self, machine_bytes: int) -> CgroupRoom | None:
        """Return the level that leaves the least, None where no level has a limit.

        ``machine_bytes`` is the machine's RAM: a limit above it is none.  Raises `OSError` or
        `ValueError` where a limit is there and what it leaves cannot be told: a level that cannot
        be measured is never a level without a limit.
        """
        self._find_levels()
        return _tightest(self._levels, machine_bytes)

    def tightest_of(self, cgroup: str, machine_bytes: int) -> CgroupRoom | None:
        """Return the same of another cgroup; raise `OSError` if it does not exist (any more)."""
        found = _hierarchy(self._root, os.fsdecode(self._known))
        if found is None:
            raise FileNotFoundError(cgroup)
        if cgroup not in self._others:
            self._others[cgroup] = list(self._climb(found.mount, cgroup, found.version))
        levels = self._others[cgroup]
        # A level above the mount shows no files; the cgroup itself has to.
        if levels[0].cgroup != cgroup or not Path(levels[0].folder).is_dir():
            raise FileNotFoundError(cgroup)
        return _tightest(levels, machine_bytes)

    def forget_others(self, kept: Collection[str]) -> None:
        """Close the files of all other cgroups."""
        for cgroup in self._others.keys() - kept:
            for level in self._others.pop(cgroup):
                level.close()

    def close(self) -> None:
        self._membership.close()
        self.forget_others(())
        self._take([])

    def _find_levels(self) -> None:
        try:
            membership = self._membership.read()
        except FileNotFoundError:  # a kernel without cgroups
            membership = b""
        if membership != self._known:
            self.forget_others(())
            self._take(list(self._levels_of(os.fsdecode(membership))))
            self._known = membership

    def _take(self, levels: list[_Level]) -> None:
        for level in self._levels:
            level.close()
        self._levels = levels
        self._known = b""

    def _levels_of(self, membership: str) -> Iterator[_Level]:
        """Yield the levels of the one hierarchy that has the memory controller."""
        found = _hierarchy(self._root, membership)
        if found is not None:
            yield from self._climb(found.mount, found.cgroup, found.version)

    def _climb(self, mount: str, cgroup: str, version: _Version) -> Iterator[_Level]:
        """Yield the level of ``cgroup`` and every level above it that ``mount`` shows."""
        hidden = _mounted_cgroup(self._mountinfo, mount)
        inside = f"{cgroup}/".startswith(f"{hidden}/")
        parts = [part for part in cgroup[len(hidden) if inside else 0 :].split("/") if part]
        if ".." in parts:  # moved out of the namespace that this process sees
            parts = []
        for depth in range(len(parts), -1, -1):
            below = "".join(f"/{part}" for part in parts[:depth])
            yield _Level(mount + below, hidden + below or "/", version)


def _mounted_cgroup(mountinfo: Path, mount: str) -> str:
    """Return the cgroup that is mounted at ``mount``: "" for the root of its hierarchy.

    Without a cgroup namespace a container reads its own path from the machine's root, while the
    hierarchy that it sees begins at that path.
    """
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place = os.path.realpath(mount)
    for line in lines:
        _, _, _, root, point, *_ = line.split(" ")
        if point == place:
            return root.rstrip("/")
    return ""


def _tightest(levels: Iterable[_Level], machine_bytes: int) -> CgroupRoom | None:
    rooms = [
        CgroupRoom(level.cgroup, free)
        for level in levels
        if (free := level.free_bytes(machine_bytes)) is not None
    ]
    return min(rooms, key=lambda room: room.free_bytes, default=None)


class _Hierarchy(NamedTuple):
    """The hierarchy with the memory controller, and the cgroup of a process in it."""

    mount: str
    cgroup: str
    version: _Version


def _hierarchy(root: str, membership: str) -> _Hierarchy | None:
    hierarchies = [line.split(":", 2)[1:] for line in membership.splitlines()]
    legacy = [path for controllers, path in hierarchies if "memory" in controllers.split(",")]
    unified = [path for controllers, path in hierarchies if not controllers]
    if legacy:
        return _Hierarchy(f"{root}/memory", legacy[0], _V1)
    if unified:
        # Beside v1 hierarchies the unified one is mounted in a folder of its own.
        beside = f"{root}/unified"
        mixed = len(hierarchies) > 1 and Path(beside).is_dir()
        return _Hierarchy(beside if mixed else root, unified[0], _V2)
    return None


class _Version(NamedTuple):
    """The file names of a cgroup version, and its statistics of reclaimable memory."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: Callable[[bytes], int]
    kept: tuple[str, ...]  # counters of what is certainly no cache, however large that is said


class _Level:
    """One level of one hierarchy, in ``folder``."""

    def __init__(self, folder: str, cgroup: str, version: _Version) -> None:
        self.cgroup: Final = cgroup
        self.folder: Final = folder
        self._limits: Final = [KernelFile(f"{folder}/{name}") for name in version.limits]
        self._usage: Final = KernelFile(f"{folder}/{version.usage}")
        self._stat: Final = KernelFile(f"{folder}/memory.stat")
        self._version: Final = version

    def free_bytes(self, machine_bytes: int) -> int | None:
        """Return limit - (usage - reclaimable file cache), never below 0; None without a limit."""
        limit = self._limit()
        if limit is None or limit > machine_bytes:
            return None
        stat = self._read_stat()
        usage = int(self._usage.read())
        kept = min(usage, sum(_counter(stat, name) for name in self._version.kept))
        return max(0, limit - max(kept, usage - self._version.reclaimable(stat)))

    def close(self) -> None:
        for file in (*self._limits, self._usage, self._stat):
            file.close()

    def _read_stat(self) -> bytes:
        try:
            return self._stat.read()
        except OSError:  # counting nothing as reclaimable errs towards less room
            return b""

    def _limit(self) -> int | None:
        known = []
        for file in self._limits:
            try:
                text = file.read().strip()
            except (FileNotFoundError, NotADirectoryError):
                break  # the root of v2, or a level that lies outside of what can be seen
            if text != b"max":
                known.append(int(text))
        return min(known, default=None)


def _reclaimable_v2(stat: bytes) -> int:
    return _counter(stat, "active_file") + _counter(stat, "inactive_file")


def _reclaimable_v1(stat: bytes) -> int:
    """Return the cache of a level and all below it that can be dropped.

    To v1 shared memory is cache, and so are file pages that are locked.
    """
    cache = _counter(stat, "total_cache")
    listed = _counter(stat, "total_active_file", otherwise=cache)
    listed += _counter(stat, "total_inactive_file")
    return max(0, min(listed, cache - _counter(stat, "total_shmem", otherwise=cache)))


def _counter(stat: bytes, name: str, otherwise: int = 0) -> int:
    found = re.search(rb"^%s (\d+)$" % name.encode(), stat, re.MULTILINE)
    return int(found[1]) if found else otherwise


_V1: Final = _Version(
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    reclaimable=_reclaimable_v1,
    kept=("total_rss", "total_shmem"),
)
#: Above ``memory.high`` the kernel delays allocations, which limits as well.
_V2: Final = _Version(
    limits=("memory.max", "memory.high"),
    usage="memory.current",
    reclaimable=_reclaimable_v2,
    kept=("anon", "shmem", "slab_unreclaimable"),
)
