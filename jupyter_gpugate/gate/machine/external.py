"""Describes external processes for people: user, command, age.  Read only on request.

Of a command line only the program and its script or module are shown: the rest may contain
secrets, and the reader may keep a copy in a notebook.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import psutil

from jupyter_gpugate.core.explaining.rows import ExternalRow
from jupyter_gpugate.core.shares import Rise
from jupyter_gpugate.gate.machine.kernels import UserNames

#: More of a name than anybody reads.
LONGEST_NAME = 60


class Described(NamedTuple):
    """A process by its own account."""

    user: str | None = None
    command: str | None = None
    begun: float | None = None  # wall clock


#: A process that cannot be read, or is gone; it is tried again.
UNREAD = Described()


class Names:
    """Caches the description of a process for as long as it is listed."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], Described] = {}
        self._users = UserNames()

    def named(self, rows: Sequence[ExternalRow]) -> tuple[ExternalRow, ...]:
        """Return a snapshot's rows with ``user``, ``command`` and ``age_s``, None if unknown."""
        listed = {(row.pid, row.start_ticks) for row in rows if row.pid}
        self._known = {key: self._looked_up(*key) for key in listed}
        now = time.time()
        return tuple(self._described(row, now) for row in rows)

    def of_grower(self, one: Rise) -> str:
        """Describe a process that grew, as far as it can still be read: pid, user, command."""
        known = self._looked_up(one.who.pid, one.who.start_ticks)
        user = known.user or (None if one.uid is None else self._users.of(one.uid))
        words = [f"pid {one.who.pid}", *([f"of {user}"] if user else [])]
        return " ".join(words) + (f" ({known.command})" if known.command else "")

    def _looked_up(self, pid: int, start_ticks: int | None) -> Described:
        known = self._known.get((pid, start_ticks), UNREAD)
        return _read(pid) if known == UNREAD else known

    def _described(self, row: ExternalRow, now: float) -> ExternalRow:
        known = self._known.get((row.pid, row.start_ticks), UNREAD)
        age_s = None if known.begun is None else max(0.0, now - known.begun)
        return replace(row, user=known.user, command=known.command, age_s=age_s)


def _read(pid: int) -> Described:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = shown(process.cmdline() or [process.name()])
            return Described(process.username(), command, process.create_time())
    except psutil.Error:
        return UNREAD


def shown(words: Sequence[str]) -> str:
    """A program by name, with the script or module that an interpreter was given; no arguments."""
    program, rest = PurePath(words[0]).name, list(words[1:])
    if not program.startswith(("python", "pypy")):
        return program[:LONGEST_NAME]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m" and rest:
            return f"{program} -m {rest[0]}"[:LONGEST_NAME]
        if option == "-c":
            return f"{program} -c"
        if option in ("-W", "-X") and rest:
            rest.pop(0)
    return f"{program} {PurePath(rest[0]).name}"[:LONGEST_NAME] if rest else program
