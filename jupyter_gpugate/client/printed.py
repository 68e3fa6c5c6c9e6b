"""Reads parts of a run's printed output from its log."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple, Optional

#: The first line of a log that has lost its beginning; offsets count what is gone.
_GONE: Final = re.compile(rb"\[gpugate: the first ([0-9]+) bytes are gone\]\n")


class Part(NamedTuple):
    """The end of a part of the output."""

    text: str
    end: int  # the byte after it
    is_cut: bool  # it began before the text


def read_part(log: Path, start: int, stop: Optional[int], most: int) -> Part:
    """Return at most ``most`` bytes of the output from ``start`` to ``stop``, or to its end.

    What is cut off at the beginning is cut up to the end of a line, where there is one.
    """
    try:
        with log.open("rb") as file:
            note = _GONE.match(file.read(64))
            gone = int(note[1]) - note.end() if note else 0
            end = gone + os.fstat(file.fileno()).st_size
            stop = end if stop is None else min(stop, end)
            begin = max(start, stop - most, gone + note.end() if note else 0)
            file.seek(max(0, begin - gone))
            text = file.read(max(0, stop - begin)).decode("utf-8", "replace")
    except FileNotFoundError:
        return Part("", start, is_cut=False)
    is_cut = begin > start and stop > start
    if is_cut:
        first, _, rest = text.partition("\n")
        text = rest or first
    return Part(text, max(start, stop), is_cut)
