"""Carries values between notebook and run: files under the user's uid, never the request.

A value is ``NAME.pickle`` (protocol 5) beside ``NAME.buffers``, in which its large buffers stand
one after the other, each after its length; a loader maps them instead of reading.
Pickles are only read under the uid that wrote them.  `programs/worker/values.py` is the other end.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import shutil
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from jupyter_gpugate.places import staging_folder

#: Smaller buffers stay inside the pickle: a page each would cost more than it saves.
_OUT_OF_BAND_FROM: Final = 64 * 1024
#: Alignment of a buffer, for arithmetic on vectors; its length precedes it.
_ALIGNED: Final = 64
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


def discard(folder: Path) -> None:
    """Remove a staging folder that no run took over."""
    shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, name: str, value: object) -> None:
    """Write one value; raise `ValueCannotTravel` naming it when it cannot be."""
    try:
        with _new_file(folder / f"{name}.buffers") as buffers:
            with _new_file(folder / f"{name}.pickle") as file:
                _pickler()(file, protocol=5, buffer_callback=_outside(buffers)).dump(value)
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
            buffers = _buffers(path.with_suffix(".buffers"))
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


def _outside(buffers: IO[bytes]) -> Callable[[pickle.PickleBuffer], bool]:
    def outside(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as raw:
            if raw.nbytes < _OUT_OF_BAND_FROM:
                return True  # it stays inside the pickle
            buffers.write(raw.nbytes.to_bytes(8, "little").ljust(_ALIGNED, b"\0"))
            buffers.write(raw)
            buffers.write(bytes(-raw.nbytes % _ALIGNED))
        return False

    return outside


def _buffers(path: Path) -> Iterator[memoryview]:
    if not path.exists():
        return
    with path.open("rb") as file:
        _refuse_others(path, file)
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    at = 0
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 8], "little")
        at += _ALIGNED
        yield whole[at : at + size]
        at += size + -size % _ALIGNED


def _refuse_others(path: Path, file: IO[bytes]) -> None:
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


def _pickler() -> Callable[..., Any]:
    # cloudpickle takes what the notebook itself defines: functions and classes of __main__.
    base: Any = pickle.Pickler
    with contextlib.suppress(ImportError):
        import cloudpickle

        base = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            _refuse_open_file(value)
            reduced = _in_host_memory(value)
            if reduced is not NotImplemented:
                return reduced
            if base is not pickle.Pickler:
                return super().reducer_override(value)
            _refuse_of_main(value)
            return NotImplemented

    return Pickler


def _refuse_open_file(value: Any) -> None:
    """Refuse what cloudpickle would take as a copy in memory, at the start of the file."""
    if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
        raise TypeError("an open file cannot be copied to a run; pass its path")


def _refuse_of_main(value: Any) -> None:
    """Refuse what pickle would take by a name that means nothing in the run."""
    if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
        raise pickle.PicklingError(
            f"`{value.__qualname__}` is defined in this notebook, and without cloudpickle only "
            "definitions in modules can be inputs: install cloudpickle in this environment, or"
        )


def _in_host_memory(value: Any) -> Any:
    """Reduce a tensor to an array: off the notebook's GPU, and with a buffer of its own."""
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and not value.requires_grad:
        # Kinds that NumPy has not, such as bfloat16 or sparse, take torch's own way.
        with contextlib.suppress(TypeError, RuntimeError):
            return torch.from_numpy, (value.cpu().resolve_conj().resolve_neg().numpy(),)
    return NotImplemented


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
