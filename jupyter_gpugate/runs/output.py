"""The output of an attempt: its log, read from any byte on, and its end for cards."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from pathlib import Path
from typing import Final

from jupyter_gpugate.runs.folder import Torn, opened_attempt

OUTPUT_TAIL_BYTES: Final = 64 << 10
#: Enough for the last few lines.
LAST_BYTES: Final = 4 << 10
#: The most bytes of the output that is shown below a card while it grows.
REST_BYTES: Final = 16 << 10

_GONE: Final = re.compile(rb"\[gpugate: the first ([0-9]+) bytes are gone\]\n")
_EARLIER: Final = '[earlier lines: jupyter_gpugate.get("{}").output()]\n'


def read_output(
    attempt: Path, start: int | None = None, limit: int = OUTPUT_TAIL_BYTES
) -> tuple[str, int]:
    """Return at most ``limit`` bytes of output from byte ``start`` on, and the byte after them.

    Without ``start``, the end of what there is.  Offsets count all bytes that the run has printed,
    also when a long log has lost its beginning: reading then goes on where the log does.  A
    character that is not whole yet is left for the next time.
    """
    with contextlib.suppress(OSError, Torn), opened_attempt(attempt) as folder:
        with os.fdopen(folder.open_file("output.log"), "rb") as log:
            note = _GONE.match(log.read(64))
            gone = int(note[1]) - note.end() if note else 0  # bytes before the file's first
            size = os.fstat(log.fileno()).st_size
            at = size - limit if start is None else min(start - gone, size)
            at = max(0, at)
            log.seek(at)
            data = log.read(limit)
        if start is None and at > 0:
            data, whole = data.lstrip(bytes(range(0x80, 0xC0))), data
            at += len(whole) - len(data)
        return _whole_characters(data, gone + at + len(data))
    return "", start or 0


def output_stamp(attempt: Path) -> tuple[int, int] | None:
    """Return a stamp that changes with an attempt's output; None if there is none yet."""
    try:
        found = (attempt / "output.log").stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def output_from(attempt: Path, start: int) -> str:
    """Return an attempt's output from a byte on; of a long one its end, from a line's start."""
    text, end = read_output(attempt, start, REST_BYTES)
    if end - start < REST_BYTES - 3:  # a character may be cut
        return text
    text, _ = read_output(attempt, limit=REST_BYTES)
    first, _, rest = text.partition("\n")
    return _EARLIER.format(attempt.parents[1].name) + (rest or first)


def output_tail(attempt: Path, until: int | None = None) -> str:
    """Return the end of an attempt's output, or of its part before a byte, from a line's start."""
    earlier = _EARLIER.format(attempt.parents[1].name)
    limit = OUTPUT_TAIL_BYTES - len(earlier)
    if until is None:
        text, end = read_output(attempt, limit=limit)
    else:
        start = max(0, until - limit)
        text, end = read_output(attempt, start, until - start)
    if end <= limit:
        return text
    first, _, rest = text.partition("\n")
    return earlier + (rest or first)


def _whole_characters(data: bytes, end: int) -> tuple[str, int]:
    """Decode UTF-8 but for a last character that is cut; return the text and where it ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, end - len(decoder.getstate()[0])
