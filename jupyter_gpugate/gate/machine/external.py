"""Describes external processes for people: user, command, age.  Read only on request.

Of a command line only the program and its script or module are shown: the rest may contain
secrets, and the reader may keep a copy in a notebook.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import psutil

from jupyter_gpugate.core.shares import Rise
from jupyter_gpugate.gate.machine.kernels import UserNames

#: More of a name than anybody reads.
LONGEST_NAME = 60


class Names:
    """Caches the description of a process for as long as it is listed."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], dict[str, Any]] = {}
        self._users = UserNames()

    def named(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a snapshot's rows with ``user``, ``command`` and ``age_s``, None if unknown."""
        listed = {(row["pid"], row["start_ticks"]): row for row in rows if row["pid"]}
        self._known = {key: self._known.get(key) or _told_by(row) for key, row in listed.items()}
        now = time.time()
        return [{**row, **self._of(row, now)} for row in rows]

    def of_grower(self, one: Rise) -> str:
        """Describe a process that grew, as far as it can still be read: pid, user, command."""
        key = (one.who.pid, one.who.start_ticks)
        told = self._known.get(key) or _told_by({"pid": one.who.pid})
        user = told.get("user") or (None if one.uid is None else self._users.of(one.uid))
        words = [f"pid {one.who.pid}", *([f"of {user}"] if user else [])]
        return " ".join(words) + (f" ({told['command']})" if told.get("command") else "")

    def _of(self, row: Mapping[str, Any], now: float) -> dict[str, Any]:
        known = self._known.get((row["pid"], row["start_ticks"]), {})
        begun = known.get("begun")
        return {
            "user": known.get("user"),
            "command": known.get("command"),
            "age_s": None if begun is None else max(0.0, now - begun),
        }


def _told_by(row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        process = psutil.Process(row["pid"])
        with process.oneshot():
            return {
                "user": process.username(),
                "command": shown(process.cmdline() or [process.name()]),
                "begun": process.create_time(),
            }
    except psutil.Error:
        return {}


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
