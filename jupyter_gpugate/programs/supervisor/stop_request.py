"""Requests to stop an attempt: by the gate, by a file, by SIGTERM."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

OUTCOMES = {"cancelled": "cancelled", "evicted": "evicted", "fenced": "lost"}


class StopRequest:
    """The reason of the first request to stop; "" while there is none."""

    def __init__(self, file: str) -> None:
        self.reason = ""
        self.is_terminated = False  # by SIGTERM, which gives no reason
        self.is_fenced = False  # the gate says that this attempt holds no lease
        self._file = file

    def terminate(self, *_: object) -> None:
        """Take a SIGTERM."""
        self.is_terminated = True

    def make(self, reason: str) -> None:
        """Ask for a stop."""
        self.reason = self.reason or reason

    def fence(self) -> None:
        """Ask for a stop since the gate knows of no lease; it is not to be asked again."""
        self.is_fenced = True
        self.make("fenced")

    def is_made(self) -> bool:
        """Look for a request: the file gives a reason, a bare SIGTERM does not."""
        with suppress(OSError, ValueError, KeyError, TypeError), open(self._file) as file:
            self.make(str(json.load(file)["reason"]))
        if self.is_terminated:
            self.make("terminated")
        return bool(self.reason)

    def end(self) -> dict[str, Any]:
        """Return how an attempt ends that was stopped for this reason."""
        return {"outcome": OUTCOMES.get(self.reason, "failed"), "reason": self.reason}
