"""Passes a run's output on as it is written, for a terminal that waits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, Optional

from jupyter_gpugate.client import connection as gate
from jupyter_gpugate.client.connection import Client, Pauses
from jupyter_gpugate.client.errors import GateError, GateUnreachable

_PACE_S: Final = 0.3


class OutputStream:
    """Writes the output of one run from a byte on, piece by piece, in a thread of its own.

    If another attempt begins, its output follows from its beginning.
    """

    def __init__(
        self, client: Client, run_id: str, write: Callable[[str], object], start: int = 0
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._write = write
        self._start = start
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
        start, pauses = self._start, Pauses()
        attempt: Optional[int] = None
        while True:
            last = self._closing.is_set()
            try:
                piece = self._client.output(self._run_id, start)
            except GateUnreachable:
                if last:
                    return
                self._closing.wait(pauses.next())
                self._look_again()
                continue
            except GateError:
                return
            before, attempt = attempt, piece.get("attempt")
            if before and attempt != before:
                start = 0
                continue
            start, pauses = piece["next"], Pauses()
            if piece["text"]:
                self._write(piece["text"])
            elif last:
                return
            if not piece["text"]:
                self._closing.wait(_PACE_S)

    def _look_again(self) -> None:
        """Look for the gate, which may listen elsewhere by now; the run's follower starts one."""
        with contextlib.suppress(GateError):
            found = gate.connect(start=False)
            self._client = found
            if self._closing.is_set() and not self._to_the_end:
                found.close()
