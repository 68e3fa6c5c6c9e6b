"""Carries values between notebook and run: files under the user's uid, never the request.

A value is ``NAME.pickle``, with its large buffers in ``NAME.buffers``; `programs/worker/values.py`,
which is the other end, has the same pickler and buffers.  Pickles are only read under the uid that
wrote them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import time
import types
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from jupyter_gpugate.places import staging_folder
from jupyter_gpugate.programs.worker.buffers import mapped_buffers, out_of_band
from jupyter_gpugate.programs.worker.pickling import (
    Reducer,
    cloudpickle_if_installed,
    dump_by_value,
    refuse_open_file,
    tensor_in_host_memory,
)

#: A staging folder that is older has lost its notebook: a submit takes it over in seconds.
_ABANDONED_S: Final = 86400.0


class ValueCannotTravel(ValueError):
    """A value could not be written for the run, or not be read back; the message names it."""


def stage(values: Mapping[str, object]) -> Path:
    """Write every value into a new private folder and return it; on error nothing is left.

    Raises `ValueCannotTravel` naming the value.
    """
    root = staging_folder()
    folder = root / str(uuid.uuid4())
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear_away(root)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ValueCannotTravel(f"--input: {root} cannot be written: {error.strerror}") from None
    try:
        for name, value in values.items():
            write(folder, name, value)
    except BaseException:
        discard(folder)
        raise
    return folder


def staged_again(folder: Path) -> Path:
    """Return a new staging folder with the same values, without a copy where the disk permits."""
    again = folder.with_name(str(uuid.uuid4()))
    again.mkdir(mode=0o700)
    try:
        for file in folder.iterdir():
            _link_or_copy(file, again / file.name)
    except OSError as error:
        discard(again)
        raise ValueCannotTravel(f"--input: {again} cannot be written: {error.strerror}") from None
    return again


def _link_or_copy(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # a file system without hard links
        shutil.copy2(file, place)


def discard(folder: Path) -> None:
    """Remove a staging folder that no run took over."""
    shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, name: str, value: object) -> None:
    """Write one value; raise `ValueCannotTravel` naming it when it cannot be."""
    try:
        with _new_file(folder / f"{name}.buffers") as buffers:
            with _new_file(folder / f"{name}.pickle") as file:
                dump_by_value(value, file, out_of_band(buffers), _reducer())
            is_empty = not buffers.tell()
        if is_empty:
            (folder / f"{name}.buffers").unlink()
    except OSError as error:  # the disk's fault, not the value's
        raise ValueCannotTravel(
            f"--input {name}: `{name}` cannot be written to {folder.parent}: {error.strerror}"
        ) from None
    except Exception as error:  # noqa: BLE001 - a class may fail to be pickled in any way
        raise ValueCannotTravel(
            f"--input {name}: `{name}` cannot be given to a run ({type(error).__name__}: {error}): "
            "build it in the cell instead"
        ) from None


def read(path: Path) -> Any:
    """Read a value that a run of this user wrote; its large buffers are mapped when they are used.

    Raises `ValueCannotTravel` naming the file.
    """
    with path.open("rb") as file:
        _refuse_others(path, file)
        try:
            buffers = mapped_buffers(path.with_suffix(".buffers"), _refuse_others)
            return pickle.load(file, buffers=buffers)  # noqa: S301 - a file of our own uid
        except ValueCannotTravel:
            raise
        except Exception as error:
            raise ValueCannotTravel(
                f"{path} cannot be loaded here: {type(error).__name__}: {error}{_way_out(error)}"
            ) from error


def _clear_away(root: Path) -> None:
    """Remove what notebooks have staged that were killed before their submit."""
    for folder in root.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                discard(folder)


def _refuse_others(path: Path, file: BinaryIO) -> None:
    owner = os.fstat(file.fileno()).st_uid
    if owner != os.getuid():
        raise ValueCannotTravel(f"{path} was written by uid {owner}: it is not read")


def _way_out(error: Exception) -> str:
    if not isinstance(error, AttributeError) or "__main__" not in str(error):
        return ""
    return (
        "; define it in this notebook too and ask for the result again, or install cloudpickle "
        "in this environment for the next run"
    )


def _reducer() -> Reducer:
    """Return the reducer of inputs; without cloudpickle it refuses what only this notebook has."""
    only_by_name = cloudpickle_if_installed() is None

    def reduce(value: Any) -> Any:
        refuse_open_file(value)
        reduced = tensor_in_host_memory(value)
        if reduced is NotImplemented and only_by_name:
            _refuse_of_main(value)
        return reduced

    return reduce


def _refuse_of_main(value: Any) -> None:
    """Refuse what pickle would take by a name that means nothing in the run."""
    if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
        raise pickle.PicklingError(
            f"`{value.__qualname__}` is defined in this notebook, and without cloudpickle only "
            "definitions in modules can be inputs: install cloudpickle in this environment, or"
        )


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
