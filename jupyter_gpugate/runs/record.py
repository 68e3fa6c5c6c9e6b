"""What a run side remembers of one run while it serves; the run's directory holds the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.model import Request
from jupyter_gpugate.runs.processes import ProcessName

QUEUED, ACTIVE, ENDED = "queued", "active", "ended"


class Refused(Exception):
    """What was asked for cannot be done, and why; becomes one HTTP answer."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        /,
        *,
        retry_after: str | None = None,
        **detail: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.detail = detail
        self.retry_after = retry_after


@dataclass
class Record:
    """One run: its spec, its summary as on disk, and what is alive of it."""

    run_id: str
    path: Path
    spec: Mapping[str, Any]
    summary: dict[str, Any]
    request: Request
    fence: int | None = None
    supervisor: ProcessName | None = None
    cancelled: bool = False
    left: bool = False  # by a notebook or terminal that waited for it
    ending: bool = False
    end: asyncio.Event = field(default_factory=asyncio.Event)
    course: asyncio.Task[None] | None = None  # of the newest attempt, until all of it is over

    @property
    def status(self) -> str:
        status: str = self.summary["status"]
        return status

    @property
    def detached(self) -> bool:
        """Whether nobody waits for it, from the start or by now."""
        return self.left or self.request.detached

    @property
    def attempt(self) -> int:
        return int(self.summary.get("attempt") or 0)

    @property
    def attempt_path(self) -> Path:
        return self.path / "attempts" / str(self.attempt)

    def row(self) -> dict[str, Any]:
        """The run in a list of runs."""
        return {
            "run_id": self.run_id,
            "name": self.spec["name"],
            "status": self.status,
            "end": self.summary.get("end"),
            "reason": self.summary.get("reason", ""),
            "submitted": self.summary["submitted"],
            "ended": self.summary.get("ended"),
            "attempt": self.attempt,
            "peaks": self.summary.get("peaks"),
        }


class Records:
    """The runs of one user, in the order of their submission."""

    def __init__(self) -> None:
        self._by_id: dict[str, Record] = {}
        self._by_key: dict[str, str] = {}

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._by_id.values()))

    def add(self, record: Record) -> None:
        """Take a run in, and the key it was submitted with."""
        self._by_id[record.run_id] = record
        key = record.spec.get("idempotency_key")
        if key:
            self._by_key[key] = record.run_id

    def remove(self, record: Record) -> None:
        """Forget a run and its key."""
        del self._by_id[record.run_id]
        key = record.spec.get("idempotency_key") or ""
        if self._by_key.get(key) == record.run_id:
            del self._by_key[key]

    def get(self, run_id: str) -> Record | None:
        return self._by_id.get(run_id)

    def with_key(self, key: str) -> Record | None:
        """The run that was submitted with a key."""
        return self._by_id.get(self._by_key.get(key, ""))

    def newest(self, name: str) -> Record | None:
        """The run of this name that was submitted last."""
        same = (r for r in reversed(self._by_id.values()) if r.spec["name"] == name)
        return next(same, None)

    def unfinished(self) -> list[Record]:
        return [record for record in self if record.status != ENDED]
