"""The process table, walked once a tick: one ``pread`` for each process that is known already.

What cannot be read (another user's under ``hidepid``, a process that vanished meanwhile) is left
out.

Private memory is resident - shared of ``statm``.  Pages that forked processes share until one of
them writes count for each of them, so a sum over processes may be too high, never too low.

A process whose first thread has ended while others live looks dead in its own folder, and is read
in that of a thread that is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Final

from jupyter_gpugate.core.resources import MB
from jupyter_gpugate.core.samples import KernelProcess, Process
from jupyter_gpugate.gate.machine.kernels import Kernels
from jupyter_gpugate.gate.machine.statm_files import StatmFiles, is_exhausted, read_text
from jupyter_gpugate.proc import parse_stat

#: Below this a process is too small to matter: its command line is not read.
NOTABLE_BYTES: Final = 4 * MB
#: Every so many walks the facts that may change unseen are read again.
REVISIT_WALKS: Final = 64

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD among the flags in ``stat``
_STAT: Final = 1024  # bytes that hold as much of each file as matters
_COMMAND_LINE: Final = 4096
_ENVIRON: Final = 1 << 18


class ProcessTable:
    """Every process below ``proc`` that can be read; at most ``budget`` descriptors are kept.

    A parent changes when it ends: its orphans are read again in the walk that misses it.  User and
    command line change by setuid and exec: they are read when a process becomes notable, in the
    walk after, and every `REVISIT_WALKS` walks.  A number that was left out, as a kernel thread's
    or another user's, may have got another process: it is tried again just as often.
    """

    def __init__(self, proc: str = "/proc", budget: int | None = None) -> None:
        self._proc = proc
        self._files = StatmFiles(budget)
        self._rows: dict[int, Process] = {}
        self._left_out: dict[int, bool] = {}  # True: it may not be read; False: a kernel thread
        self._accounted: set[str] = set()  # names listed that need no meeting any more
        self._whole = True
        self._parents: set[int] = set()
        self._gone: set[int] = set()  # of the parents, since the walk before
        self._notable: set[int] = set()
        self._newly_notable: set[int] = set()
        self._look_again: set[int] = set()
        self._walks = 0
        self._turns: tuple[set[int], ...] = tuple(set() for _ in range(REVISIT_WALKS))
        self._kernels = Kernels()

    def walk(self) -> dict[int, Process]:
        """Read the table, by pid.

        Raises `OSError` where the processes cannot be listed, or no file can be opened any more: a
        part of the table is never taken for the whole.
        """
        listed = set(os.listdir(self._proc))  # noqa: PTH208 - a walk must be cheap
        strangers = self._begin(listed)
        self._read_known()
        for pid in strangers:
            self._meet(pid)
        self._follow_orphans()
        self._look_at(self._due())
        return self._rows.copy()

    def kernels(self) -> tuple[KernelProcess, ...]:
        """Return the notebook kernels as of the last walk."""
        return self._kernels.among(self._rows)

    def detail(self) -> dict[str, str]:
        """Say in words what makes the table less than whole, or slow; nothing when all is well."""
        words = {}
        if not self._whole or any(self._left_out.values()):
            words["processes"] = "those of other users are hidden"
        if len(self._files) < len(self._rows):
            words["descriptors"] = "fewer than processes; RLIMIT_NOFILE is low"
        return words

    def close(self) -> None:
        for pid in list(self._rows):
            self._forget(pid)

    # -- coming and going ---------------------------------------------------------------------

    def _begin(self, listed: set[str]) -> list[int]:
        """Drop processes that are no longer listed, keep the list, and return those to look up."""
        self._walks += 1
        self._whole = "1" in listed
        self._gone.clear()
        for name in self._accounted - listed:
            if name.isdigit():
                self._miss(int(name))
        strangers = [name for name in listed - self._accounted if name.isdigit()]
        turn = self._turns[self._walks % REVISIT_WALKS]
        retried = [pid for pid in turn if self._left_out.pop(pid, None) is not None]
        # A stranger is accounted for when it has been met, and not where the walk breaks off.
        listed.difference_update(strangers, map(str, retried))
        self._accounted = listed
        return [*map(int, strangers), *retried]

    def _miss(self, pid: int) -> None:
        self._left_out.pop(pid, None)
        self._turns[pid % REVISIT_WALKS].discard(pid)
        if pid in self._rows:
            self._forget(pid)
        else:
            self._end(pid)

    def _meet(self, pid: int) -> None:
        try:
            self._introduce(pid)
        except PermissionError:
            self._leave_out(pid, hidden=True)
        except (OSError, ValueError) as error:  # it vanished after it was listed
            if is_exhausted(error):
                raise
            self._end(pid)
        else:
            self._accounted.add(str(pid))

    def _introduce(self, pid: int) -> None:
        folder = f"{self._proc}/{pid}"
        descriptor = self._files.open(f"{folder}/statm")
        kept = False
        try:
            stat = parse_stat(self._text(f"{folder}/stat", _STAT))
            if stat.flags & _KERNEL_THREAD:
                self._leave_out(pid, hidden=False)
                return
            uid = os.stat(folder).st_uid  # noqa: PTH116
            # Read last: it fails where what was read by name meanwhile was a successor's.
            statm = read_text(descriptor)
            private = _private_bytes(statm)
            kept = self._files.keep(pid, descriptor, statm)
        finally:
            if not kept:
                os.close(descriptor)
        if _is_empty(statm):
            private = self._held_by_threads(pid)
        self._replace(Process(pid, stat.start_ticks, stat.parent_pid, uid, private))
        self._note(pid, private)

    def _meet_again(self, pid: int) -> None:
        """Read a process without a kept descriptor; only its start tells it from a successor."""
        before = self._rows[pid]
        self._meet(pid)
        now = self._rows[pid]
        if now is before:
            self._forget(pid)
        elif now.start_ticks != before.start_ticks:
            self._end(pid)
            self._kernels.forget(pid)
            self._notable.discard(pid)
            self._note(pid, now.private_bytes)

    def _leave_out(self, pid: int, *, hidden: bool) -> None:
        self._left_out[pid] = hidden
        self._accounted.add(str(pid))
        self._turns[pid % REVISIT_WALKS].add(pid)

    def _forget(self, pid: int) -> None:
        del self._rows[pid]
        self._accounted.discard(str(pid))
        self._files.release(pid)
        self._notable.discard(pid)
        self._kernels.forget(pid)
        self._end(pid)

    def _end(self, pid: int) -> None:
        if pid in self._parents:
            self._parents.remove(pid)
            self._gone.add(pid)

    # -- what changes under a living process --------------------------------------------------

    def _read_known(self) -> None:
        if len(self._files) < len(self._rows):
            for pid in [pid for pid in self._rows if pid not in self._files]:
                self._meet_again(pid)
        for pid, statm in self._files.read_changed():
            try:
                private = _private_bytes(statm)
            except ValueError:  # gone: its number is listed for a successor
                self._forget(pid)
                self._meet(pid)
                continue
            if _is_empty(statm):
                private = self._held_by_threads(pid)
            self._rows[pid] = self._rows[pid]._replace(private_bytes=private)
            self._note(pid, private)

    def _held_by_threads(self, pid: int) -> int:
        """Return the memory of a process whose first thread has ended; else 0."""
        try:
            folder = self._thread_of(pid)
            descriptor = self._files.open(f"{folder}/statm") if folder else -1
        except (OSError, ValueError):
            return 0
        if descriptor < 0:
            return 0
        kept = False
        try:
            statm = read_text(descriptor)
            private = _private_bytes(statm)
            self._files.release(pid)
            kept = self._files.keep(pid, descriptor, statm)
        except (OSError, ValueError):  # that thread has ended as well
            return 0
        finally:
            if not kept:
                os.close(descriptor)
        return private

    def _thread_of(self, pid: int) -> str:
        """Folder of a thread that has outlived the first one of its process; "" otherwise."""
        folder = f"{self._proc}/{pid}"
        if not parse_stat(self._text(f"{folder}/stat", _STAT)).is_headless:
            return ""
        left = (name for name in os.listdir(f"{folder}/task") if name != str(pid))  # noqa: PTH208
        return next((f"{folder}/task/{name}" for name in left), "")

    def _note(self, pid: int, private: int) -> None:
        if private >= NOTABLE_BYTES and pid not in self._notable:
            self._notable.add(pid)
            self._newly_notable.add(pid)
            self._turns[pid % REVISIT_WALKS].add(pid)

    def _follow_orphans(self) -> None:
        gone = self._gone
        orphans = [row for row in self._rows.values() if row.parent_pid in gone] if gone else []
        for row in orphans:
            try:
                stat = parse_stat(self._text(f"{self._proc}/{row.pid}/stat", _STAT))
            except (OSError, ValueError):
                continue  # on its way out as well; the next walk knows
            if stat.start_ticks == row.start_ticks:
                self._replace(row._replace(parent_pid=stat.parent_pid))

    def _due(self) -> set[int]:
        turn = self._turns[self._walks % REVISIT_WALKS]
        due = self._newly_notable | self._look_again | (turn & self._notable)
        self._look_again, self._newly_notable = self._newly_notable, set()
        return due

    def _look_at(self, pids: Iterable[int]) -> None:
        for pid in pids:
            row = self._rows.get(pid)
            if row is None:
                continue
            folder = f"{self._proc}/{pid}"
            try:
                uid = os.stat(folder).st_uid  # noqa: PTH116
                command_line = self._text(f"{folder}/cmdline", _COMMAND_LINE)
                if not command_line and (thread := self._thread_of(pid)):
                    folder = thread
                    command_line = self._text(f"{folder}/cmdline", _COMMAND_LINE)
            except (OSError, ValueError):
                continue
            row = row._replace(uid=uid)
            self._replace(row)
            self._kernels.look_at(
                row, command_line, partial(self._text, f"{folder}/environ", _ENVIRON)
            )

    def _replace(self, row: Process) -> None:
        self._rows[row.pid] = row
        self._parents.add(row.parent_pid)

    def _text(self, path: str, size: int) -> bytes:
        descriptor = self._files.open(path)
        try:
            return os.read(descriptor, size)
        finally:
            os.close(descriptor)


def _is_empty(statm: bytes) -> bool:
    """Return whether the process has no memory, like a dead one."""
    return statm.startswith(b"0 ")


def _private_bytes(statm: bytes) -> int:
    _, resident, shared, _ = statm.split(b" ", 3)
    return max(0, int(resident) - int(shared)) * _PAGE
