"""The memory counts of known processes, read again and again through descriptors kept open.

A descriptor on ``/proc/PID/statm`` belongs to the process that it was opened for.  Once that one
is gone every read of it fails, also when another process has got its number: a kept descriptor
never shows a successor.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

_MOST: Final = 16384
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)
_LEFT_TO_OTHERS: Final = 256  # sockets, logs, the journal
_WHOLE: Final = 96  # bytes that hold all of the file


def descriptor_budget() -> int:
    """Return the number of descriptors to keep: half of this process's limit, at most 16,384."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(0, min(soft // 2, soft - _LEFT_TO_OTHERS, _MOST))


def is_exhausted(error: Exception) -> bool:
    """Whether no file can be opened any more, whichever it is."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


class StatmFiles:
    """At most ``budget`` descriptors, by pid."""

    def __init__(self, budget: int | None = None) -> None:
        self._budget = descriptor_budget() if budget is None else budget
        self._descriptors: dict[int, int] = {}
        self._pids: dict[int, int] = {}  # by descriptor
        self._texts: dict[int, bytes] = {}  # by descriptor, as last read

    def __len__(self) -> int:
        return len(self._descriptors)

    def __contains__(self, pid: int) -> bool:
        return pid in self._descriptors

    def read_changed(self) -> list[tuple[int, bytes]]:
        """Read all, one ``pread`` each: those whose text changed, by pid; empty of the gone."""
        changed: list[tuple[int, bytes]] = []
        pread, texts = os.pread, iter(self._texts.items())
        while True:
            try:
                for descriptor, before in texts:
                    text = pread(descriptor, _WHOLE, 0)
                    if text != before:
                        changed.append((descriptor, text))
            except OSError:
                changed.append((descriptor, b""))
            else:
                break
        self._texts.update(changed)
        return [(self._pids[descriptor], text) for descriptor, text in changed]

    def open(self, path: str) -> int:
        """Return a new descriptor; if there are no more, close half of the kept ones first."""
        try:
            return os.open(path, os.O_RDONLY)
        except OSError as error:
            if not is_exhausted(error) or not self._descriptors:
                raise
        self._make_room()
        return os.open(path, os.O_RDONLY)

    def keep(self, pid: int, descriptor: int, text: bytes) -> bool:
        """Keep a descriptor just read, for `release` to close; False where the budget is spent."""
        if len(self._descriptors) >= self._budget:
            return False
        self._descriptors[pid] = descriptor
        self._pids[descriptor] = pid
        self._texts[descriptor] = text
        return True

    def release(self, pid: int) -> None:
        """Close the descriptor of a process, if one is kept."""
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            del self._pids[descriptor], self._texts[descriptor]
            os.close(descriptor)

    def _make_room(self) -> None:
        """Give half of the descriptors back, for good: this process needs them elsewhere."""
        self._budget = len(self._descriptors) // 2
        for pid in list(self._descriptors)[self._budget :]:
            self.release(pid)


def read_text(descriptor: int) -> bytes:
    """The whole of the file."""
    return os.pread(descriptor, _WHOLE, 0)
