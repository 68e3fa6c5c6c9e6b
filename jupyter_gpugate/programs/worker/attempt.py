"""The attempt that a worker executes, read from its directory."""

from __future__ import annotations

import json
import os
import re
import tokenize
from pathlib import Path
from typing import Any, Optional

from .values import load_input

#: A number in plain decimal notation: neither 007 nor digits of other scripts are one.
_NUMBER = re.compile(
    r"[+-]?((0|[1-9][0-9]{0,300})(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?"
)


class Attempt:
    """One worker's view of an attempt; every path is absolute."""

    def __init__(self, directory: Path, worker: int) -> None:
        self.directory = directory.absolute()
        self.run = self.directory.parent.parent
        self.cell = str(self.directory / "cell.py")
        self.kept = self.directory / "episodes"
        self.launch: dict[str, Any] = read_json(self.directory / "launch.json")
        self.worker = worker
        self.workers = int(self.launch["workers"])
        self.caps = _caps(os.environ.get("GPUGATE_CAPS", ""))
        self._caps_from: Optional[tuple[int, int]] = None  # the file that they were last read from
        #: UUIDs by entry of the device mask.
        self.devices: dict[str, str] = json.loads(os.environ.get("GPUGATE_DEVICES") or "{}")

    def source(self) -> str:
        with tokenize.open(self.cell) as file:  # honours a coding line, as Python itself does
            return file.read()

    @property
    def caps_change(self) -> bool:
        """Whether the supervisor may give this run other caps while it lives."""
        is_watched = "watch" in self.launch.get("basis", {}).values()
        return is_watched and self.launch.get("enforcement") == "enforced"

    def renew_caps(self) -> bool:
        """Read the caps that the supervisor has written since; return whether there were any."""
        path = self.directory / "caps.json"
        try:
            found = path.stat()
            written = (found.st_ino, found.st_mtime_ns)
            if written == self._caps_from:
                return False
            self.caps = {**self.caps, **_caps(path.read_text())}
        except (OSError, ValueError, AttributeError, TypeError):  # there is none, or no such thing
            return False
        self._caps_from = written
        return True

    def own_names(self, episodes: object) -> dict[str, Any]:
        """Return the four names that every cell has."""
        return {
            "episodes": episodes,
            "worker": self.worker,
            "workers": self.workers,
            "params": {name: parsed(text) for name, text in self.launch["parameters"].items()},
        }

    def names(self, episodes: object) -> dict[str, Any]:
        """Return all names that the run adds to the cell: its own four and the inputs."""
        inputs = {name: load_input(self.run / "inputs", name) for name in self.launch["inputs"]}
        return {**self.own_names(episodes), **inputs}


def parsed(text: Any) -> Any:
    """Return a parameter as a number if its text is one, otherwise unchanged."""
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        return text
    return float(text) if any(mark in text for mark in ".eE") else int(text)


def _caps(text: str) -> dict[str, int]:
    return {str(uuid): int(cap) for uuid, cap in json.loads(text or "{}").items()}


def read_json(path: Path) -> Any:
    """Read one JSON file."""
    return json.loads(path.read_bytes())
