"""The parent of one run's process tree: it starts, measures and stops it, and records the end.

Its instructions are in ``launch.json`` in the attempt's directory.

*The tree.*  As a child subreaper it inherits every orphan below it, so no descendant leaves the
tree by a new session, a new group or a second fork; "the kernel says that I have no child" is the
proof that the tree is gone.  What a completed program leaves in the background is part of the run,
which goes on while it works: a launcher may return at once.  Daemons (in a session of their own,
with ``/`` as their working directory) and processes that have used no processor time for `IDLE_S`
are not waited for.  These, and what cells leave behind, have `LINGER_S` to end by themselves and
are then stopped like any tree; the outcome stays the workers' own, and a warning names what was
stopped.

*RAM held* is Pss_Anon + Pss_Shmem + SwapPss summed over the tree, this process included.  A cheap
glance, several times a second, calls for an exact reading when the tree has grown, every
`READING_S`, at the end of each episode and before a stop.  What a process held beyond its readings
shows when it ends, by its resident high-water mark: that much is added to what it was last seen to
hold, which also measures a run that is over before it was ever read.  File pages mapped meanwhile
are counted with it: they are few, and too much is the safe side.  In a tree that never had more
than one process the mark covers every stretch without a reading.

*Time* is counted in seconds awake, so that a suspended machine uses up no limit and no grace;
wall-clock time stands only in the record for people.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

HOLD_FENCE_S = 600.0  # without any gate, an attempt that was never told to go gives up
FINISH_S = 600.0  # an end is told for so long; by then its record stands on the disk
GLANCE_S = 0.25
READING_S = 5.0
SHARE = 0.02  # of the time that glances, and again readings, may cost at most
PATIENCE_S = 1.0  # for one reading of the whole tree
GROWN_BYTES = 4 << 20  # growth that calls for a reading, or 3 % where that is more
EXPLAIN_S = 2.0  # for a growth of shared memory to be somebody's
MOST_ENTRIES = 20_000  # of file systems in memory, in one look
LINGER_S = 0.5
IDLE_S = 300.0  # what has worked less than `WORK_S` for so long is not waited for
WORK_S = 0.5
PENDING_S = 2.0  # after KILL, processes that are still there are named
OUTPUT_CAP = 64 << 20  # of printed bytes
DISPLAY_CAP = 256 << 20  # of displays, and the most of them
DISPLAY_LINES = 20_000
STALE_BYTES = 8 << 20  # of displays that others have replaced, before the file is written anew
EVENT_CAP = 32 << 20  # of one event; a longer one is dropped
HEAD_CAP = 1 << 20  # of one event beyond which only what precedes its data is parsed
WARNINGS_CAP = 1 << 20  # of all warnings
TEXT_CAP = 256 << 10  # of one text in an error or a warning
ERRORS_MAX = 256
GONE = b"[gpugate: the first %d bytes are gone]\n"  # the first line of a log that lost its own
LOST = b"\n[gpugate: %d bytes are lost: the disk was full]\n"
CLEAR = b"\x1b[H\x1b[2J"  # in the output, what a run's `clear_output` does to a screen
MARK = b"\x1b]gpugate;%b;"
MARK_MAX = 80  # bytes
WAITING_CAP = 64 << 20  # of lines that wait for a full disk
CHUNK = 1 << 16
PAGE = os.sysconf("SC_PAGE_SIZE")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_PARENT = 0x8000
CLONE_CALL = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
LIBC = ctypes.CDLL(None, use_errno=True)


def awake_time() -> float:
    """Seconds since boot, without those that the machine slept: then no run can work either."""
    return time.monotonic()


# -- processes --------------------------------------------------------------------------------


class Proc(NamedTuple):
    """A process of this boot: a pid alone is no identity."""

    pid: int
    ticks: int


def stat_fields(pid: int) -> list[bytes]:
    """Fields of ``/proc/PID/stat`` from the state on; empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def has_ended(fields: list[bytes]) -> bool:
    """Whether these are the fields of a dead process: state Z is that of its first thread only."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def threads_of(pid: int) -> list[str]:
    """Folders of the threads that are left of a process whose first thread has ended.

    What a process tells by its memory, such as ``statm`` and ``environ``, is then empty in its own
    folder and not in theirs.
    """
    fields = stat_fields(pid)
    if not fields or fields[0] not in (b"Z", b"X") or has_ended(fields):
        return []
    with suppress(OSError):
        task = f"/proc/{pid}/task"
        return [f"{task}/{thread}" for thread in os.listdir(task) if thread != str(pid)]
    return []


def content(path: str) -> bytes:
    """Read a file; empty where it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def read_proc(pid: int, name: str) -> bytes:
    """Read a file that a process tells by its memory; empty where there is nothing to be read."""
    text = content(f"/proc/{pid}/{name}")
    for folder in [] if text else threads_of(pid):
        text = text or content(f"{folder}/{name}")
    return text


def process(pid: int) -> Proc | None:
    """Identify the process that has this pid now; None when there is none."""
    fields = stat_fields(pid)
    return Proc(pid, int(fields[19])) if fields else None


def children_of(pid: int) -> list[int]:
    """Pids of the children of every thread of a process, where the kernel lists them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as children:
                found += map(int, children.read().split())
    return found


def children_by_parent() -> dict[int, list[int]]:
    """Pids by parent pid over the whole process table."""
    table: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat_fields(int(name))
        if fields:
            table.setdefault(int(fields[1]), []).append(int(name))
    return table


def descendants(root: int) -> Iterator[Proc]:
    """Every process below ``root``, the dead ones that nobody has waited for included."""
    lists = os.path.exists("/proc/thread-self/children")
    table = {} if lists else children_by_parent()
    todo = [root]
    while todo:
        pid = todo.pop()
        for child in map(process, children_of(pid) if lists else table.get(pid, [])):
            if child is not None:
                yield child
                todo.append(child.pid)


def is_alive(one: Proc) -> bool:
    """Whether this very process still runs; one that nobody has waited for yet does not."""
    fields = stat_fields(one.pid)
    return bool(fields) and int(fields[19]) == one.ticks and not has_ended(fields)


def send(one: Proc, number: int) -> bool:
    """Signal exactly this process; False when it is gone or not ours to signal."""
    handle = None
    with suppress(AttributeError, OSError):  # a Python or a kernel without pidfd
        handle = os.pidfd_open(one.pid)
    try:
        # Read after the handle is open: from here on the handle cannot mean another process.
        if process(one.pid) != one:
            return False
        if handle is None:
            os.kill(one.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def kill_descendants(root: int) -> None:
    """Send everybody below ``root`` SIGKILL; to be repeated, since they fork meanwhile."""
    for one in descendants(root):
        send(one, signal.SIGKILL)


def kill_all(root: int) -> None:
    """Kill and wait until this process, ``root``, has no child left."""
    with suppress(ChildProcessError):
        while True:
            kill_descendants(root)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.02)


def carriers(tag: bytes) -> list[Proc]:
    """Living processes of this uid, other than this one, with ``tag`` in their environment."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            one = process(pid)
            if one is None or pid == os.getpid() or os.stat(f"/proc/{pid}").st_uid != os.getuid():
                continue
            if tag in read_proc(pid, "environ").split(b"\0") and is_alive(one):
                found.append(one)
    return found


# -- settings and counts of the kernel ---------------------------------------------------------


def memberships(pid: int | str) -> dict[str, str]:
    """Cgroups of a process: its path by the controllers of each hierarchy, "" for the v2 tree."""
    own: dict[str, str] = {}
    with suppress(OSError, ValueError), open(f"/proc/{pid}/cgroup") as cgroups:
        for line in cgroups:
            _, names, path = line.rstrip("\n").split(":", 2)
            own[names] = path
    return own


def cgroup_directory(controller: str, cgroup: str | None = None) -> str | None:
    """Directory of a cgroup, this process's own by default, where it can be seen from here.

    ``controller`` is one of v1, or "" for the v2 tree.
    """
    if cgroup is None:
        own = memberships("self")
        found = [path for names, path in own.items() if controller in names.split(",")]
        if not found:
            return None
        cgroup = found[0]
    with suppress(OSError, ValueError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            place, _, what = line.partition(" - ")
            root, mount = place.split()[3:5]
            kind, _, options = what.split()[:3]
            fits = kind == "cgroup" and controller in options.split(",")
            if fits or (not controller and kind == "cgroup2"):
                below = os.path.relpath(cgroup, root)
                is_outside = ".." in f"{cgroup}/{below}".split("/")
                return None if is_outside else os.path.normpath(f"{mount}/{below}")
    return None


def join_cgroups(wanted: dict[str, str]) -> list[str]:
    """Move this process into cgroups, as `memberships` names them; return those it is kept out of.

    The limits of its notebook then apply to a run, which the end of the gate's session does not
    end.
    """
    missed = []
    for names, cgroup in wanted.items():
        directory = cgroup_directory(names.split(",")[0], cgroup)
        if directory is None or not put(f"{directory}/cgroup.procs", 0):
            missed.append(cgroup)
    return missed


def counter(path: str, key: str) -> int | None:
    """Read the number behind a word in a file of such lines; None where there is none."""
    with suppress(OSError, ValueError), open(path) as lines:
        for words in map(str.split, lines):
            if words[0] == key:
                return int(words[1])
    return None


def put(path: str, value: int) -> bool:
    """Set one of the kernel's settings; False where that is not possible."""
    try:
        with open(path, "w") as setting:
            setting.write(str(value))
    except OSError:
        return False
    return True


def oom_kills() -> int:
    """Kills that this memory cgroup counts, or the machine where no such count can be read."""
    for controller, name in (("memory", "memory.oom_control"), ("", "memory.events")):
        directory = cgroup_directory(controller)
        count = counter(f"{directory}/{name}", "oom_kill") if directory else None
        if count is not None:
            return count
    return counter("/proc/vmstat", "oom_kill") or 0


def make_cgroup(name: str) -> str | None:
    """Make a v2 cgroup of its own for the workers, to kill them by; None where it is not ours."""
    parent = cgroup_directory("")
    if parent is None:
        return None
    directory = f"{parent}/{name}"
    with suppress(OSError):
        os.mkdir(directory)
        if os.access(f"{directory}/cgroup.kill", os.W_OK):  # since Linux 5.14
            return directory
        os.rmdir(directory)
    return None


# -- stopping ---------------------------------------------------------------------------------


def start_beside(argv: list[str], environ: dict[str, str], cwd: str, log: str) -> None:
    """Start a program as a child of this process's parent, outside of the tree below.

    There must be no other thread: the child is a bare copy of this one until it executes.
    """
    call = CLONE_CALL[os.uname().machine]
    environ = {k: v for k, v in environ.items() if not k.startswith("GPUGATE_RUN_ID")}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    output = os.open(log, flags, 0o600)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # PyDLL keeps hold of the interpreter's lock, which nobody could hand to the child.
        child = ctypes.PyDLL(None).syscall(call, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            try:
                os.setsid()
                os.umask(0o022)
                os.chdir(cwd)
                for ours, theirs in ((null, 0), (output, 1), (output, 2)):
                    os.dup2(ours, theirs)
                os.execve(argv[0], argv, environ)  # noqa: S606 - there is no shell to start
            finally:
                os._exit(127)
    finally:
        os.close(output)
        os.close(null)
    if child < 0:
        raise OSError("no process can be made")


class Stopping:
    """Stops a tree for certain: TERM, grace, then KILL again and again until nobody is left."""

    def __init__(self, root: int, grace_s: float, cgroup: str | None, begin_at: float) -> None:
        self.next_at = begin_at
        self.survivors: list[Proc] = []  # still there `PENDING_S` after the KILL
        self.means: list[str] = []
        self.stopped: list[str] = []  # by name, processes that were asked to end
        self.began_at: float | None = None
        self._root, self._grace_s, self._cgroup = root, grace_s, cgroup
        self._killed_at: float | None = None

    def advance(self, now: float) -> None:
        """Do what is due; to be called until the tree is gone."""
        if now < self.next_at:
            return
        if self.began_at is None:
            self.began_at, self.next_at = now, now + self._grace_s
            # The whole tree first: who dies of the signal takes the way to its children along.
            tree = set(descendants(self._root))
            alive = sorted(one.pid for one in tree if is_alive(one))
            self.stopped = [name_of(pid) for pid in alive if not is_helper(command_of(pid))]
            for one in tree:
                self.means = ["term"]
                send(one, signal.SIGTERM)
                send(one, signal.SIGCONT)  # a stopped process takes no TERM
        else:
            self._kill(now)

    def _kill(self, now: float) -> None:
        is_first = self._killed_at is None
        if self._killed_at is None:
            self._killed_at = now
        if self._cgroup and put(f"{self._cgroup}/cgroup.kill", 1) and is_first:
            self.means.append("cgroup.kill")
        kill_descendants(self._root)
        if is_first:
            self.means.append("kill")
        since = now - self._killed_at
        self.next_at = now + min(1.0, 0.02 + since / 4)
        if since >= PENDING_S:
            self.survivors = sorted(filter(is_alive, descendants(self._root)))


# -- programs, and what they leave behind -------------------------------------------------------

#: Programs that let a daemon or another machine do their work, outside the tree.
CLIENTS = frozenset(
    (
        *("docker", "docker-compose", "podman", "nerdctl", "ctr", "crictl", "kubectl"),
        *("machinectl", "incus", "lxc", "systemd-run", "at", "batch"),
        *("srun", "sbatch", "salloc", "qsub", "bsub", "condor_submit", "ray"),
    )
)
#: The same, but widely used otherwise: counts only while it is alive.
REMOTE_SHELLS = frozenset(("ssh", "mosh-client"))
INTERPRETERS = ("python", "pypy", "sh", "bash", "dash", "zsh", "ksh", "perl", "ruby", "node")


def command_of(pid: int) -> list[str]:
    """Return the command line of a process."""
    words = read_proc(pid, "cmdline")[:CHUNK].split(b"\0")
    return [os.fsdecode(word) for word in words if word]


def program_of(words: list[str]) -> str:
    """Name a program by its command line: a script by its own name, not its interpreter's."""
    names = [word.rpartition("/")[2] for word in words[:2]]
    if len(names) > 1 and names[0].startswith(INTERPRETERS) and not words[1].startswith("-"):
        return names[1]
    return names[0] if names else ""


def name_of(pid: int) -> str:
    """Name a process for people."""
    return f"{pid} ({program_of(command_of(pid)) or 'a process'})"


def is_helper(words: list[str]) -> bool:
    """Whether Python started it for its own housekeeping, and it ends with the rest."""
    starts = " ".join(words[1:4])
    return "resource_tracker" in starts or "multiprocessing.forkserver" in starts


def is_service(pid: int, sessions: set[int], cwd: str) -> bool:
    """Return whether a process has become a daemon."""
    if is_helper(command_of(pid)):
        return True
    fields = stat_fields(pid)
    with suppress(OSError):
        place = os.readlink(f"/proc/{pid}/cwd")
        return bool(fields) and int(fields[3]) not in sessions and place == "/" != cwd
    return False


class Background:
    """The remaining processes of a tree whose workers have completed."""

    def __init__(self, root: int, sessions: set[int], cwd: str, now: float) -> None:
        self.began_at = self.worked_at = now
        self.names: dict[int, str] = {}  # of what was waited for
        self.due_at = now  # to be looked at
        self.is_idle = False
        self._root, self._sessions, self._cwd = root, sessions, cwd
        self._worked_s = 0.0

    def is_at_work(self, now: float, *, has_printed: bool) -> bool:
        """Look whether anything is left to be waited for."""
        began = awake_time()
        left = [one.pid for one in descendants(self._root) if is_alive(one)]
        waited = [pid for pid in left if not is_service(pid, self._sessions, self._cwd)]
        self.names.update((pid, name_of(pid)) for pid in waited if pid not in self.names)
        worked_s = self._processor_s(left)
        if has_printed or worked_s - self._worked_s >= WORK_S:
            self.worked_at, self._worked_s = now, worked_s
        self._worked_s = min(self._worked_s, worked_s)
        self.is_idle = now - self.worked_at > IDLE_S
        self.due_at = now + max(GLANCE_S, (awake_time() - began) / SHARE)
        return bool(waited) and not self.is_idle

    def _processor_s(self, pids: list[int]) -> float:
        """Processor time of these processes, of those they waited for, and of those that ended."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        fields = (stat_fields(pid) for pid in pids)
        ticks = sum(sum(map(int, told[11:15])) for told in fields if told)
        return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


# -- memory -----------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What one process held, in bytes."""

    held: int
    mapped: int  # its share of file pages that can be dropped: shown, never charged
    resident: int
    exact: bool  # False: resident - shared, where the kernel does not tell more
    shared: int = 0  # of what is held: shared memory and locked file pages
    shmem: int = 0  # of that: shared memory
    huge: int = 0  # beside all that: pages of hugetlbfs


def statm_bytes(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and those of them that are file pages or shared memory."""
    with suppress(ValueError):
        _, pages, shared = map(int, content(f"/proc/{pid}/statm").split()[:3])
        if not pages:  # it is dead, or its first thread is
            folder = next(iter(threads_of(pid)), "")
            _, pages, shared = map(int, content(f"{folder}/statm").split()[:3])
        return pages * PAGE, shared * PAGE
    return 0, 0


def glance(pids: Iterable[int]) -> tuple[int, int]:
    """Resident bytes, and those shared with nobody and no file, summed over processes."""
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
                told = (sizes.get(key, 0) for key in (b"Pss:", b"Anonymous:", b"Locked:"))
                yield Mapping(device, inode, *told)
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


# -- files in memory --------------------------------------------------------------------------


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


def written_bytes(pids: Iterable[int]) -> int:
    """Return the bytes that these processes, and children they waited for, have written to files.

    The kernel adds what a child has written to its parent's count when the parent waits for it.
    """
    total = 0
    for pid in pids:
        with suppress(ValueError, IndexError):
            total += int(read_proc(pid, "io").partition(b"wchar:")[2].split(None, 1)[0])
    return total


class Inode(NamedTuple):
    """The identity of a file."""

    device: int
    number: int


class MemoryFiles:
    """Files in memory that a run has written; they stay when no process has them open.

    A file belongs to the run when it was changed during the run and either a process of the tree
    has it open, or mapped, for writing and nobody else has; or it has appeared between two looks,
    is its user's, is open nowhere else, and the tree has written at least as much meanwhile as all
    such files hold together.  What a neighbour writes is neither.
    """

    def __init__(self, began_at: float) -> None:
        self.sizes: dict[Inode, int] = {}
        self._paths: dict[Inode, str] = {}
        self._strangers: set[Inode] = set()
        self._mounts: dict[int, str] = {}
        self._devices: set[int] = set()
        self._began_at = self._looked_at = began_at - 0.1  # wall clock; the stamps are coarse
        self._pids: set[int] = set()  # all processes that were in the tree
        self._shared = shared_memory()
        self._written = self._known = 0  # at the beginning of a window, as is `_shared`
        self._open_since = 0.0

    def have_moved(self) -> bool:
        """Whether the machine's shared memory has changed notably since the last look."""
        return abs(shared_memory() - self._shared) > GROWN_BYTES

    def paths(self) -> list[str]:
        """Where the files are that still have a name, the largest first."""
        named = [inode for inode in self.sizes if os.path.exists(self._paths.get(inode, ""))]
        return [self._paths[inode] for inode in sorted(named, key=self.sizes.__getitem__)[::-1]]

    def look(self, pids: list[int], sharing: Iterable[int] = ()) -> int:
        """Find the run's files; return how much they hold.

        ``pids`` is the whole tree, ``sharing`` those with shared memory mapped.
        """
        self._pids.update(pids)
        now, written = time.time() - 0.1, written_bytes(pids)
        if not self._paths and not self.have_moved():
            self._written, self._looked_at = written, now
            return self._segments()
        if not self._devices:
            self._mounts, self._devices = memory_mounts(), memory_devices()
        shared = shared_memory()
        opened = {**self._mapped_by(sharing), **self._opened_by(pids[1:])}
        has_grown = min(written - self._written, shared - self._shared) > GROWN_BYTES
        new, closed = self._unknown(set(pids), opened, has_grown=has_grown)
        self._measure(new, opened)
        # Bytes written to the run's known files are no evidence for other files.
        least = written - self._written - max(0, self._total() - self._known)
        if sum(map(size_of, closed.values())) <= least + (least >> 4):
            self._measure(closed, opened)
        self._close_window(now, shared, written)
        return self._total() + self._segments()

    def _unknown(
        self, pids: set[int], opened: dict[Inode, str], *, has_grown: bool
    ) -> tuple[dict[Inode, str], dict[Inode, str]]:
        """Files that nobody else has: of the tree, open now, and those that have appeared."""
        known = self._paths.keys() | self._strangers
        new = {inode: path for inode, path in opened.items() if inode not in known}
        closed = self._appeared(opened) if has_grown else {}
        if sum(map(size_of, (*new.values(), *closed.values()))) > GROWN_BYTES:
            elsewhere = self._opened_elsewhere(pids, new.keys() | closed.keys())
            self._strangers |= new.keys() & elsewhere
            closed = {inode: path for inode, path in closed.items() if inode not in elsewhere}
            new = {inode: path for inode, path in new.items() if inode not in elsewhere}
        return new, closed

    def _total(self) -> int:
        return sum(self.sizes.values())

    def _close_window(self, now: float, shared: int, written: int) -> None:
        """Begin to look anew, unless shared memory has grown for reasons that may show yet.

        Whoever has written may be younger than the list of the tree, or not waited for.
        """
        unexplained = shared - self._shared - (self._total() - self._known)
        if unexplained > GROWN_BYTES:
            self._open_since = self._open_since or awake_time()
            if awake_time() - self._open_since < EXPLAIN_S:
                return
        self._open_since = 0.0
        self._known, self._shared, self._written = self._total(), shared, written
        self._looked_at = now

    def _measure(self, new: dict[Inode, str], opened: dict[Inode, str]) -> None:
        """Take files in, and forget those that are gone."""
        self._paths.update(new)
        self.sizes = {i: size for i in self._paths if (size := self._size(i, opened)) is not None}
        self._paths = {inode: self._paths[inode] for inode in self.sizes}

    def _opened_by(self, pids: Iterable[int], *, to_write: bool = True) -> dict[Inode, str]:
        """Files in memory that these processes have open, with a path that leads there now."""
        found: dict[Inode, str] = {}
        for pid in pids:
            folder = f"/proc/{pid}/fd"
            with suppress(OSError):
                for number in os.listdir(folder):
                    with suppress(OSError):
                        path = f"{folder}/{number}"
                        told = os.stat(path)
                        if told.st_dev not in self._devices or not stat.S_ISREG(told.st_mode):
                            continue
                        # The link's own mode says what the file was opened for.
                        is_written = os.lstat(path).st_mode & stat.S_IWUSR
                        if not to_write or (is_written and told.st_ctime >= self._began_at):
                            found[Inode(told.st_dev, told.st_ino)] = path
        return found

    def _mapped_by(self, pids: Iterable[int]) -> dict[Inode, str]:
        """Files in memory that these processes have mapped to write to them."""
        found: dict[Inode, str] = {}
        for pid in pids:
            for line in read_proc(pid, "maps").splitlines():
                words = line.split(None, 5)
                if len(words) < 6 or words[1] != b"rw-s":  # noqa: PLR2004 - the path comes last
                    continue
                with suppress(OSError):
                    path = os.fsdecode(words[5])
                    told = os.stat(path)
                    inode = Inode(told.st_dev, told.st_ino)
                    is_it = inode.device in self._devices and inode.number == int(words[4])
                    if is_it and told.st_ctime >= self._began_at:
                        found[inode] = path
        return found

    def _opened_elsewhere(self, pids: set[int], wanted: Iterable[Inode]) -> set[Inode]:
        """Which of these files somebody else has open or mapped."""
        others = {*map(int, filter(str.isdigit, os.listdir("/proc")))} - pids
        found = set(self._opened_by(others, to_write=False))
        left = {b"%d" % inode.number: inode for inode in wanted if inode not in found}
        for pid in others if left else ():
            for line in read_proc(pid, "maps").splitlines():
                words = line.split(None, 5)
                if len(words) > 4 and words[4] in left:  # noqa: PLR2004 - the inode
                    found.add(left[words[4]])
        return found

    def _appeared(self, opened: dict[Inode, str]) -> dict[Inode, str]:
        """Files of this user that have changed since the last look and that nobody has claimed."""
        found: dict[Inode, str] = {}
        left = MOST_ENTRIES
        todo = [(device, place) for device, place in self._mounts.items()]
        while todo and left > 0:
            device, folder = todo.pop()
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    told = entry.stat(follow_symlinks=False)
                    inode = Inode(told.st_dev, told.st_ino)
                    if told.st_dev != device:
                        continue
                    if stat.S_ISDIR(told.st_mode):
                        todo.append((device, entry.path))
                    elif (
                        stat.S_ISREG(told.st_mode)
                        and told.st_uid == os.getuid()
                        and told.st_ctime >= self._looked_at
                        and not (inode in opened or inode in self._paths)
                        and inode not in self._strangers
                    ):
                        found[inode] = entry.path
        return found

    def _size(self, inode: Inode, opened: dict[Inode, str]) -> int | None:
        """What a file holds now; None when it is gone."""
        path = opened.get(inode, "")
        if path.startswith("/proc/"):
            with suppress(OSError):
                self._paths[inode] = os.readlink(path)
                return os.stat(path).st_blocks * 512
        known = self._paths[inode]
        for place in (known, renamed(known, inode.number)):
            with suppress(OSError):
                told = os.stat(place)
                if inode == (told.st_dev, told.st_ino):
                    self._paths[inode] = place
                    return told.st_blocks * 512
        return None

    def _segments(self) -> int:
        """What the tree's System V segments hold that no process has attached."""
        total = 0
        with suppress(OSError, ValueError, IndexError), open("/proc/sysvipc/shm", "rb") as table:
            names, *rows = (line.split() for line in table)
            for row in rows:
                told = dict(zip(names, row))
                is_ours = int(told[b"cpid"]) in self._pids
                if (
                    is_ours
                    and told[b"nattch"] == b"0"
                    and int(told[b"ctime"]) >= self._began_at - 1
                ):
                    total += int(told[b"rss"]) + int(told[b"swap"])
        return total

    def mapped(self, pids: Iterable[int]) -> int:
        """Return what of the run's files the readings of these processes count already."""
        own = (one for pid in pids for one in mappings(pid) if one[:2] in self.sizes)
        return sum(one.share for one in own)


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


class RamMeter:
    """RAM held by a tree, and the greatest it held."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self.held: int | None = None
        self.shared = 0  # of what is held: what `statm` does not tell from files on a disk
        self.mapped: int | None = None
        self.files = files
        self._beside_processes = 0  # files in memory and huge pages, as last read
        self.taken_at = 0.0
        self.peak: int | None = None
        self.exact = True
        self.due_at = 0.0
        self._cost_s = 0.0
        self._rows: dict[int, int] = {}  # what each process held when it was last read
        self._ended: dict[int, int] = {}  # what ended workers held, while one beside them ends too
        self._beside: set[int] = set()  # the workers that were left when one ended last
        self._largest: dict[int, Reading] = {}  # per process, its reading with most resident
        self._single = 0  # most resident bytes that any one process was seen with
        self._seen = (0, 0)  # the greatest glance that a reading goes with

    def want(self) -> None:
        """Call for a reading as soon as its cost allows."""
        self.due_at = min(self.due_at, self.taken_at + self._cost_s / SHARE)

    def look(self, pids: Iterable[int]) -> None:
        """Call for a reading if these processes hold notably more than at any reading so far."""
        pairs = zip(glance(pids), self._seen)
        has_grown = any(now > seen + max(GROWN_BYTES, seen * 3 // 100) for now, seen in pairs)
        if has_grown or (self.files is not None and self.files.have_moved()):
            self.want()

    def read(self, pids: list[int], now: float) -> None:
        """Take a reading of every process of the tree.

        A process that forks without end locks its page tables for seconds on end; past
        `PATIENCE_S` the rest is read roughly, so that the run can still be stopped.
        """
        began, most = awake_time(), shared_memory()
        found: dict[int, Reading] = {}
        for pid in pids:
            is_late = awake_time() - began > PATIENCE_S
            reading = read_roughly(pid) if is_late else read_memory(pid)
            if reading is not None:
                found[pid] = reading
        self._rows.clear()
        for pid, reading in found.items():
            self._take(pid, reading)
        self._largest = {pid: self._largest[pid] for pid in pids if pid in self._largest}
        if self._beside <= found.keys():
            self._ended.clear()
        self._beside_processes = self._read_beside(pids, found, most)
        self.held = sum(self._rows.values()) + self._beside_processes
        self.shared = sum(r.shared for r in found.values()) + self._beside_processes
        self.mapped = sum(reading.mapped for reading in found.values())
        self.exact = self.exact and all(reading.exact for reading in found.values())
        self.peak = max(self.peak or 0, self.held)
        resident, private = glance(pids)
        self._seen = (max(self._seen[0], resident), max(self._seen[1], private))
        self.taken_at, self._cost_s = now, awake_time() - began
        self.due_at = now + max(READING_S, self._cost_s / SHARE)

    def ended(self, pid: int, mark: int, *, had_children: bool, beside: Iterable[int] = ()) -> None:
        """Count what an ended worker held unseen: ``mark`` is its greatest resident size.

        The kernel's mark covers the children that the process waited for, so a process that had
        any is held against the largest process ever seen.  What it held, it held together with
        what the workers ``beside`` it hold now, and with what those held that ended just before:
        they are counted on until a reading finds every worker that is left, none on its way out.
        """
        self._beside = set(beside)
        largest = self._largest.pop(pid, Reading(0, 0, 0, exact=True))
        unseen = mark - max(largest.resident, self._single if had_children else 0)
        for other in self._beside:
            reading = read_memory(other)
            if reading is not None:
                self._take(other, reading)
        last = self._rows.pop(pid, 0)
        self._ended[pid] = largest.held + unseen if unseen > 0 else last
        together = sum(self._rows.values()) + sum(self._ended.values())
        # Mark and reading count what was mapped of files in memory, which may be known by now.
        files = max(0, self._beside_processes - max(0, unseen) - largest.shmem)
        self.peak = max(self.peak or 0, together + files)

    def left_behind(self, pid: int) -> int:
        """Return what of the run's files in memory outlives it: it held at least that."""
        if self.files is None or not self.files.sizes:
            return 0
        left = self.files.look([pid])
        self.peak = max(self.peak or 0, left)
        return left

    def _read_beside(self, pids: list[int], found: dict[int, Reading], most: int) -> int:
        """What the tree holds in no process's pages: files in memory, and surplus huge pages.

        A reserved pool of huge pages is out of what is available whether it is used or not, so
        that what a run takes of it is no need of its own.  ``most`` is the machine's shared memory
        before this reading: what is let go of meanwhile is not counted in both places.
        """
        huge = sum(reading.huge for reading in found.values())
        total = min(huge, surplus_huge_pages()) if huge else 0
        if self.files is not None:
            shared = [pid for pid, reading in found.items() if reading.shmem > 0]
            notable = [pid for pid in shared if found[pid].shmem > GROWN_BYTES]
            held = self.files.look(pids, notable)
            twice = self.files.mapped(shared) if held else 0
            for pid in shared if held else ():
                now = read_memory(pid)  # what it has let go of since is counted there and here
                twice += max(0, found[pid].shmem - (now.shmem if now else 0))
            held -= min(held, twice)
            mapped = sum(reading.shmem for reading in found.values())
            total += min(held, max(0, max(most, shared_memory()) - mapped))
        return total

    def _take(self, pid: int, reading: Reading) -> None:
        """Keep what one process holds now."""
        self._rows[pid] = reading.held
        if reading.resident >= self._largest.get(pid, reading).resident:
            self._largest[pid] = reading
        self._single = max(self._single, reading.resident)


# -- files ------------------------------------------------------------------------------------


def write_whole(path: str, data: bytes) -> None:
    """Write a file that appears whole or not at all, and stays after a power cut."""
    with open(f"{path}.new", "wb") as new:
        new.write(data)
        new.flush()
        os.fsync(new.fileno())
    os.replace(f"{path}.new", path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def as_json(value: object) -> bytes:
    """Encode for a file or a message."""
    return json.dumps(value).encode()


def open_to_append(path: str) -> tuple[int, int]:
    """Open a file that only grows; return its descriptor and size."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return file, os.fstat(file).st_size


class Records:
    """A file of JSON lines; a full disk delays lines but never cuts one."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self._file, self._size = open_to_append(path)
        self._is_durable = durable  # against a power cut
        self._waiting: list[bytes] = []

    def add(self, line: bytes) -> None:
        self._waiting.append(line + b"\n")

    def write(self) -> None:
        """Bring the lines that wait to the disk."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        if append_whole(self._file, self._size, data):
            self._size, self._waiting = self._size + len(data), []
            if self._is_durable:
                with suppress(OSError):
                    os.fdatasync(self._file)
        else:
            self._waiting = [data]


def append_whole(file: int, size: int, data: bytes) -> bool:
    """Append to a file of this size; on False all of it was taken back."""
    written = 0
    with suppress(OSError):
        while taken := os.write(file, memoryview(data)[written:]):
            written += taken
            if written == len(data):
                return True
    with suppress(OSError):
        os.ftruncate(file, size)
    return False


class Messages:
    """Errors and warnings of a run; each kind has its own limit, and long texts are cut."""

    def __init__(self, path: str) -> None:
        self._records = Records(path, durable=False)
        self._errors = self._warned = self._unsaid = 0
        self.write = self._records.write

    def add(self, event: dict[str, Any]) -> None:
        line = as_json({name: shortened(value) for name, value in event.items()})
        if event["event"] == "error":
            self._errors += 1
            if self._errors <= ERRORS_MAX:
                self._records.add(line)
        elif self._warned + len(line) > WARNINGS_CAP:
            self._unsaid += 1
        else:
            self._warned += len(line)
            self._records.add(line)

    def remark(self, text: str) -> None:
        """Add a warning of the supervisor's own: there are few."""
        self._records.add(as_json({"event": "warning", "text": text}))

    def close(self) -> None:
        """Report how many warnings were dropped."""
        if self._unsaid:
            self.remark(f"{self._unsaid:,} more warnings are not kept")


def shortened(value: Any) -> Any:
    """Cut a text in its middle, a list of texts at its beginning."""
    if isinstance(value, str) and len(value) > TEXT_CAP:
        left_out = f"\n... {len(value) - TEXT_CAP:,} more characters ...\n"
        return value[: TEXT_CAP // 2] + left_out + value[-TEXT_CAP // 2 :]
    if isinstance(value, list):
        kept: list[Any] = []
        size = 0
        for part in reversed(value):
            kept.append(shortened(part))
            size += len(str(kept[-1]))
            if size > TEXT_CAP:
                break
        return kept[::-1]
    return value


class Display(NamedTuple):
    """One line of the displays' file, as far as its place in the file depends on it."""

    number: int
    size: int
    worker: int
    update_of: int | None  # the display that it renews
    clear: str  # "now", "wait" for the next display, or none


class Displays:
    """What a run displays, as JSON lines: an update replaces the one before it, also on the disk.

    Each line has a number, by which a reader finds its place again when the file was written anew.
    What was replaced or cleared is left out then.  Where that is not enough, the older half gives
    way to one line that says so.
    """

    def __init__(
        self, path: str, *, alone: bool, cap: int = DISPLAY_CAP, most: int = DISPLAY_LINES
    ) -> None:
        self._path, self._cap, self._most = path, cap, most
        self._alone = alone  # whether there is one worker, whose clears are of the whole page
        self._file, self._size = open_to_append(path)
        self._number = 0
        self._lines: list[Display] = []
        self._newest: dict[int, Display] = {}  # the newest update of each display
        self._cleared: dict[int, int] = {}  # per worker, before which number all is cleared
        self._clears: dict[int, int] = {}  # clears that the next display of a worker brings about
        self._fresh: dict[int, int] = {}  # per worker, bytes that nothing has replaced
        self._stale = 0  # bytes
        self._gap = b""  # the line about what gave way
        self._waiting: list[tuple[Display, bytes]] = []
        self._waits = 0  # bytes
        self._retry_at = 0  # size of the file at which it is tried again to write it anew
        self.gone = 0  # displays that gave way

    def add(self, line: bytes, event: dict[str, Any], worker: int, place: int | None) -> None:
        """Take one event; ``place`` is the byte of the output that it follows."""
        self._number += 1
        told = {"n": self._number, "worker": worker, "alone": self._alone, "at": place}
        data = b"%b, %b\n" % (line.rstrip()[:-1], as_json(told)[1:])
        if self._waits + len(data) > WAITING_CAP:
            self.gone += 1
            return
        transient = event.get("transient")
        name = transient.get("display_id") if isinstance(transient, dict) else None
        is_update = event.get("update") is True and isinstance(name, str)
        update_of = hash((worker, name)) if is_update else None
        clear = "" if event.get("clear") is not True else "wait" if event.get("wait") else "now"
        shown = Display(self._number, len(data), worker, update_of, clear)
        self._waiting.append((shown, data))
        self._waits += len(data)

    def write(self) -> None:
        """Bring the lines that wait to the disk."""
        if not self._waiting:
            return
        data = b"".join(data for _, data in self._waiting)
        if not append_whole(self._file, self._size, data):
            return
        self._size += len(data)
        for shown, _ in self._waiting:
            self._count(shown)
        self._waiting, self._waits = [], 0
        is_full = self._size > self._cap or len(self._lines) > self._most
        is_loose = self._stale > max(STALE_BYTES, self._size // 2)
        if (is_full or is_loose) and self._size >= self._retry_at:
            self._write_anew()

    def _count(self, shown: Display) -> None:
        self._lines.append(shown)
        worker = shown.worker
        if shown.clear == "wait":
            self._clears[worker] = shown.number
        elif shown.clear:
            self._clear(worker, shown.number)
        elif shown.update_of is None:
            self._clear(worker, self._clears.pop(worker, 0))
        else:
            before = self._newest.get(shown.update_of)
            if before is not None and not self._is_stale(before):
                self._stale += before.size
                self._fresh[worker] -= before.size
            self._newest[shown.update_of] = shown
        self._fresh[worker] = self._fresh.get(worker, 0) + shown.size

    def _clear(self, worker: int, number: int) -> None:
        if number:
            self._stale += self._fresh.pop(worker, 0)
            self._cleared[worker] = number

    def _is_stale(self, shown: Display) -> bool:
        is_newest = shown.update_of is None or self._newest.get(shown.update_of) is shown
        return not is_newest or shown.number < self._cleared.get(shown.worker, 0)

    def _write_anew(self) -> None:
        kept = [one for one in self._lines if not self._is_stale(one)]
        size, first = sum(one.size for one in kept), 0
        if size > self._cap // 2 or len(kept) > self._most // 2:
            while first < len(kept) - 1 and (
                size > self._cap // 2 or len(kept) - first > self._most // 2
            ):
                size -= kept[first].size
                first += 1
        gone = self.gone + sum(not one.clear and not one.update_of for one in kept[:first])
        gap = self._gap
        if first:
            told = {"event": "gone", "n": kept[first - 1].number, "count": gone}
            gap = as_json(told) + b"\n"
        try:
            self._copy(kept[first:], gap)
        except OSError:  # a full disk has no room for the second file
            with suppress(OSError):
                os.unlink(f"{self._path}.new")
            self._retry_at = self._size + STALE_BYTES
            return
        self.gone, self._gap, self._lines, self._stale = gone, gap, kept[first:], 0
        self._newest = {one.update_of: one for one in self._lines if one.update_of is not None}
        self._fresh = {}
        for one in self._lines:
            self._fresh[one.worker] = self._fresh.get(one.worker, 0) + one.size

    def _copy(self, kept: list[Display], gap: bytes) -> None:
        """Write a file of these lines alone, and put it in the place of the old one."""
        numbers = {one.number for one in kept}
        with open(self._path, "rb") as old, open(f"{self._path}.new", "wb") as new:
            new.write(gap)
            old.seek(len(self._gap))
            for one in self._lines:
                if one.number in numbers:
                    new.write(old.read(one.size))
                else:
                    old.seek(one.size, os.SEEK_CUR)
        os.replace(f"{self._path}.new", self._path)
        os.close(self._file)
        self._file, self._size = open_to_append(self._path)


class OutputLog:
    """What a run prints; past ``cap`` bytes its older half gives way to a note."""

    def __init__(self, path: str, cap: int = OUTPUT_CAP) -> None:
        self._path, self._cap = path, cap
        self._file, self._size = open_to_append(path)
        self._gone = 0
        self._lost = 0

    @property
    def end(self) -> int:
        """The number of bytes so far, including dropped ones."""
        return self._gone + self._size

    def write(self, data: bytes) -> None:
        """Append; data that a full disk does not take is dropped and reported later."""
        if not data:
            return
        note = LOST % self._lost if self._lost else b""
        written = self._append(note + data)
        if written < len(note):
            self._lost += len(data)
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
        else:
            self._size += written
            self._lost = len(note) + len(data) - written

    def _append(self, data: bytes) -> int:
        with suppress(OSError):
            if self._size + len(data) > self._cap:
                self._make_room()
            return os.write(self._file, data)
        return 0

    def _make_room(self) -> None:
        try:
            self._roll()
        except OSError:  # a full disk has no room for the second file
            with suppress(OSError):
                os.unlink(f"{self._path}.new")
            gone = self.end
            os.ftruncate(self._file, 0)
            self._gone, self._size = gone, 0
            self._size = os.write(self._file, GONE % gone)
            self._gone -= self._size

    def _roll(self) -> None:
        with open(self._path, "rb") as old, open(f"{self._path}.new", "wb") as new:
            old.seek(max(0, self._size - self._cap // 2))
            old.readline(CHUNK)
            gone = self._gone + old.tell()
            new.write(GONE % gone)
            self._gone = gone - new.tell()  # the note is none of the run's own bytes
            while chunk := old.read(CHUNK):
                new.write(chunk)
        os.replace(f"{self._path}.new", self._path)
        os.close(self._file)
        self._file, self._size = open_to_append(self._path)


class Lines:
    """One worker's output cut into whole lines, so that those of several workers do not mix."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""

    def feed(self, data: bytes, *, ended: bool) -> bytes:
        """Return what can be written now; without a prefix that is everything, as it is."""
        if not self._prefix:
            return data
        pieces = (self._rest + data).splitlines(keepends=True)
        self._rest = b""
        if pieces and not pieces[-1].endswith(b"\n"):
            if ended or len(pieces[-1]) > CHUNK:
                pieces[-1] += b"\n"
            else:
                self._rest = pieces.pop()
        return b"".join(self._prefix + piece for piece in pieces)


class EventLines:
    """Cuts a worker's events into whole lines; one that is too long is counted, not kept."""

    def __init__(self, most: int = EVENT_CAP) -> None:
        self._most = most
        self._rest = bytearray()
        self._is_too_long = False
        self.dropped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now, each without its end."""
        *ends, rest = data.split(b"\n")
        lines = []
        for end in ends:
            self._grow(end)
            if self._is_too_long:
                self.dropped += 1
            else:
                lines.append(bytes(self._rest))
            self._rest, self._is_too_long = bytearray(), False
        self._grow(rest)
        return lines

    def _grow(self, data: bytes) -> None:
        if self._is_too_long or len(self._rest) + len(data) > self._most:
            self._rest, self._is_too_long = bytearray(), True
        else:
            self._rest += data


def event_in(line: bytes) -> dict[str, Any] | None:
    """Parse an event; of a very long one what precedes its data."""
    is_long = len(line) > HEAD_CAP
    head = line[: line.find(b', "data": ', 0, HEAD_CAP)] + b"}" if is_long else line
    try:
        event = json.loads(head)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("event"), str)
    return event if is_event and (not is_long or line.endswith(b"}")) else None


class Mark(NamedTuple):
    """Where in a worker's output a display belongs, or a clear."""

    number: int
    clear: str  # "now", "wait" for the next output, or none


class Marks:
    """Removes a worker's marks from its output: the only place where prints and displays meet.

    A mark begins with a secret of its worker, so that nothing that the run prints is taken for one.
    """

    def __init__(self, secret: str) -> None:
        self._start = MARK % secret.encode()
        self._mark = re.compile(re.escape(self._start) + rb"([0-9]{1,15});([a-z]{0,4})\x07")
        self._rest = b""

    def cut(self, data: bytes, *, ended: bool) -> Iterator[tuple[bytes, Mark | None]]:
        """Return the output piece by piece, each with the mark behind it."""
        data = self._rest + data
        at = 0
        for found in self._mark.finditer(data):
            yield data[at : found.start()], Mark(int(found[1]), found[2].decode())
            at = found.end()
        end = len(data) if ended else self._certain(data)
        self._rest = data[max(at, end) :]
        yield data[at : max(at, end)], None

    def _certain(self, data: bytes) -> int:
        """Return up to which byte no mark can have begun."""
        at = data.rfind(b"\x1b", max(0, len(data) - MARK_MAX))
        tail = data[at:] if at >= 0 else b" "
        is_begun = self._start.startswith(tail) or tail.startswith(self._start)
        return at if is_begun and b"\x07" not in tail else len(data)


# -- the gate ---------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What the gate said to one message; status 0: nothing could be understood."""

    message: str
    status: int
    body: dict[str, Any]


def post(path: str, message: str, body: dict[str, Any]) -> Answer:
    """Ask the gate once over its unix socket; raise OSError or ValueError without an answer.

    A path that begins with "@" is a name that the kernel keeps.  Anybody may take one, so the gate
    is whoever runs under this user's uid, or root's.

    Written out because http.client brings 6 MB and 18 ms with it; HTTP/1.0 has no chunks.
    """
    content = as_json(body)
    head = (
        f"POST /lease/v1/{message} HTTP/1.0\r\nHost: gpugate\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10.0)
        link.connect("\0" + path[1:] if path.startswith("@") else path)
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] not in (0, os.geteuid()):
            raise PermissionError(path)
        link.sendall(head.encode() + content)
        answer = b""
        while chunk := link.recv(CHUNK):
            answer += chunk
    status_line, _, rest = answer.partition(b"\r\n")
    status = int(status_line.split()[1]) if status_line.startswith(b"HTTP/") else 0
    data = json.loads(rest.partition(b"\r\n\r\n")[2]) if status == 200 else {}  # noqa: PLR2004
    return Answer(message, status, data if isinstance(data, dict) else {})


class GateLink:
    """One question at a time, each in a thread of its own; failures wait longer and longer."""

    def __init__(self, path: str, wake: Callable[[], object], others: Iterable[str] = ()) -> None:
        self._paths, self._wake = (path, *others), wake
        self._thread: threading.Thread | None = None
        self._answer: Answer | None = None
        self._delay_s = self._not_before = 0.0

    @property
    def is_busy(self) -> bool:
        return self._thread is not None

    def ask(self, message: str, body: Callable[[], dict[str, Any]], now: float) -> bool:
        """Send a message unless another is under way or the last failure is too young."""
        if self._thread is not None or now < self._not_before:
            return False
        thread = threading.Thread(target=self._run, args=(message, body()), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the run has used up every process there may be
            self._wait_longer(now)
            return False
        self._thread = thread
        return True

    def take(self, now: float) -> Answer | None:
        """Return the answer once it is there; any but 200 and 409 means: ask again, later."""
        if self._thread is None or self._answer is None:
            return None
        self._thread.join()  # no other thread is left when the workers are forked
        answer, self._thread, self._answer = self._answer, None, None
        if answer.status in (200, 409):
            self._delay_s = 0.0
        else:
            self._wait_longer(now)
        return answer

    def _wait_longer(self, now: float) -> None:
        self._delay_s = min(5.0, max(0.2, 2 * self._delay_s))
        self._not_before = now + self._delay_s * (0.5 + os.urandom(1)[0] / 512)

    def _run(self, message: str, body: dict[str, Any]) -> None:
        answer = Answer(message, 0, {})
        for path in self._paths:
            with suppress(Exception):  # any failure means that there is no answer
                answer = post(path, message, body)
                break
        self._answer = answer
        with suppress(BlockingIOError):  # awake already
            self._wake()


# -- workers ----------------------------------------------------------------------------------


def worker_environment(launch: dict[str, Any], base: dict[str, str], worker: int) -> dict[str, str]:
    """Environment of one worker: the run's own, the tags, its devices and its share of the cap."""
    devices, workers = launch["devices"], launch["workers"]
    caps = {uuid: cap // workers for uuid, cap in launch["caps"].items()}
    own = {"PYTHONUNBUFFERED": "1"}
    if devices or not launch.get("keeps_mask"):
        own["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if devices and caps:
        own.update(framework_settings(launch, base, caps))
    return {
        **base,
        **own,
        "GPUGATE_RUN_ID": launch["run_id"],
        "GPUGATE_ATTEMPT": str(launch["attempt"]),
        "GPUGATE_WORKER": str(worker),
        "GPUGATE_WORKERS": str(workers),
        "GPUGATE_CAPS": json.dumps(caps),
        # A run that submits another one has it see what this one's notebook sees.
        "GPUGATE_REPLACED": json.dumps({k: [value, base.get(k)] for k, value in own.items()}),
    }


def framework_settings(
    launch: dict[str, Any], base: dict[str, str], caps: dict[str, int]
) -> dict[str, str]:
    """Variables by which JAX and TensorFlow leave memory to others; the user's own values stand."""
    settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    totals = launch["device_totals"]
    shares = [cap / totals[uuid] for uuid, cap in caps.items() if totals.get(uuid)]
    if shares:
        settings["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{min(1.0, *shares):.4f}"
    return {name: value for name, value in settings.items() if name not in base}


def limit(limits: dict[str, list[int]]) -> None:
    """Set soft and hard limits of this process by name, as far as it may; -1 is none."""
    for name, (soft, hard) in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:  # of another Python
            continue
        try:
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):  # only root may raise a hard limit
            most = resource.getrlimit(kind)[1]
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, (soft if 0 <= soft < most else most, most))


def pull(fd: int) -> tuple[bytes, bool]:
    """Read what is there, a MiB at most; True: the other end is closed."""
    chunks: list[bytes] = []
    while len(chunks) < (1 << 20) // CHUNK:
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return b"".join(chunks), False
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
    return b"".join(chunks), False


class Worker:
    """One worker process with its output, which keeps the order of writing, and its events."""

    def __init__(self, argv: list[str], environment: dict[str, str], **how: Any) -> None:
        self.index = int(environment["GPUGATE_WORKER"])
        self.output, output = os.pipe()
        self.events, events = os.pipe()
        try:
            # One pipe for both streams: with two, the order between them would be lost.
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, "GPUGATE_EVENTS_FD": str(events)},
                pass_fds=(events,),
                start_new_session=True,
                **how,
            )
        finally:
            os.close(output)
            os.close(events)
        os.set_blocking(self.output, False)
        os.set_blocking(self.events, False)
        self.lines = Lines(b"[%d] " % self.index if environment["GPUGATE_WORKERS"] != "1" else b"")
        self.code: int | None = None
        self.has_result = False
        self.oom: dict[str, Any] | None = None
        self.torch: dict[str, dict[str, int]] = {}
        self.marks = Marks(environment.get("GPUGATE_MARK") or os.urandom(8).hex())
        self.places: dict[int, int] = {}  # by mark, the byte of the output that it follows
        self.is_to_clear = False  # before its next output
        self.event_lines = EventLines()

    def take_events(self) -> tuple[list[tuple[bytes, dict[str, Any]]], bool]:
        """Return the whole JSON lines that came, with what they say; True: the end was reached."""
        data, ended = pull(self.events)
        events = ((line, event_in(line)) for line in self.event_lines.feed(data))
        found = [(line, event) for line, event in events if event is not None]
        return found, ended


def bytes_by_device(figures: object) -> dict[str, int]:
    """Keep what has the form {uuid: bytes}; a worker's figures are data, not to be trusted."""
    items = figures.items() if isinstance(figures, dict) else ()
    return {k: v for k, v in items if isinstance(v, int) and not isinstance(v, bool) and v >= 0}


def summed(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add up figures by device."""
    total: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0) + value
    return total


def classify(
    code: int, oom: dict[str, Any] | None, *, kills: int, shm_full: bool
) -> dict[str, Any]:
    """Say by evidence how a worker failed; the end's fields.

    ``code`` is negative for a signal; a shell reports its child's signal as 128 + N.  ``oom`` is
    what the worker itself found; ``kills`` counts host OOM kills since the start.
    """
    number = -code if code < 0 else code - 128
    reason = said_of(code)
    end = {"outcome": "failed", "reason": reason, "exit_code": code}
    if oom is not None and oom.get("resource") in ("vram", "ram", "shm"):
        evidence = ("oom", oom["resource"], str(oom.get("evidence", "")))
    elif number == signal.SIGKILL and kills > 0:
        evidence = ("oom", "ram", "host_oom_killer")
    elif number == signal.SIGBUS and shm_full:
        evidence = ("oom", "shm", "shm_full")
    else:
        return end
    return {**end, **dict(zip(("outcome", "oom_resource", "oom_evidence"), evidence))}


def is_shm_full() -> bool:
    """Whether less than 1 % of the shared memory file system is free."""
    try:
        space = os.statvfs("/dev/shm")  # noqa: S108 - asked for its room only
    except OSError:
        return False
    return space.f_blocks > 0 and space.f_bavail * 100 < space.f_blocks


def said_of(code: int) -> str:
    """Say how a process ended; ``code`` is negative for a signal."""
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
    return f"signal {-code}"


def listed(names: list[str], most: int = 5) -> str:
    """List a few names, and count the rest."""
    more = len(names) - most
    return ", ".join([*names[:most], *([f"{more} more"] if more > 0 else [])])


# -- the supervisor ---------------------------------------------------------------------------


class Supervisor:
    """One attempt, from the question whether to go to the record of its end."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        with open(self._path("launch.json"), "rb") as launch:
            self.launch: dict[str, Any] = json.load(launch)
        self.place = os.lstat(attempt)  # it may be removed, or another be put in its place
        self.umask = os.umask(0o077)
        self.me = process(os.getpid()) or Proc(os.getpid(), 0)
        with open("/proc/sys/kernel/random/boot_id") as boot_id:
            self.boot_id = boot_id.read().strip()
        self.started_at: float | None = None
        self.wall_started = time.time()
        self.end: dict[str, Any] | None = None  # outcome and reason, once they are certain
        self.phase = "starting"
        self.stopping: Stopping | None = None
        self.cgroup: str | None = None
        self.workers: list[Worker] = []
        self.is_childless = False
        self.is_alone = self.launch["workers"] == 1  # no second process was ever seen
        self.tree: set[Proc] = set()
        self.meter = RamMeter(MemoryFiles(self.wall_started))
        self.episodes: set[int] = set()
        self.background: Background | None = None  # since all workers have completed
        self.has_printed = self.is_said = False
        self.clients: set[str] = set()  # programs of `CLIENTS` that were seen
        self.stop_asked = ""  # the first reason somebody gave to stop
        self.is_terminated = False
        self.is_fenced = False
        self.is_shm_full = False
        self.kills_before = oom_kills()
        self.glance_at = self.beat_at = 0.0
        self.output = OutputLog(self._path("output.log"))
        self.finished = Records(self._path("episodes.jsonl"), durable=True)
        is_alone = self.launch["workers"] == 1
        self.shown = Displays(self._path("display.jsonl"), alone=is_alone)
        self.said = Messages(self._path("messages.jsonl"))
        self.selector = selectors.DefaultSelector()
        woken, self.waker = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(self.waker, False)
        self.selector.register(woken, selectors.EVENT_READ, lambda: pull(woken))
        path, others = self.launch["socket"], self.launch.get("sockets", [])[1:]
        self.link = GateLink(path, lambda: os.write(self.waker, b"."), others)

    def run(self) -> None:
        """Live the attempt's whole life."""
        self._settle_in()
        try:
            if self._is_told_to_go():
                self._start()
                while self.end is None or not self.is_childless:
                    self._step()
        except Exception as error:  # noqa: BLE001 - whatever broke here, nothing may stay behind
            sys.excepthook(type(error), error, error.__traceback__)
            self.end = {"outcome": "failed", "reason": f"supervisor: {error!r}"}
            kill_all(self.me.pid)
        self._finish()

    def _path(self, name: str) -> str:
        return os.path.join(self.attempt, name)

    def _settle_in(self) -> None:
        wanted = self.launch.get("cgroups") or {}
        missed = join_cgroups(wanted)
        if missed:
            self._warn(f"the run could not join cgroup {missed[0]}: its limits do not bind the run")
        if wanted:
            self.kills_before = oom_kills()
        with suppress(PermissionError):  # the leader of a group cannot, and need not
            os.setsid()
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the run's own processes.
        for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(ignored, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)

    # -- being told to stop

    def _on_term(self, *_: object) -> None:
        self.is_terminated = True

    def _is_stop_asked(self) -> bool:
        """Look for a stop: the file says why, a bare SIGTERM does not."""
        with suppress(OSError, ValueError, KeyError, TypeError), open(self._path("stop.json")) as f:
            self.stop_asked = self.stop_asked or str(json.load(f)["reason"])
        if self.is_terminated:
            self.stop_asked = self.stop_asked or "terminated"
        return bool(self.stop_asked)

    def _end_by_request(self) -> dict[str, Any]:
        outcomes = {"cancelled": "cancelled", "evicted": "evicted", "fenced": "lost"}
        outcome = outcomes.get(self.stop_asked, "failed")
        return {"outcome": outcome, "reason": self.stop_asked}

    # -- being told to go

    def _is_told_to_go(self) -> bool:
        """Ask the gate until it answers; no user code runs before it says go."""
        launch = self.launch
        body = {"run_id": launch["run_id"], "fence": launch["fence"], "pid": self.me.pid}
        body.update(start_ticks=self.me.ticks, boot_id=self.boot_id)
        give_up_at = awake_time() + HOLD_FENCE_S
        while self.end is None and not self._is_stop_asked():
            now = awake_time()
            answer = self.link.take(now)
            if answer is not None and answer.status != 0:
                give_up_at = now + HOLD_FENCE_S
                if answer.status == 200 and answer.body.get("verdict") == "go":  # noqa: PLR2004
                    return True
                if answer.status < 500:  # noqa: PLR2004
                    self.is_fenced = answer.status in (200, 409)
                    reason = "fenced" if self.is_fenced else f"refused with {answer.status}"
                    self.end = {"outcome": "not_started", "reason": reason}
            if now >= give_up_at:
                self.end = {"outcome": "not_started", "reason": "no gate answered"}
            self.link.ask("started", lambda: body, now)
            self._wait(GLANCE_S)
        self.end = self.end or self._end_by_request()
        return False

    def _start(self) -> None:
        launch = self.launch
        self.started_at, self.wall_started = awake_time(), time.time()
        name = f"gpugate-{launch['run_id']}-{launch['attempt']}"
        self.cgroup = make_cgroup(name)
        try:
            with open(self._path(launch["env_file"]), "rb") as env_file:
                base = json.load(env_file)
            for index in range(launch["workers"]):
                self._start_worker(worker_environment(launch, base, index))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._stop({"outcome": "failed", "reason": f"cannot start: {error}"})
            return
        self.phase = "running"
        self._glance(awake_time())

    def _start_worker(self, environment: dict[str, str]) -> None:
        launch = self.launch
        argv = list(launch["argv"])
        if launch["kind"] == "cell":
            environment = {**environment, "GPUGATE_MARK": os.urandom(8).hex()}
            here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            program = [os.path.join(here, "worker"), self.attempt, environment["GPUGATE_WORKER"]]
            argv = [launch["interpreter"], *launch["flags"], *program]
        umask = self.umask if launch["umask"] is None else launch["umask"]
        how = {"cwd": launch["cwd"], "umask": umask, "preexec_fn": self._before_exec}
        started = Worker(argv, environment, **how)
        self.workers.append(started)
        for fd, read in ((started.output, self._read_output), (started.events, self._read_events)):
            self.selector.register(fd, selectors.EVENT_READ, lambda read=read: read(started))

    def _before_exec(self) -> None:
        """Prepare a forked worker; it is the only thread, so this is safe."""
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self.me.pid:
            os._exit(1)
        put("/proc/self/oom_score_adj", self.launch["oom_score_adj"])
        if self.cgroup:
            put(f"{self.cgroup}/cgroup.procs", 0)
        limit(self.launch.get("limits", {}))

    # -- the loop

    def _wait(self, timeout_s: float) -> None:
        for key, _ in self.selector.select(max(0.0, timeout_s)):
            key.data()

    def _step(self) -> None:
        due_at = min(self.glance_at, self.meter.due_at)
        if self.stopping is not None:
            due_at = min(due_at, self.stopping.next_at)
        self._wait(min(due_at - awake_time(), GLANCE_S))
        self._reap()
        now = awake_time()
        self._judge(now)
        if self.is_childless:
            return
        if now >= min(self.glance_at, self.meter.due_at):
            self._glance(now)
        if self.stopping is not None:
            self.stopping.advance(now)
        elif not self.link.is_busy:
            self._start_wanted_gate()
        self._talk(now)

    def _start_wanted_gate(self) -> None:
        """Start a gate outside the run if a program of the run asks for one.

        Which program that is was said before any user code ran.
        """
        place = self._path("gate.json")
        if not os.path.exists(place) or "gate" not in self.launch:
            return
        try:
            with open(place, "rb") as file:
                wanted = json.load(file)
            os.unlink(place)
            start_beside(self.launch["gate"], wanted["environ"], wanted["cwd"], wanted["log"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.stderr.write(f"the gate that the run needs cannot be started: {error!r}\n")

    def _read_output(self, worker: Worker) -> None:
        data, ended = pull(worker.output)
        self.has_printed = self.has_printed or bool(data)
        for text, mark in worker.marks.cut(data, ended=ended):
            if worker.is_to_clear and (text or (mark and not mark.clear)):
                self.output.write(CLEAR)
                worker.is_to_clear = False
            self.output.write(worker.lines.feed(text, ended=ended or mark is not None))
            if mark is not None:
                self._place(worker, mark)
        if ended:
            self._close(worker.output)

    def _place(self, worker: Worker, mark: Mark) -> None:
        """Record the position of a mark; a clear by the only worker also clears printed text."""
        if len(worker.places) < DISPLAY_LINES:
            worker.places[mark.number] = self.output.end
        if self.launch["workers"] == 1 and mark.clear == "now":
            self.output.write(CLEAR)
        elif self.launch["workers"] == 1 and mark.clear:
            worker.is_to_clear = True

    def _read_events(self, worker: Worker) -> None:
        events, ended = worker.take_events()
        for line, event in events:
            self._note(worker, line, event)
        self._write_records()
        if ended:
            self._close(worker.events)

    def _write_records(self) -> None:
        for records in (self.finished, self.shown, self.said):
            records.write()

    def _close(self, fd: int) -> None:
        self.selector.unregister(fd)
        os.close(fd)

    def _note(self, worker: Worker, line: bytes, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "episode":
            if isinstance(event.get("index"), int):
                self.episodes.add(event["index"])
                self.finished.add(line)
                self.meter.want()
        elif kind == "torch":
            names = ("vram_peak", "vram_held", "overhead")
            worker.torch.update({k: bytes_by_device(event[k]) for k in names if k in event})
        elif kind == "oom":
            worker.oom = event
        elif kind == "result":
            worker.has_result = True
            self.meter.want()
        elif kind == "display":
            self.shown.add(line, event, worker.index, self._place_of(worker, event))
        elif kind in ("error", "warning"):
            self.said.add(event)

    def _place_of(self, worker: Worker, event: dict[str, Any]) -> int | None:
        """Where in the output a display belongs: its mark was written before it."""
        mark = event.get("mark")
        if not isinstance(mark, int):
            return None
        if mark not in worker.places and worker.output in self.selector.get_map():
            self._read_output(worker)
        return worker.places.pop(mark, self.output.end)

    def _reap(self) -> None:
        """Wait for whoever has ended, adopted orphans too, and learn whether anybody is left."""
        self.is_childless = False
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self.is_childless = True
                return
            if ended is None:
                return
            fields = stat_fields(ended.si_pid)  # readable until the process is waited for
            had_children = bool(fields) and int(fields[8]) > 0  # their page faults
            _, status, usage = os.wait4(ended.si_pid, 0)
            worker = next((w for w in self.workers if w.process.pid == ended.si_pid), None)
            if worker is None:
                self._note_orphan(ended.si_pid, os.waitstatus_to_exitcode(status))
            self.is_alone = self.is_alone and worker is not None and not had_children
            if worker is not None:
                worker.code = worker.process.returncode = os.waitstatus_to_exitcode(status)
                left = [w.process.pid for w in self.workers if w.code is None]
                mark = usage.ru_maxrss << 10
                self.meter.ended(ended.si_pid, mark, had_children=had_children, beside=left)
                if worker.events in self.selector.get_map():
                    self._read_events(worker)

    def _note_orphan(self, pid: int, code: int) -> None:
        """Warn of background processes that have failed: the program's own end does not show it."""
        name = self.background.names.get(pid) if self.background and not self.end else None
        if name and code:
            self._warn(f"{name}, which it left in the background, ended with {said_of(code)}")

    def _warn(self, text: str) -> None:
        self.said.remark(text)

    def _glance(self, now: float) -> None:
        """Look at the tree; read its memory where that is due."""
        began = awake_time()
        tree = set(descendants(self.me.pid))
        self.is_alone = self.is_alone and len(tree) <= 1
        if tree != self.tree:
            self._meet(one.pid for one in tree - self.tree)
            self.tree = tree
            self._write_tree()
        pids = [self.me.pid, *(one.pid for one in tree)]
        self.meter.look(pids)
        self.is_shm_full = is_shm_full()
        cost_s = awake_time() - began
        age_s = now - (self.started_at or now)
        pace_s = min(GLANCE_S, max(0.02, age_s / 4))  # a run may be over before it is old
        self.glance_at = now + max(pace_s, cost_s / SHARE)
        if now >= self.meter.due_at:
            self._meet(pids)  # again: a process may run another program by now
            self.meter.read(pids, now)

    def _meet(self, pids: Iterable[int]) -> None:
        """Remember the clients of daemons among these processes."""
        self.clients.update(CLIENTS.intersection(program_of(command_of(pid)) for pid in pids))

    def _write_tree(self) -> None:
        if self._is_gone():
            return
        # Not synced: after a power cut no process of this tree is left.
        # A gate that finds the cgroup without this process removes it.
        own = {"boot_id": self.boot_id, "supervisor": self.me, "cgroup": self.cgroup}
        tree = {**own, "tree": sorted(self.tree)}
        with suppress(OSError):
            with open(self._path("tree.json.new"), "wb") as new:
                new.write(as_json(tree))
            os.replace(self._path("tree.json.new"), self._path("tree.json"))

    # -- the verdict

    def _judge(self, now: float) -> None:
        """Decide, once, how the attempt ends, and stop what is still there."""
        if self.end is not None:
            return
        failed = next((w for w in self.workers if self._has_failed(w)), None)
        limit_s = self.launch["time_limit_s"]
        is_done = failed is None and all(w.code is not None for w in self.workers)
        if is_done and not self._goes_on(now):
            self._stop({"outcome": "completed", "exit_code": 0}, linger_s=LINGER_S)
        elif self.stop_asked or (self.is_terminated and self._is_stop_asked()):
            self._stop(self._end_by_request())
        elif failed is not None:
            self._stop(self._failure(failed))
        elif limit_s is not None and now > (self.started_at or now) + limit_s:
            late = {"outcome": "failed", "reason": "time_limit"}
            # A cell that has ended with its outputs stored only waits for what it has left running.
            self._stop({"outcome": "completed", "exit_code": 0} if self._is_done() else late)

    def _is_done(self) -> bool:
        return self.launch["kind"] == "cell" and all(w.has_result for w in self.workers)

    def _goes_on(self, now: float) -> bool:
        """Whether a completed program has left something in the background that works."""
        if self.launch["kind"] != "program" or self.is_childless:
            return False
        if self.background is None:
            sessions = {worker.process.pid for worker in self.workers}
            cwd = os.path.realpath(self.launch["cwd"])
            self.background = Background(self.me.pid, sessions, cwd, now)
        left = self.background
        if now < left.due_at:
            return True
        was_new = now - left.began_at < LINGER_S
        goes_on = left.is_at_work(now, has_printed=self.has_printed)
        self.has_printed = False
        if goes_on and not was_new and not self.is_said:
            self.is_said = True
            names = listed(list(left.names.values()))
            note = f"[gpugate: the command has ended; the run goes on while {names} work]\n"
            self.output.write(note.encode(errors="replace"))
        return goes_on

    def _has_failed(self, worker: Worker) -> bool:
        is_silent = self.launch["kind"] == "cell" and not worker.has_result
        return worker.code is not None and (worker.code != 0 or is_silent)

    def _failure(self, worker: Worker) -> dict[str, Any]:
        code = worker.code or 0
        kills = oom_kills() - self.kills_before
        shm_full = self.is_shm_full or is_shm_full()
        end = classify(code, worker.oom, kills=kills, shm_full=shm_full)
        return end if code else {**end, "reason": "exit 0 before the end of the cell"}

    def _stop(self, end: dict[str, Any], linger_s: float = 0.0) -> None:
        self.meter.want()
        now = awake_time()
        self._glance(now)  # the last look before the tree goes
        alive = {program_of(command_of(one.pid)) for one in self.tree}
        self.clients |= alive & (CLIENTS | REMOTE_SHELLS)
        self.end, self.phase, self.beat_at = end, "stopping", 0.0
        grace_s, begin_at = self.launch["grace_s"], now + linger_s
        self.stopping = Stopping(self.me.pid, grace_s, self.cgroup, begin_at)

    # -- talking to the gate

    def _talk(self, now: float) -> None:
        answer = self.link.take(now)
        if answer is not None and answer.status == 409:  # noqa: PLR2004
            self.is_fenced = True
            self.stop_asked = self.stop_asked or "fenced"
        elif answer is not None and answer.status == 200:  # noqa: PLR2004
            if answer.body.get("verdict") == "stop":
                reason = str(answer.body.get("reason") or "stopped by the gate")
                self.stop_asked = self.stop_asked or reason
            next_in = answer.body.get("next_in")
            if isinstance(next_in, (int, float)) and self.beat_at > now:
                self.beat_at = now + min(30.0, max(0.2, next_in))
        elif answer is not None:
            self.beat_at = now
        if now < self.beat_at or self.is_fenced:
            return
        self._is_stop_asked()
        self._write_records()
        if self.link.ask("heartbeat", lambda: self._heartbeat(now), now):
            self.beat_at = now + self.launch["heartbeat_s"]

    def _heartbeat(self, now: float) -> dict[str, Any]:
        return {
            "run_id": self.launch["run_id"],
            "fence": self.launch["fence"],
            "tree": [self.me, *sorted(self.tree)],
            "report": {
                "ram_held_bytes": self.meter.held,
                "ram_shared_bytes": self.meter.shared,
                "ram_age_s": now - self.meter.taken_at,
                "mapped_bytes": self.meter.mapped,
                "vram_held_bytes": summed(w.torch.get("vram_held", {}) for w in self.workers),
                "device_overhead_bytes": summed(w.torch.get("overhead", {}) for w in self.workers),
            },
            "peaks": self._peaks(),
            "episode": len(self.episodes),
            "phase": self.phase,
            "stop_reason": self._stop_reason(),
        }

    def _stop_reason(self) -> str:
        reason = str(self.end.get("reason", "")) if self.end else ""
        stuck = self.stopping.survivors if self.stopping else []
        pids = ", ".join(str(one.pid) for one in stuck)
        return f"{reason} (kill_pending: {pids})" if stuck else reason

    def _peaks(self) -> dict[str, Any]:
        reports = [w.torch.get("vram_peak") for w in self.workers]
        return {
            "ram_bytes": self.meter.peak,
            "ram_meter": "" if self.meter.peak is None else "pss" if self.meter.exact else "rss",
            "ram_covered": self.is_alone and self.is_childless,
            "vram_bytes": summed(report for report in reports if report),
            "vram_covered": bool(reports) and None not in reports,
        }

    # -- the end

    def _finish(self) -> None:
        """Write the end to the disk, tell the gate, and go."""
        ended_at = awake_time()
        for worker in self.workers:
            if worker.output in self.selector.get_map():
                self._read_output(worker)
            for text, _ in worker.marks.cut(b"", ended=True):
                self.output.write(worker.lines.feed(text, ended=True))
        self.said.close()
        for remark in self._left_out():
            self._warn(remark)
        self.tree = set()
        self._write_tree()
        left = self.meter.left_behind(self.me.pid)
        end = self._end_report(ended_at)
        record = {"end": end, "wall_started": self.wall_started, "wall_ended": time.time()}
        record["kill"] = self._kill_record(ended_at)
        self._warn_of_rest(end, left)
        message = {"run_id": self.launch["run_id"], "fence": self.launch["fence"], "end": end}
        self.is_terminated = False
        is_recorded, is_told = False, self.is_fenced
        while (now := awake_time()) < ended_at + FINISH_S:
            is_recorded = is_recorded or self._record(record) or self._is_gone()
            answer = self.link.take(now)
            if answer is not None and answer.message == "finished":
                is_told = answer.status in (200, 409)
            if is_recorded and (is_told or self.is_terminated):
                return
            if not is_told:
                self.link.ask("finished", lambda: message, now)
            self._wait(GLANCE_S)

    def _warn_of_rest(self, end: dict[str, Any], left: int) -> None:
        """Warn of what the outcome does not show."""
        stopped = self.stopping.stopped if self.stopping else []
        if end["outcome"] == "completed" and stopped:
            is_idle = self.background is not None and self.background.is_idle
            why = f", which had not worked for {IDLE_S / 60:.0f} minutes" if is_idle else ""
            self._warn(f"it left {listed(stopped)} in the background{why}: stopped at its end")
        if self.clients:
            names = listed(sorted(self.clients))
            self._warn(
                f"{names} may have started work outside the run; work done by a daemon or another"
                " machine is neither measured nor stopped with the run"
            )
        files = self.meter.files
        if files is not None and left > GROWN_BYTES:
            self._warn(
                f"it left {left >> 20:,} MB in files in memory, which take RAM until they are"
                f" deleted: {listed(files.paths())}"
            )

    def _left_out(self) -> Iterator[str]:
        """Warn of output and displays that were not kept."""
        if self.shown.gone:
            yield (
                f"{self.shown.gone:,} displays are no longer on record, which keeps the newest "
                f"{DISPLAY_CAP >> 20} MB of them, {DISPLAY_LINES:,} at most"
            )
        too_long = sum(worker.event_lines.dropped for worker in self.workers)
        if too_long:
            yield (
                f"{too_long:,} displays or messages are not shown; each was larger than "
                f"{EVENT_CAP >> 20} MB"
            )

    def _end_report(self, ended_at: float) -> dict[str, Any]:
        end = self.end or {"outcome": "failed", "reason": "supervisor: no end"}
        # A body that never counts episodes is one.
        done = len(self.episodes) or int(end["outcome"] == "completed")
        duration_s = None if self.started_at is None else ended_at - self.started_at
        blank = {"reason": "", "exit_code": None, "oom_resource": None, "oom_evidence": ""}
        facts = {"episodes_done": done, "peaks": self._peaks(), "duration_s": duration_s}
        return {**blank, **end, **facts}

    def _kill_record(self, ended_at: float) -> dict[str, Any] | None:
        """Sweep up what left the tree but kept the tag; say how all was stopped."""
        stopping = self.stopping or Stopping(self.me.pid, 0.0, None, ended_at)
        tag = f"GPUGATE_RUN_ID={self.launch['run_id']}".encode()
        left = carriers(tag)
        if left:
            stopping.means.append("sweep")
        until = awake_time() + PENDING_S
        while left and awake_time() < until:
            for one in left:
                send(one, signal.SIGKILL)
            self._wait(0.02)
            left = carriers(tag)
        if self.cgroup:
            with suppress(OSError):
                os.rmdir(self.cgroup)
        if not stopping.means:
            return None
        began_at = ended_at if stopping.began_at is None else stopping.began_at
        ms = round((awake_time() - began_at) * 1000)
        outside = [
            f"possibly processes that {name} started outside the run" for name in self.clients
        ]
        survivors = [*left, *sorted(outside)]
        return {"means": " + ".join(stopping.means), "ms": ms, "survivors": survivors}

    def _is_gone(self) -> bool:
        """Return whether the run has removed or replaced its directory."""
        try:
            return not os.path.samestat(self.place, os.lstat(self.attempt))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def _record(self, record: dict[str, Any]) -> bool:
        if self._is_gone():
            return False
        try:
            self._write_records()
            write_whole(self._path("outcome.json"), as_json(record))
            write_whole(self._path("_DONE"), b"")
        except PermissionError:  # the run has closed its directory: the next try finds it open
            self._regain()
            return False
        except OSError:
            return False
        return True

    def _regain(self) -> None:
        attempts = os.path.dirname(self.attempt)
        for place in (os.path.dirname(attempts), attempts, self.attempt):
            with suppress(OSError):
                if not os.path.islink(place):
                    os.chmod(place, 0o700)


def main() -> None:
    """Supervise the attempt that the command line names."""
    Supervisor(os.path.abspath(sys.argv[1])).run()
