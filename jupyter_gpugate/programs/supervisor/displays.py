"""Displays of a run, in a file that stays small however often they change."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, NamedTuple

from .attempt_files import append_whole, as_json, open_to_append

DISPLAY_CAP = 256 << 20  # of displays, and the most of them
DISPLAY_LINES = 20_000
STALE_BYTES = 8 << 20  # of displays that others have replaced, before the file is written anew
WAITING_CAP = 64 << 20  # of lines that wait for a full disk


class Display(NamedTuple):
    """One line of the displays' file, as far as its place in the file depends on it."""

    number: int
    size: int
    worker: int
    update_of: int | None  # the display that it renews
    clear: str  # "now", "wait" for the next display, or none


class Displays:
    """The displays as JSON lines: an update replaces the one before it, also on the disk.

    Each line has a number, by which a reader finds its place again when the file was written anew.
    Displays that were replaced or cleared are left out then.  Where that is not enough, the older
    half gives way to one line that says so.
    """

    def __init__(
        self, path: str, *, alone: bool, cap: int = DISPLAY_CAP, most: int = DISPLAY_LINES
    ) -> None:
        self._path, self._cap, self._most = path, cap, most
        self._alone = alone  # whether there is one worker, whose clears are of the whole page
        self._file, self._size = open_to_append(path)
        self._number = 0
        self._lines: list[Display] = []
        self._newest: dict[int, Display] = {}  # the newest update of each display
        self._cleared: dict[int, int] = {}  # per worker, before which number all is cleared
        self._clears: dict[int, int] = {}  # clears that the next display of a worker brings about
        self._fresh: dict[int, int] = {}  # per worker, bytes that nothing has replaced
        self._stale = 0  # bytes
        self._gap = b""  # the line about what gave way
        self._waiting: list[tuple[Display, bytes]] = []
        self._waits = 0  # bytes
        self._retry_at = 0  # size of the file at which it is tried again to write it anew
        self.gone = 0  # displays that gave way

    def add(self, line: bytes, event: dict[str, Any], worker: int, place: int | None) -> None:
        """Take one event; ``place`` is the byte of the output that it follows."""
        self._number += 1
        more = {"n": self._number, "worker": worker, "alone": self._alone, "at": place}
        data = b"%b, %b\n" % (line.rstrip()[:-1], as_json(more)[1:])
        if self._waits + len(data) > WAITING_CAP:
            self.gone += 1
            return
        transient = event.get("transient")
        name = transient.get("display_id") if isinstance(transient, dict) else None
        is_update = event.get("update") is True and isinstance(name, str)
        update_of = hash((worker, name)) if is_update else None
        clear = "" if event.get("clear") is not True else "wait" if event.get("wait") else "now"
        shown = Display(self._number, len(data), worker, update_of, clear)
        self._waiting.append((shown, data))
        self._waits += len(data)

    def write(self) -> None:
        """Bring the lines that wait to the disk."""
        if not self._waiting:
            return
        data = b"".join(data for _, data in self._waiting)
        if not append_whole(self._file, self._size, data):
            return
        self._size += len(data)
        for shown, _ in self._waiting:
            self._count(shown)
        self._waiting, self._waits = [], 0
        is_full = self._size > self._cap or len(self._lines) > self._most
        is_loose = self._stale > max(STALE_BYTES, self._size // 2)
        if (is_full or is_loose) and self._size >= self._retry_at:
            self._write_anew()

    def _count(self, shown: Display) -> None:
        self._lines.append(shown)
        worker = shown.worker
        if shown.clear == "wait":
            self._clears[worker] = shown.number
        elif shown.clear:
            self._clear(worker, shown.number)
        elif shown.update_of is None:
            self._clear(worker, self._clears.pop(worker, 0))
        else:
            before = self._newest.get(shown.update_of)
            if before is not None and not self._is_stale(before):
                self._stale += before.size
                self._fresh[worker] -= before.size
            self._newest[shown.update_of] = shown
        self._fresh[worker] = self._fresh.get(worker, 0) + shown.size

    def _clear(self, worker: int, number: int) -> None:
        if number:
            self._stale += self._fresh.pop(worker, 0)
            self._cleared[worker] = number

    def _is_stale(self, shown: Display) -> bool:
        is_newest = shown.update_of is None or self._newest.get(shown.update_of) is shown
        return not is_newest or shown.number < self._cleared.get(shown.worker, 0)

    def _write_anew(self) -> None:
        """Leave out stale lines, and the older half where that is not enough."""
        kept = [one for one in self._lines if not self._is_stale(one)]
        size, first = sum(one.size for one in kept), 0
        if size > self._cap // 2 or len(kept) > self._most // 2:
            while first < len(kept) - 1 and (
                size > self._cap // 2 or len(kept) - first > self._most // 2
            ):
                size -= kept[first].size
                first += 1
        gone = self.gone + sum(not one.clear and not one.update_of for one in kept[:first])
        gap = self._gap
        if first:
            gap = as_json({"event": "gone", "n": kept[first - 1].number, "count": gone}) + b"\n"
        try:
            self._copy(kept[first:], gap)
        except OSError:  # a full disk has no room for the second file
            with suppress(OSError):
                os.unlink(f"{self._path}.new")
            self._retry_at = self._size + STALE_BYTES
            return
        self.gone, self._gap, self._lines, self._stale = gone, gap, kept[first:], 0
        self._newest = {one.update_of: one for one in self._lines if one.update_of is not None}
        self._fresh = {}
        for one in self._lines:
            self._fresh[one.worker] = self._fresh.get(one.worker, 0) + one.size

    def _copy(self, kept: list[Display], gap: bytes) -> None:
        """Write a file of these lines alone, and put it in the place of the old one."""
        numbers = {one.number for one in kept}
        with open(self._path, "rb") as old, open(f"{self._path}.new", "wb") as new:
            new.write(gap)
            old.seek(len(self._gap))
            for one in self._lines:
                if one.number in numbers:
                    new.write(old.read(one.size))
                else:
                    old.seek(one.size, os.SEEK_CUR)
        os.replace(f"{self._path}.new", self._path)
        os.close(self._file)
        self._file, self._size = open_to_append(self._path)
