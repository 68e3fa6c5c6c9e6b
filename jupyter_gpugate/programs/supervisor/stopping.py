"""Stopping a process tree for certain."""

from __future__ import annotations

import signal

from .cgroups import put
from .names import command_of, is_helper, name_of
from .processes import Proc, descendants, is_alive, kill_descendants, send

LINGER_S = 0.5  # for processes that a completed run leaves behind, to end by themselves
PENDING_S = 2.0  # after KILL, processes that are still there are named


class Stopping:
    """Stops a tree: TERM, grace, then KILL again and again until no process is left."""

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
            self._terminate()
        else:
            self._kill(now)

    def _terminate(self) -> None:
        # The whole tree first: a process that dies of the signal takes the way to its children
        # along.
        tree = set(descendants(self._root))
        alive = sorted(one.pid for one in tree if is_alive(one))
        self.stopped = [name_of(pid) for pid in alive if not is_helper(command_of(pid))]
        for one in tree:
            self.means = ["term"]
            send(one, signal.SIGTERM)
            send(one, signal.SIGCONT)  # a stopped process takes no TERM

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
