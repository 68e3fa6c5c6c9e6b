"""Processes that a completed program has left in the background.

They are part of the run, which goes on while they work: a launcher may return at once.  Daemons (in
a session of their own, with ``/`` as their working directory) and processes that have used no
processor time for `IDLE_S` are not waited for.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from .clock import awake_time
from .names import command_of, is_helper, listed, name_of
from .processes import descendants, is_alive, stat_fields
from .stopping import LINGER_S
from .transcript import Transcript

LOOK_S = 0.25  # between two looks
SHARE = 0.02  # of the time that looks may cost at most
IDLE_S = 300.0  # a process that has worked less than `WORK_S` for so long is not waited for
WORK_S = 0.5


class Background:
    """The remaining processes of a tree whose workers, its sessions, have completed."""

    def __init__(
        self, root: int, sessions: set[int], cwd: str, transcript: Transcript, now: float
    ) -> None:
        self.names: dict[int, str] = {}  # of the processes that were waited for
        self.is_idle = False
        self._began_at = self._worked_at = self._due_at = now
        self._root, self._sessions, self._cwd = root, sessions, cwd
        self._transcript = transcript
        self._is_announced = False
        self._worked_s = 0.0

    def goes_on(self, now: float) -> bool:
        """Return whether it works; the output says so once that is not over in a moment."""
        if now < self._due_at:
            return True
        is_new = now - self._began_at < LINGER_S
        goes_on = self._is_at_work(now)
        if goes_on and not is_new and not self._is_announced:
            self._is_announced = True
            names = listed(list(self.names.values()))
            self._transcript.note(f"the command has ended; the run goes on while {names} work")
        return goes_on

    def _is_at_work(self, now: float) -> bool:
        """Look whether any process is left that must be waited for."""
        began = awake_time()
        left = [one.pid for one in descendants(self._root) if is_alive(one)]
        waited = [pid for pid in left if not is_daemon(pid, self._sessions, self._cwd)]
        self.names.update((pid, name_of(pid)) for pid in waited if pid not in self.names)
        worked_s = self._processor_s(left)
        if self._transcript.has_printed or worked_s - self._worked_s >= WORK_S:
            self._worked_at, self._worked_s = now, worked_s
        self._transcript.has_printed = False
        self._worked_s = min(self._worked_s, worked_s)
        self.is_idle = now - self._worked_at > IDLE_S
        self._due_at = now + max(LOOK_S, (awake_time() - began) / SHARE)
        return bool(waited) and not self.is_idle

    def _processor_s(self, pids: list[int]) -> float:
        """Processor time of these processes, of those they waited for, and of those that ended."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        fields = map(stat_fields, pids)
        ticks = sum(sum(map(int, own[11:15])) for own in fields if own)
        return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def is_daemon(pid: int, sessions: set[int], cwd: str) -> bool:
    """Return whether a process has become a daemon."""
    if is_helper(command_of(pid)):
        return True
    fields = stat_fields(pid)
    with suppress(OSError):
        place = os.readlink(f"/proc/{pid}/cwd")
        return bool(fields) and int(fields[3]) not in sessions and place == "/" != cwd
    return False
