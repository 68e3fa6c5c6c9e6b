"""The output of a run: what its workers print, in one log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from .attempt_files import CHUNK, open_to_append

OUTPUT_CAP = 64 << 20  # of printed bytes
GONE = b"[gpugate: the first %d bytes are gone]\n"  # the first line of a log that lost its own
LOST = b"\n[gpugate: %d bytes are lost: the disk was full]\n"
CLEAR = b"\x1b[H\x1b[2J"  # in the output, what a run's `clear_output` does to a screen
MARK = b"\x1b]gpugate;%b;"
MARK_MAX = 80  # bytes


class OutputLog:
    """The log of the output; past ``cap`` bytes its older half gives way to a note."""

    def __init__(self, path: str, cap: int = OUTPUT_CAP) -> None:
        self._path, self._cap = path, cap
        self._file, self._size = open_to_append(path)
        self._gone = 0
        self._lost = 0

    @property
    def end(self) -> int:
        """The number of bytes so far, including dropped ones."""
        return self._gone + self._size

    def write(self, data: bytes) -> None:
        """Append; data that a full disk does not take is dropped and reported later."""
        if not data:
            return
        note = LOST % self._lost if self._lost else b""
        written = self._append(note + data)
        if written < len(note):
            self._lost += len(data)
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
        else:
            self._size += written
            self._lost = len(note) + len(data) - written

    def _append(self, data: bytes) -> int:
        with suppress(OSError):
            if self._size + len(data) > self._cap:
                self._make_room()
            return os.write(self._file, data)
        return 0

    def _make_room(self) -> None:
        try:
            self._roll()
        except OSError:  # a full disk has no room for the second file
            with suppress(OSError):
                os.unlink(f"{self._path}.new")
            gone = self.end
            os.ftruncate(self._file, 0)
            self._gone, self._size = gone, 0
            self._size = os.write(self._file, GONE % gone)
            self._gone -= self._size

    def _roll(self) -> None:
        with open(self._path, "rb") as old, open(f"{self._path}.new", "wb") as new:
            old.seek(max(0, self._size - self._cap // 2))
            old.readline(CHUNK)
            gone = self._gone + old.tell()
            new.write(GONE % gone)
            self._gone = gone - new.tell()  # the note is none of the run's own bytes
            while chunk := old.read(CHUNK):
                new.write(chunk)
        os.replace(f"{self._path}.new", self._path)
        os.close(self._file)
        self._file, self._size = open_to_append(self._path)


class Lines:
    """One worker's output cut into whole lines, so that those of several workers do not mix."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""

    def feed(self, data: bytes, *, ended: bool) -> bytes:
        """Return what can be written now; without a prefix that is everything, as it is."""
        if not self._prefix:
            return data
        pieces = (self._rest + data).splitlines(keepends=True)
        self._rest = b""
        if pieces and not pieces[-1].endswith(b"\n"):
            if ended or len(pieces[-1]) > CHUNK:
                pieces[-1] += b"\n"
            else:
                self._rest = pieces.pop()
        return b"".join(self._prefix + piece for piece in pieces)


class Mark(NamedTuple):
    """The position of a display, or of a clear, in a worker's output."""

    number: int
    clear: str  # "now", "wait" for the next output, or none


class Marks:
    """Removes a worker's marks from its output: the only place where prints and displays meet.

    A mark begins with a secret of its worker, so that nothing that the run prints is taken for one.
    """

    def __init__(self, secret: str) -> None:
        self._start = MARK % secret.encode()
        self._mark = re.compile(re.escape(self._start) + rb"([0-9]{1,15});([a-z]{0,4})\x07")
        self._rest = b""

    def cut(self, data: bytes, *, ended: bool) -> Iterator[tuple[bytes, Mark | None]]:
        """Return the output piece by piece, each with the mark behind it."""
        data = self._rest + data
        at = 0
        for found in self._mark.finditer(data):
            yield data[at : found.start()], Mark(int(found[1]), found[2].decode())
            at = found.end()
        end = len(data) if ended else self._certain(data)
        self._rest = data[max(at, end) :]
        yield data[at : max(at, end)], None

    def _certain(self, data: bytes) -> int:
        """Return up to which byte no mark can have begun."""
        at = data.rfind(b"\x1b", max(0, len(data) - MARK_MAX))
        tail = data[at:] if at >= 0 else b" "
        is_begun = self._start.startswith(tail) or tail.startswith(self._start)
        return at if is_begun and b"\x07" not in tail else len(data)
