"""The process tree of a run: its members, and the memory that they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .attempt import Attempt
from .clock import awake_time
from .memory_files import MemoryFiles
from .meter import RamMeter
from .names import CLIENTS, REMOTE_SHELLS, command_of, program_of
from .processes import Proc, descendants

GLANCE_S = 0.25
SHARE = 0.02  # of the time that glances may cost at most


class Watch:
    """Looks at the tree below this process."""

    def __init__(self, attempt: Attempt, supervisor: Proc, wall_started: float) -> None:
        self.supervisor = supervisor
        self.cgroup: str | None = None
        self.tree: set[Proc] = set()
        self.meter = RamMeter(MemoryFiles(wall_started))
        self.is_alone = attempt.launch["workers"] == 1  # no second process was ever seen
        self.clients: set[str] = set()  # programs of `CLIENTS` that were seen
        self._attempt = attempt
        self._glance_at = 0.0

    @property
    def due_at(self) -> float:
        """The time of the next look."""
        return min(self._glance_at, self.meter.due_at)

    def look(self, now: float, age_s: float) -> None:
        """Look at the tree; read its memory where that is due."""
        began = awake_time()
        tree = set(descendants(self.supervisor.pid))
        self.is_alone = self.is_alone and len(tree) <= 1
        if tree != self.tree:
            self._note_clients(one.pid for one in tree - self.tree)
            self.tree = tree
            self.write()
        pids = [self.supervisor.pid, *(one.pid for one in tree)]
        self.meter.look(pids)
        cost_s = awake_time() - began
        pace_s = min(GLANCE_S, max(0.02, age_s / 4))  # a run may be over before it is old
        self._glance_at = now + max(pace_s, cost_s / SHARE)
        if now >= self.meter.due_at:
            self._note_clients(pids)  # again: a process may run another program by now
            self.meter.read(pids, now)

    def look_last(self, now: float, age_s: float) -> None:
        """Look once more before the tree is stopped."""
        self.meter.want()
        self.look(now, age_s)
        alive = {program_of(command_of(one.pid)) for one in self.tree}
        self.clients |= alive & (CLIENTS | REMOTE_SHELLS)

    def clear(self) -> None:
        """Record that no process is left."""
        self.tree = set()
        self.write()

    def write(self) -> None:
        """Record the members of the tree."""
        self._attempt.write_tree(self.supervisor, self.tree, self.cgroup)

    def report(self, now: float) -> dict[str, Any]:
        """Return the figures of RAM for a heartbeat."""
        return {
            "ram_held_bytes": self.meter.held,
            "ram_shared_bytes": self.meter.shared,
            "ram_age_s": now - self.meter.taken_at,
            "mapped_bytes": self.meter.mapped,
        }

    def peaks(self, *, is_over: bool) -> dict[str, Any]:
        """Return the peak of RAM; its high-water mark covers a single process that has ended."""
        meter = self.meter
        return {
            "ram_bytes": meter.peak,
            "ram_meter": "" if meter.peak is None else "pss" if meter.exact else "rss",
            "ram_covered": self.is_alone and is_over,
        }

    def _note_clients(self, pids: Iterable[int]) -> None:
        """Remember the clients of daemons among these processes."""
        self.clients.update(CLIENTS.intersection(program_of(command_of(pid)) for pid in pids))
