"""The failure of a worker, by evidence."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any

from .cgroups import oom_kills
from .memory import is_shm_full


def classify(
    code: int, oom: dict[str, Any] | None, *, kills: int, shm_full: bool
) -> dict[str, Any]:
    """Say by evidence how a worker failed; the end's fields.

    ``code`` is negative for a signal; a shell reports its child's signal as 128 + N.  ``oom`` is
    what the worker itself found; ``kills`` counts host OOM kills since the start.
    """
    number = -code if code < 0 else code - 128
    reason = said_of(code)
    end = {"outcome": "failed", "reason": reason, "exit_code": code}
    if oom is not None and oom.get("resource") in ("vram", "ram", "shm"):
        evidence = ("oom", oom["resource"], str(oom.get("evidence", "")))
    elif number == signal.SIGKILL and kills > 0:
        evidence = ("oom", "ram", "host_oom_killer")
    elif number == signal.SIGBUS and shm_full:
        evidence = ("oom", "shm", "shm_full")
    else:
        return end
    return {**end, **dict(zip(("outcome", "oom_resource", "oom_evidence"), evidence))}


def said_of(code: int) -> str:
    """Say how a process ended; ``code`` is negative for a signal."""
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
    return f"signal {-code}"


class Evidence:
    """Signs of memory that ran out since the attempt began."""

    def __init__(self) -> None:
        self._kills_before = oom_kills()
        self._was_shm_full = False

    def look(self) -> None:
        """Look whether shared memory is full: once a worker has failed, it may be free again."""
        self._was_shm_full = is_shm_full()

    def failure(self, code: int, oom: dict[str, Any] | None) -> dict[str, Any]:
        """Return the end of an attempt whose worker has failed now."""
        kills = oom_kills() - self._kills_before
        end = classify(code, oom, kills=kills, shm_full=self._was_shm_full or is_shm_full())
        return end if code else {**end, "reason": "exit 0 before the end of the cell"}
