"""Waiting for output, events, answers and signals at once."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable

from .attempt_files import CHUNK

MOST_AT_ONCE = 1 << 20


class Inbox:
    """Descriptors to be read, each with its reader, and a waker for threads and signals."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        woken, self._waker = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(self._waker, False)
        self.add(woken, lambda: pull(woken))

    def add(self, fd: int, read: Callable[[], object]) -> None:
        """Call ``read`` whenever there is something to be read."""
        self._selector.register(fd, selectors.EVENT_READ, read)

    def has(self, fd: int) -> bool:
        """Return whether a descriptor has not come to its end."""
        return fd in self._selector.get_map()

    def close(self, fd: int) -> None:
        """Close a descriptor that has come to its end."""
        self._selector.unregister(fd)
        os.close(fd)

    def wake(self) -> None:
        """End a wait; raises BlockingIOError where it has been ended already."""
        os.write(self._waker, b".")

    def wake_on_signals(self) -> None:
        """Let every signal that has a handler end a wait."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until something can be read, and read it."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            key.data()


def pull(fd: int) -> tuple[bytes, bool]:
    """Read what is there, `MOST_AT_ONCE` bytes at most; True: the other end is closed."""
    chunks: list[bytes] = []
    while len(chunks) < MOST_AT_ONCE // CHUNK:
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return b"".join(chunks), False
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
    return b"".join(chunks), False
