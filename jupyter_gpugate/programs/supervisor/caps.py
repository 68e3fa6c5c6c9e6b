"""The caps of the workers' GPU memory, which may change while they run."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from .attempt import Attempt
from .attempt_files import as_json

#: A first run's cap that leaves others less than this share of a device is not divided.
LEAST_LEFT = 0.1


def worker_caps(launch: dict[str, Any], caps: dict[str, int]) -> dict[str, int]:
    """Return each worker's caps: equal shares of the run's.

    If a first run has next to all of a device, nobody else was promised memory there, and one
    worker may need most of it.
    """
    return {uuid: _share(launch, uuid, cap) for uuid, cap in caps.items()}


def _share(launch: dict[str, Any], uuid: str, cap: int) -> int:
    total = launch["device_totals"].get(uuid) or 0
    is_watched = launch.get("basis", {}).get(uuid) == "watch"
    if is_watched and total - cap < LEAST_LEFT * total:
        return cap
    share: int = cap // launch["workers"]
    return share


class Caps:
    """Hands the caps of the run to its workers in a file that they watch."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._last: dict[str, int] = attempt.launch["caps"]  # as started, or as last written

    def follow(self, caps: dict[str, int]) -> None:
        """Write caps that have changed; a disk that refuses them is tried again."""
        if not caps or caps == self._last or self._attempt.is_gone():
            return
        path = self._attempt.file("caps.json")
        with suppress(OSError):
            with open(f"{path}.new", "wb") as new:
                new.write(as_json(worker_caps(self._attempt.launch, caps)))
            os.replace(f"{path}.new", path)
            self._last = caps
