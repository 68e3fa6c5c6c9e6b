"""What a run side remembers of one run while it serves; the run's directory holds the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
    ending: bool = False
    end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> str:
        status: str = self.summary["status"]
        return status

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
