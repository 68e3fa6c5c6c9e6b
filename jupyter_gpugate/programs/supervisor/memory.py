"""Memory of processes and of the machine, as the kernel reports it.

Memory held is Pss_Anon + Pss_Shmem + SwapPss, and locked file pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from .processes import content, read_proc, threads_of

PAGE = os.sysconf("SC_PAGE_SIZE")
GROWN_BYTES = 4 << 20  # a notable amount


class Reading(NamedTuple):
    """Memory of one process, in bytes."""

    held: int
    mapped: int  # its share of file pages that can be dropped: shown, never charged
    resident: int
    exact: bool  # False: resident - shared, where the kernel does not tell more
    shared: int = 0  # of what is held: shared memory and locked file pages
    shmem: int = 0  # of that: shared memory
    huge: int = 0  # beside all that: pages of hugetlbfs


def statm_bytes(pid: int) -> tuple[int, int]:
    """Return resident bytes of a process, and those of them in file pages or shared memory."""
    with suppress(ValueError):
        _, pages, shared = map(int, content(f"/proc/{pid}/statm").split()[:3])
        if not pages:  # it is dead, or its first thread is
            folder = next(iter(threads_of(pid)), "")
            _, pages, shared = map(int, content(f"{folder}/statm").split()[:3])
        return pages * PAGE, shared * PAGE
    return 0, 0


def glance(pids: Iterable[int]) -> tuple[int, int]:
    """Sum up resident bytes of processes, and those shared with no other process and no file."""
    resident = private = 0
    for pid in pids:
        pages, shared = statm_bytes(pid)
        resident += pages
        private += pages - shared
    return resident, private


def read_roughly(pid: int) -> Reading | None:
    """Read what is cheap; None when the process is gone."""
    resident, private = glance([pid])
    return Reading(private, 0, resident, exact=False) if resident else None


def read_memory(pid: int) -> Reading | None:
    """Read one process, exactly where the kernel lets us; None when it is gone."""
    sizes: dict[bytes, int] = {}
    with suppress(ValueError):
        for words in map(bytes.split, read_proc(pid, "smaps_rollup").splitlines()[1:]):
            sizes[words[0]] = int(words[1]) << 10
    if b"Pss_Anon:" not in sizes:
        return read_roughly(pid)
    locked = locked_files(pid, sizes)
    shared = sizes[b"Pss_Shmem:"] + locked
    return Reading(
        held=sizes[b"Pss_Anon:"] + shared + sizes.get(b"SwapPss:", 0),
        mapped=sizes[b"Pss_File:"] - locked,
        resident=sizes[b"Rss:"],
        exact=True,
        shared=shared,
        shmem=sizes[b"Pss_Shmem:"],
        huge=sizes.get(b"Private_Hugetlb:", 0) + sizes.get(b"Shared_Hugetlb:", 0),
    )


def locked_files(pid: int, sizes: dict[bytes, int]) -> int:
    """Return a process's share of the file pages that it has locked: the kernel cannot drop them.

    ``Locked`` is the share of everything locked, anonymous pages too.  Where the sums leave open
    how much of it are file pages, the single mappings tell; unread, too much is the safe side.
    """
    locked, files = sizes.get(b"Locked:", 0), sizes[b"Pss_File:"]
    most = min(locked, files)
    least = min(most, max(0, locked - sizes[b"Pss_Anon:"] - sizes[b"Pss_Shmem:"]))
    if most - least <= GROWN_BYTES:
        return most
    in_memory = memory_devices()
    shares = [
        max(0, one.locked - one.anonymous)
        for one in mappings(pid)
        if one.inode and one.device not in in_memory
    ]
    return min(most, max(least, sum(shares))) if shares else most


class Mapping(NamedTuple):
    """One mapping of a process, in bytes; inode 0 is no file."""

    device: int
    inode: int
    share: int
    anonymous: int
    locked: int


def mappings(pid: int) -> Iterator[Mapping]:
    """Yield the mappings of a process; none where they cannot be read."""
    device = inode = 0
    sizes: dict[bytes, int] = {}
    with suppress(ValueError, IndexError):
        for line in read_proc(pid, "smaps").splitlines():
            words = line.split(None, 5)
            if not words[0].endswith(b":"):
                major, _, minor = words[3].partition(b":")
                device, inode = os.makedev(int(major, 16), int(minor, 16)), int(words[4])
                sizes = {}
            elif words[0] == b"VmFlags:":  # the last line of each
                own = (sizes.get(key, 0) for key in (b"Pss:", b"Anonymous:", b"Locked:"))
                yield Mapping(device, inode, *own)
            elif words[-1] == b"kB":
                sizes[words[0]] = int(words[1]) << 10


def surplus_huge_pages() -> int:
    """Return the bytes of huge pages that were taken from free memory beside the reserved pools."""
    total = 0
    pools = "/sys/kernel/mm/hugepages"
    with suppress(OSError, ValueError):
        for pool in os.listdir(pools):  # such as hugepages-2048kB
            with open(f"{pools}/{pool}/surplus_hugepages", "rb") as surplus:
                total += int(surplus.read()) * (int(pool[10:-2]) << 10)
    return total


def memory_mounts() -> dict[int, str]:
    """Return the file systems that keep their files in memory, by device, with where they are."""
    found: dict[int, str] = {}
    with suppress(OSError, ValueError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            place, _, what = line.partition(" - ")
            if what.split(None, 1)[0] in ("tmpfs", "devtmpfs"):
                device, _, where = place.split()[2:5]
                major, minor = map(int, device.split(":"))
                found.setdefault(os.makedev(major, minor), where.replace("\\040", " "))
    return found


def memory_devices() -> set[int]:
    """Return the devices of `memory_mounts`, and that of memory files without a name."""
    devices = set(memory_mounts())
    with suppress(AttributeError, OSError):
        unnamed = os.memfd_create("gpugate")
        devices.add(os.fstat(unnamed).st_dev)
        os.close(unnamed)
    return devices


def shared_memory() -> int:
    """Return the bytes of shared memory on this machine, files in memory included."""
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo", "rb") as meminfo:
        return int(meminfo.read().partition(b"\nShmem:")[2].split(None, 1)[0]) << 10
    return 0


def is_shm_full() -> bool:
    """Whether less than 1 % of the shared memory file system is free."""
    try:
        space = os.statvfs("/dev/shm")  # noqa: S108 - asked for its room only
    except OSError:
        return False
    return space.f_blocks > 0 and space.f_bavail * 100 < space.f_blocks
