"""The process table, walked once a tick: one ``pread`` for each process that is known already.

A descriptor on ``/proc/PID/statm`` belongs to the process that it was opened for.  Once that one
is gone every read of it fails, also when another process has got its number: a kept descriptor
never shows a successor.  What cannot be read (another user's under ``hidepid``, a process that
vanished meanwhile) is left out.

Private memory is resident - shared of ``statm``.  Pages that forked processes share until one of
them writes count for each of them, so a sum over processes may be too high, never too low.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from jupyter_gpugate.core.model import MB, KernelProcess, Process
from jupyter_gpugate.gate.kernels import Kernels

#: Below this a process is nobody's concern: its command line is not read.
NOTABLE_BYTES: Final = 4 * MB
#: Every so many walks the facts that may change unseen are read again.
REVISIT_WALKS: Final = 64

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD among the flags in ``stat``
_MOST_DESCRIPTORS: Final = 16384
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)
_LEFT_TO_OTHERS: Final = 256  # sockets, logs, the journal
_STATM: Final = 128  # bytes that hold the whole of each file, or as much of it as matters
_STAT: Final = 1024
_COMMAND_LINE: Final = 4096
_ENVIRON: Final = 1 << 18


def descriptor_budget() -> int:
    """How many descriptors a table may keep: half of what this process may open, at most 16,384."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_DESCRIPTORS
    return max(0, min(soft // 2, soft - _LEFT_TO_OTHERS, _MOST_DESCRIPTORS))


class ProcessTable:
    """Every process below ``proc`` that can be read; at most ``budget`` descriptors are kept.

    A parent changes when it ends: its orphans are read again in the walk that misses it.  User and
    command line change by setuid and exec: they are read when a process becomes notable, in the
    walk after, and every `REVISIT_WALKS` walks.  A number that was left out, as a kernel thread's
    or another user's, may have got another process: it is tried again just as often.
    """

    def __init__(self, proc: str = "/proc", budget: int | None = None) -> None:
        self._proc = proc
        self._budget = descriptor_budget() if budget is None else budget
        self._kept = 0
        self._walks = 0
        self._known: dict[str, _Known] = {}
        self._rows: dict[int, Process] = {}
        self._left_out: dict[str, bool] = {}  # True: it may not be read; False: a kernel thread
        self._whole = True
        self._gone: set[int] = set()  # since the walk before
        self._notable: set[str] = set()
        self._newly_notable: set[str] = set()
        self._look_again: set[str] = set()
        self._kernels = Kernels()

    def walk(self) -> dict[int, Process]:
        """Read the table, by pid.

        Raises `OSError` where the processes cannot be listed, or no file can be opened any more: a
        part of the table is never taken for the whole.
        """
        names = os.listdir(self._proc)  # noqa: PTH208 - a walk must be cheap
        self._begin(set(names))
        known_of, left_out, pread = self._known.get, self._left_out, os.pread
        for name in names:
            known = known_of(name)
            if known is None:
                if name not in left_out and name.isdigit():
                    self._meet(name)
            elif known.descriptor < 0:
                self._meet_again(name, known)
            else:
                try:
                    statm = pread(known.descriptor, _STATM, 0)
                    if statm != known.statm:
                        self._update(name, known, statm)
                except (OSError, ValueError):  # gone: the number in the list is a successor's
                    self._forget(name)
                    self._meet(name)
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
        if self._kept < len(self._known):
            words["descriptors"] = "fewer than processes; RLIMIT_NOFILE is low"
        return words

    def close(self) -> None:
        for name in list(self._known):
            self._forget(name)

    # -- coming and going ---------------------------------------------------------------------

    def _begin(self, listed: set[str]) -> None:
        self._walks += 1
        self._whole = "1" in listed
        self._gone.clear()
        for name in self._known.keys() - listed:
            self._forget(name)
        for name in self._left_out.keys() - listed:
            del self._left_out[name]
            self._gone.add(int(name))
        for name in self._of_this_walk(self._left_out):
            del self._left_out[name]

    def _meet(self, name: str) -> None:
        try:
            self._introduce(name)
        except PermissionError:
            self._left_out[name] = True
        except (OSError, ValueError) as error:  # it vanished after it was listed
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                raise
            self._gone.add(int(name))

    def _introduce(self, name: str) -> None:
        folder = f"{self._proc}/{name}"
        descriptor = self._open(f"{folder}/statm")
        kept = False
        try:
            stat = _read_stat(self._text(f"{folder}/stat", _STAT))
            if stat.flags & _KERNEL_THREAD:
                self._left_out[name] = False
                return
            uid = os.stat(folder).st_uid  # noqa: PTH116
            # Read last: it fails where what was read by name meanwhile was a successor's.
            statm = os.pread(descriptor, _STATM, 0)
            private = _private_bytes(statm)
            kept = self._kept < self._budget
        finally:
            if not kept:
                os.close(descriptor)
        self._kept += kept
        process = Process(int(name), stat.start_ticks, stat.parent_pid, uid, private)
        self._known[name] = _Known(process, descriptor if kept else -1, statm)
        self._rows[process.pid] = process
        self._note(name, private)

    def _meet_again(self, name: str, known: _Known) -> None:
        """Read a process without a kept descriptor; only its start tells it from a successor."""
        self._meet(name)
        now = self._known[name]
        if now is known:
            self._forget(name)
        elif now.process.start_ticks != known.process.start_ticks:
            self._gone.add(now.process.pid)
            self._kernels.forget(now.process.pid)
            self._notable.discard(name)
            self._note(name, now.process.private_bytes)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name)
        pid = known.process.pid
        self._release(known)
        del self._rows[pid]
        self._gone.add(pid)
        self._notable.discard(name)
        self._kernels.forget(pid)

    # -- what changes under a living process --------------------------------------------------

    def _update(self, name: str, known: _Known, statm: bytes) -> None:
        pid, start_ticks, parent_pid, uid, _ = known.process
        private = _private_bytes(statm)
        known.statm = statm
        known.process = self._rows[pid] = Process(pid, start_ticks, parent_pid, uid, private)
        self._note(name, private)

    def _note(self, name: str, private: int) -> None:
        if private >= NOTABLE_BYTES and name not in self._notable:
            self._notable.add(name)
            self._newly_notable.add(name)

    def _follow_orphans(self) -> None:
        gone = self._gone
        orphans = [row for row in self._rows.values() if row.parent_pid in gone] if gone else []
        for row in orphans:
            name = str(row.pid)
            try:
                stat = _read_stat(self._text(f"{self._proc}/{name}/stat", _STAT))
            except (OSError, ValueError):
                continue  # on its way out as well; the next walk knows
            if stat.start_ticks == row.start_ticks:
                self._replace(self._known[name], row._replace(parent_pid=stat.parent_pid))

    def _due(self) -> set[str]:
        due = self._newly_notable | self._look_again
        due.update(self._of_this_walk(self._notable))
        self._look_again, self._newly_notable = self._newly_notable, set()
        return due

    def _look_at(self, names: Iterable[str]) -> None:
        for name in names:
            known = self._known.get(name)
            if known is None:
                continue
            folder = f"{self._proc}/{name}"
            try:
                uid = os.stat(folder).st_uid  # noqa: PTH116
                command_line = self._text(f"{folder}/cmdline", _COMMAND_LINE)
            except OSError:
                continue
            self._replace(known, known.process._replace(uid=uid))
            self._kernels.look_at(
                known.process, command_line, partial(self._text, f"{folder}/environ", _ENVIRON)
            )

    def _replace(self, known: _Known, process: Process) -> None:
        known.process = self._rows[process.pid] = process

    def _of_this_walk(self, names: Iterable[str]) -> list[str]:
        turn = self._walks % REVISIT_WALKS
        return [name for name in names if int(name) % REVISIT_WALKS == turn]

    # -- descriptors --------------------------------------------------------------------------

    def _text(self, path: str, size: int) -> bytes:
        descriptor = self._open(path)
        try:
            return os.read(descriptor, size)
        finally:
            os.close(descriptor)

    def _open(self, path: str) -> int:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError as error:
            if error.errno not in _EXHAUSTED or not self._kept:
                raise
        self._make_room()
        return os.open(path, os.O_RDONLY)

    def _make_room(self) -> None:
        """Give half of the kept descriptors back, for good: this process needs them elsewhere."""
        self._budget = self._kept // 2
        for known in self._known.values():
            if self._kept > self._budget:
                self._release(known)

    def _release(self, known: _Known) -> None:
        if known.descriptor >= 0:
            os.close(known.descriptor)
            known.descriptor = -1
            self._kept -= 1


@dataclass(slots=True)
class _Known:
    process: Process
    descriptor: int  # on statm; -1 where none is kept
    statm: bytes


class _Stat(NamedTuple):
    parent_pid: int
    flags: int
    start_ticks: int


def _read_stat(text: bytes) -> _Stat:
    """Pick fields 4, 9 and 22; the name in field 2 may hold blanks and brackets of its own."""
    fields = text[text.rindex(b")") + 2 :].split(b" ", 20)
    return _Stat(int(fields[1]), int(fields[6]), int(fields[19]))


def _private_bytes(statm: bytes) -> int:
    _, resident, shared, _ = statm.split(b" ", 3)
    return max(0, int(resident) - int(shared)) * _PAGE
