"""Events for the supervisor, sent as JSON lines through a pipe."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import sys
import threading
from collections.abc import Mapping
from typing import Optional


class Events:
    """Sends JSON lines to the supervisor from this process; calls in a fork of it do nothing.

    A display leaves a mark in the printed output, and the supervisor removes it: that keeps prints
    and displays in order, those of subprocesses and of libraries in C included.
    """

    def __init__(self, descriptor: int, secret: str = "") -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - else the cell's children keep it open
        self._descriptor = descriptor
        self._secret = secret
        self._printed: Optional[int] = None
        if secret:
            with contextlib.suppress(OSError):  # above the pipe, whose number others may rely on
                self._printed = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, descriptor + 1)
        self._marks = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, event: str, **fields: object) -> None:
        """Write one event whole; nothing fails if the supervisor is gone."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._write({"event": event, **fields})

    def show(self, clears: str = "", /, **fields: object) -> None:
        """Send a display or a clear, and mark its place in the printed output."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._marks += 1
            mark = f"\x1b]gpugate;{self._secret};{self._marks};{clears}\x07".encode()
            with contextlib.suppress(OSError):
                if self._printed is not None:
                    os.write(self._printed, mark)  # short enough to be written in one piece
            self._write({"event": "display", "mark": self._marks, **fields})

    def _write(self, event: Mapping[str, object]) -> None:
        rest = memoryview(json.dumps(event, default=_plain).encode() + b"\n")
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def warn(self, text: str) -> None:
        self.send("warning", text=text)


def _plain(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return repr(value)


def warn_from_child(text: str) -> None:
    """Send a warning through the pipe of the worker, or print it if the pipe is closed."""
    line = json.dumps({"event": "warning", "text": text}).encode() + b"\n"
    try:
        descriptor = os.open(os.environ["GPUGATE_EVENTS"], os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, line[: select.PIPE_BUF])
        finally:
            os.close(descriptor)
    except (KeyError, OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201
