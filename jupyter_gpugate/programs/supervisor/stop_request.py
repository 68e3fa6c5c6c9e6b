"""Requests to stop an attempt: by the gate, by a file, by SIGTERM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

#: The party that asks for each kind of stop; the kind of any other is `ENDED`.
ASKED_BY = {"cancelled": "owner", "evicted": "gate", "fenced": "gate", "terminated": "signal"}
ENDED = "ended"
OUTCOMES = {"cancelled": "cancelled", "evicted": "evicted", "fenced": "lost"}


class Stop(NamedTuple):
    """A stop of the run's processes, with the fields that gate and run side use."""

    kind: str
    by: str
    detail: str = ""

    @property
    def reason(self) -> str:
        return self.detail if self.kind == ENDED else self.kind

    @classmethod
    def of(cls, reason: str) -> Stop:
        """Make a stop of one of the kinds, or for a reason in words."""
        if reason in ASKED_BY:
            return cls(reason, ASKED_BY[reason])
        return cls(ENDED, "run", reason)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Stop:
        """Read a stop, or the reason alone that another version gives.  Raises `KeyError`."""
        kind, detail = fields.get("kind"), str(fields.get("detail") or "")
        if kind == ENDED or kind in ASKED_BY:
            return cls(str(kind), str(fields["by"]), detail)
        return cls.of(detail or str(fields["reason"]))


class StopRequest:
    """The first request to stop."""

    def __init__(self, file: str) -> None:
        self.made: Stop | None = None
        self.is_terminated = False  # by SIGTERM, which gives no reason
        self.is_fenced = False  # the gate says that this attempt holds no lease
        self._file = file

    def terminate(self, *_: object) -> None:
        """Take a SIGTERM."""
        self.is_terminated = True

    def make(self, stop: Stop) -> None:
        """Ask for a stop."""
        self.made = self.made or stop

    def fence(self) -> None:
        """Ask for a stop since the gate knows of no lease; it is not to be asked again."""
        self.is_fenced = True
        self.make(Stop.of("fenced"))

    def is_made(self) -> bool:
        """Look for a request: the file gives a reason, a bare SIGTERM does not."""
        with suppress(OSError, ValueError, KeyError, TypeError), open(self._file) as file:
            self.make(Stop.read(json.load(file)))
        if self.is_terminated:
            self.make(Stop.of("terminated"))
        return self.made is not None

    def end(self) -> dict[str, Any]:
        """Return how an attempt ends that was stopped by this request."""
        stop = self.made or Stop.of("terminated")
        outcome = OUTCOMES.get(stop.kind, "failed")
        return {"outcome": outcome, "reason": stop.reason, "stop": stop._asdict()}
