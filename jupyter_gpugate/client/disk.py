"""Measures the disk space of a folder."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import Final

#: A time limit, because a network disk may take long over many files.
PATIENCE_S: Final = 10.0


def held_below(folder: str, patience_s: float = PATIENCE_S) -> tuple[int, bool]:
    """Return the bytes on the disk below a folder, and whether that is all of them.

    No link is followed; folders that cannot be read, or are too deep for a path, are omitted.
    """
    until = time.monotonic() + patience_s
    held, is_whole = 0, True
    todo = [folder]
    while todo:
        if time.monotonic() > until:
            return held, False
        try:
            entries = os.scandir(todo.pop())
        except OSError:
            is_whole = False
            continue
        with entries:
            for entry in entries:
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    held += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        todo.append(entry.path)
    return held, is_whole
