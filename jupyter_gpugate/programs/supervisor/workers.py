"""One worker process: its output and its events."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from typing import Any

from .events import EventLines, event_in
from .inbox import pull
from .output import Lines, Marks


class Worker:
    """One worker process with its output, which keeps the order of writing, and its events."""

    def __init__(self, argv: list[str], environment: dict[str, str], **how: Any) -> None:
        self.index = int(environment["GPUGATE_WORKER"])
        self.output, output = os.pipe()
        self.events, events = os.pipe()
        try:
            # One pipe for both streams: with two, the order between them would be lost.
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, "GPUGATE_EVENTS_FD": str(events)},
                pass_fds=(events,),
                start_new_session=True,
                **how,
            )
        finally:
            os.close(output)
            os.close(events)
        os.set_blocking(self.output, False)
        os.set_blocking(self.events, False)
        self.lines = Lines(b"[%d] " % self.index if environment["GPUGATE_WORKERS"] != "1" else b"")
        self.code: int | None = None
        self.has_result = False
        self.oom: dict[str, Any] | None = None
        self.torch: dict[str, dict[str, int]] = {}
        self.marks = Marks(environment.get("GPUGATE_MARK") or os.urandom(8).hex())
        self.places: dict[int, int] = {}  # by mark, the byte of the output that it follows
        self.is_to_clear = False  # before its next output
        self.event_lines = EventLines()

    def take_events(self) -> tuple[list[tuple[bytes, dict[str, Any]]], bool]:
        """Return the whole JSON lines that came, with what they say; True: the end was reached."""
        data, ended = pull(self.events)
        events = ((line, event_in(line)) for line in self.event_lines.feed(data))
        found = [(line, event) for line, event in events if event is not None]
        return found, ended

    def take(self, event: dict[str, Any]) -> None:
        """Keep the state that an event reports."""
        kind = event["event"]
        if kind == "torch":
            names = ("vram_peak", "vram_held", "overhead")
            self.torch.update({k: bytes_by_device(event[k]) for k in names if k in event})
        elif kind == "oom":
            self.oom = event
        elif kind == "result":
            self.has_result = True


def bytes_by_device(figures: object) -> dict[str, int]:
    """Keep what has the form {uuid: bytes}; figures of others are data, not to be trusted."""
    items = figures.items() if isinstance(figures, dict) else ()
    return {k: v for k, v in items if isinstance(v, int) and not isinstance(v, bool) and v >= 0}


def summed(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add up figures by device."""
    total: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0) + value
    return total
