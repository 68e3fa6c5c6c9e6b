"""Values in files: inputs from the notebook, outputs for it.

`client/values.py` is the other end: it writes the inputs and reads the outputs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from .pickling import dump_by_value
from .wording import error_text

OUT_OF_BAND_FROM = 64 * 1024  # bytes of a buffer that is written beside the pickle
ALIGNED = 64  # where a buffer begins, for arithmetic on vectors; its length precedes it


def load_input(folder: Path, name: str) -> object:
    """Load ``NAME.pickle``; its large buffers, ``NAME.buffers``, are mapped privately, not read."""
    try:
        with (folder / f"{name}.pickle").open("rb") as file:
            return pickle.load(file, buffers=_buffers(folder / f"{name}.buffers"))  # noqa: S301 - the user's own
    except Exception as error:
        raise ValueError(f"input `{name}` cannot be loaded: {error_text(error)}") from error


def _buffers(path: Path) -> Iterator[memoryview]:
    if not path.exists():
        return
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    at = 0
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 8], "little")
        at += ALIGNED
        yield whole[at : at + size]
        at += size + -size % ALIGNED


def append_buffer(file: BinaryIO, raw: memoryview) -> None:
    """Write one buffer in the form that `_buffers` reads."""
    file.write(raw.nbytes.to_bytes(8, "little").ljust(ALIGNED, b"\0"))
    file.write(raw)
    file.write(bytes(-raw.nbytes % ALIGNED))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a file that appears at ``path`` once it is complete and on the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(path: Path, value: object) -> None:
    """Write a value for the notebook; its large buffers go into a second file, to be mapped."""
    beside = path.with_suffix(".buffers")
    with beside.open("wb") as buffers:

        def outside(buffer: pickle.PickleBuffer) -> bool:
            with buffer.raw() as raw:
                if raw.nbytes >= OUT_OF_BAND_FROM:
                    append_buffer(buffers, raw)
                return raw.nbytes < OUT_OF_BAND_FROM

        def write(file: BinaryIO) -> None:
            dump_by_value(value, file, outside)
            buffers.flush()
            os.fsync(buffers.fileno())

        try:
            write_whole(path, write)
        except BaseException:
            beside.unlink()
            raise
        if not buffers.tell():
            beside.unlink()
