"""The file of large buffers beside a pickle: ``NAME.buffers`` beside ``NAME.pickle``.

They stand one after the other, each after its length, and are mapped instead of read.  Notebook and
run write and read this same format.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

#: Smaller buffers stay inside the pickle: a page each would cost more than it saves.
OUT_OF_BAND_FROM = 64 * 1024
#: Alignment of a buffer, for arithmetic on vectors; its length precedes it.
ALIGNED = 64

#: Takes a buffer; a true answer leaves it inside the pickle.
BufferCallback = Callable[[pickle.PickleBuffer], bool]


def out_of_band(file: BinaryIO) -> BufferCallback:
    """Return a pickler's callback that appends large buffers to a file."""

    def outside(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as raw:
            if raw.nbytes < OUT_OF_BAND_FROM:
                return True
            file.write(raw.nbytes.to_bytes(8, "little").ljust(ALIGNED, b"\0"))
            file.write(raw)
            file.write(bytes(-raw.nbytes % ALIGNED))
        return False

    return outside


def mapped_buffers(
    path: Path, check: Callable[[Path, BinaryIO], object] = lambda _path, _file: None
) -> Iterator[memoryview]:
    """Yield the buffers of a file, mapped privately; none where there is no file.

    ``check`` may refuse the open file by an exception.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        check(path, file)
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    at = 0
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 8], "little")
        at += ALIGNED
        yield whole[at : at + size]
        at += size + -size % ALIGNED
