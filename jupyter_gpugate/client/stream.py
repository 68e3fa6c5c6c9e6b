"""Passes a run's output on as it is written, for a terminal that waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from jupyter_gpugate.client.connection import Client, Pauses
from jupyter_gpugate.client.errors import GateError, GateUnreachable

_PACE_S: Final = 0.3


class OutputStream:
    """Writes the output of one run from its beginning, piece by piece, in a thread of its own."""

    def __init__(self, client: Client, run_id: str, write: Callable[[str], object]) -> None:
        self._client = client
        self._run_id = run_id
        self._write = write
        self._closing = threading.Event()
        self._to_the_end = False
        self._thread = threading.Thread(target=self._pass_on, name="gpugate-output", daemon=True)
        self._thread.start()

    def close(self, *, to_the_end: bool) -> None:
        """End the thread; ``to_the_end`` writes first what an ended run has left."""
        self._to_the_end = to_the_end
        self._closing.set()
        if not to_the_end:
            self._client.close()
        self._thread.join()

    def _pass_on(self) -> None:
        start, pauses = 0, Pauses()
        while True:
            last = self._closing.is_set()
            try:
                piece = self._client.output(self._run_id, start)
            except GateUnreachable:
                if last:
                    return
                self._closing.wait(pauses.next())
                continue
            except GateError:
                return
            start, pauses = piece["next"], Pauses()
            if piece["text"]:
                self._write(piece["text"])
            elif last:
                return
            if not piece["text"]:
                self._closing.wait(_PACE_S)
