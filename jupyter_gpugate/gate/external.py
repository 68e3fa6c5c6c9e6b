"""Who external processes are, for people: user, command, age.  Asked only when somebody looks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

#: More of a command than anybody reads.
COMMAND_LENGTH = 200


class Names:
    """Remembers what a process said of itself, for as long as it is listed."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], dict[str, Any]] = {}

    def named(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of a snapshot with ``user``, ``command`` and ``age_s``, None where not told."""
        listed = {(row["pid"], row["start_ticks"]): row for row in rows if row["pid"]}
        self._known = {key: self._known.get(key) or _told_by(row) for key, row in listed.items()}
        now = time.time()
        return [{**row, **self._of(row, now)} for row in rows]

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
            words = process.cmdline() or [process.name()]
            return {
                "user": process.username(),
                "command": " ".join(words)[:COMMAND_LENGTH],
                "begun": process.create_time(),
            }
    except psutil.Error:
        return {}
