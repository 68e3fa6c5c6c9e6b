"""Files of an attempt that a full disk never tears."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

CHUNK = 1 << 16  # bytes that are read at once
WARNINGS_CAP = 1 << 20  # of all warnings
TEXT_CAP = 256 << 10  # of one text in an error or a warning
ERRORS_MAX = 256


def write_whole(path: str, data: bytes) -> None:
    """Write a file that appears whole or not at all, and stays after a power cut."""
    with open(f"{path}.new", "wb") as new:
        new.write(data)
        new.flush()
        os.fsync(new.fileno())
    os.replace(f"{path}.new", path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def as_json(value: object) -> bytes:
    """Encode for a file or a message."""
    return json.dumps(value).encode()


def open_to_append(path: str) -> tuple[int, int]:
    """Open a file that only grows; return its descriptor and size."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return file, os.fstat(file).st_size


class JsonLines:
    """A file of JSON lines; a full disk delays lines but never cuts one."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self._file, self._size = open_to_append(path)
        self._is_durable = durable  # against a power cut
        self._waiting: list[bytes] = []

    def add(self, line: bytes) -> None:
        self._waiting.append(line + b"\n")

    def write(self) -> None:
        """Bring the lines that wait to the disk."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        if append_whole(self._file, self._size, data):
            self._size, self._waiting = self._size + len(data), []
            if self._is_durable:
                with suppress(OSError):
                    os.fdatasync(self._file)
        else:
            self._waiting = [data]


def append_whole(file: int, size: int, data: bytes) -> bool:
    """Append to a file of this size; on False all of it was taken back."""
    written = 0
    with suppress(OSError):
        while taken := os.write(file, memoryview(data)[written:]):
            written += taken
            if written == len(data):
                return True
    with suppress(OSError):
        os.ftruncate(file, size)
    return False


class Messages:
    """Errors and warnings of a run; each kind has its own limit, and long texts are cut."""

    def __init__(self, path: str) -> None:
        self._records = JsonLines(path, durable=False)
        self._errors = self._warned = self._unsaid = 0
        self.write = self._records.write

    def add(self, event: dict[str, Any]) -> None:
        line = as_json({name: shortened(value) for name, value in event.items()})
        if event["event"] == "error":
            self._errors += 1
            if self._errors <= ERRORS_MAX:
                self._records.add(line)
        elif self._warned + len(line) > WARNINGS_CAP:
            self._unsaid += 1
        else:
            self._warned += len(line)
            self._records.add(line)

    def remark(self, text: str) -> None:
        """Add a warning of the supervisor's own: there are few."""
        self._records.add(as_json({"event": "warning", "text": text}))

    def close(self) -> None:
        """Report how many warnings were dropped."""
        if self._unsaid:
            self.remark(f"{self._unsaid:,} more warnings are not kept")


def shortened(value: Any) -> Any:
    """Cut a text in its middle, a list of texts at its beginning."""
    if isinstance(value, str) and len(value) > TEXT_CAP:
        left_out = f"\n... {len(value) - TEXT_CAP:,} more characters ...\n"
        return value[: TEXT_CAP // 2] + left_out + value[-TEXT_CAP // 2 :]
    if isinstance(value, list):
        kept: list[Any] = []
        size = 0
        for part in reversed(value):
            kept.append(shortened(part))
            size += len(str(kept[-1]))
            if size > TEXT_CAP:
                break
        return kept[::-1]
    return value
