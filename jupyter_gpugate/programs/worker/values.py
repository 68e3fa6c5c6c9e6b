"""Values in files: inputs from the notebook, outputs for it.

`client/values.py` is the other end: it writes the inputs and reads the outputs, with the pickler
and the buffers of this folder.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .buffers import mapped_buffers, out_of_band
from .pickling import dump_by_value
from .wording import error_text


def load_input(folder: Path, name: str) -> object:
    """Load ``NAME.pickle``; its large buffers, ``NAME.buffers``, are mapped privately, not read."""
    try:
        with (folder / f"{name}.pickle").open("rb") as file:
            return pickle.load(file, buffers=mapped_buffers(folder / f"{name}.buffers"))  # noqa: S301 - the user's own
    except Exception as error:
        raise ValueError(f"input `{name}` cannot be loaded: {error_text(error)}") from error


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

        def write(file: BinaryIO) -> None:
            dump_by_value(value, file, out_of_band(buffers))
            buffers.flush()
            os.fsync(buffers.fileno())

        try:
            write_whole(path, write)
        except BaseException:
            beside.unlink()
            raise
        if not buffers.tell():
            beside.unlink()
