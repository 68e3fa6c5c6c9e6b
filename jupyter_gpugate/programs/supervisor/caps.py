"""The caps of the workers' GPU memory, which may change while they run."""

from __future__ import annotations

import os
from contextlib import suppress

from .attempt import Attempt
from .attempt_files import as_json


class Caps:
    """Hands the caps of the run to its workers, each an equal share, in a file that they watch."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._last: dict[str, int] = attempt.launch["caps"]  # as started, or as last written

    def follow(self, caps: dict[str, int]) -> None:
        """Write caps that have changed; a disk that refuses them is tried again."""
        if not caps or caps == self._last or self._attempt.is_gone():
            return
        path, workers = self._attempt.file("caps.json"), self._attempt.launch["workers"]
        shares = {uuid: cap // workers for uuid, cap in caps.items()}
        with suppress(OSError):
            with open(f"{path}.new", "wb") as new:
                new.write(as_json(shares))
            os.replace(f"{path}.new", path)
            self._last = caps
