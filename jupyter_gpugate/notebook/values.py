"""Carries values between notebook and run: files under the user's uid, never the request.

A value given to a run is ``NAME.pickle`` (protocol 5) beside ``NAME.0.buffer``,
``NAME.1.buffer``, ... for its large buffers, which the run maps instead of reading.  Pickles are
only read under the uid that wrote them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

#: Smaller buffers stay inside the pickle: a file each would cost more than it saves.
_OUT_OF_BAND_FROM: Final = 64 * 1024


class ValueCannotTravel(ValueError):
    """A value could not be written for the run, or not be read back; the message names it."""


def stage(values: Mapping[str, object]) -> Path:
    """Write every value into a new private folder and return it; on error nothing is left.

    Raises `ValueCannotTravel` naming the value.
    """
    folder = data_folder() / "gpugate" / "staging" / str(uuid.uuid4())
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
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
    """Write one value; raise `ValueCannotTravel` naming it when it cannot be pickled."""
    buffers = 0

    def outside(buffer: pickle.PickleBuffer) -> bool:
        nonlocal buffers
        with buffer.raw() as raw:
            if raw.nbytes < _OUT_OF_BAND_FROM:
                return True
            with _new_file(folder / f"{name}.{buffers}.buffer") as file:
                file.write(raw)
        buffers += 1
        return False

    try:
        with _new_file(folder / f"{name}.pickle") as file:
            _pickler()(file, protocol=5, buffer_callback=outside).dump(value)
    except OSError:
        raise  # the disk's fault, not the value's
    except Exception as error:  # noqa: BLE001 - a class may fail to be pickled in any way
        raise ValueCannotTravel(
            f"--input {name}: `{name}` cannot be given to a run ({type(error).__name__}: {error}): "
            "build it in the cell instead"
        ) from None


def read(path: Path) -> Any:
    """Read a value that a run of this user wrote."""
    with path.open("rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner != os.getuid():
            raise ValueCannotTravel(f"{path} was written by uid {owner}: it is not read")
        try:
            return pickle.load(file)  # noqa: S301 - a file of our own uid
        except Exception as error:
            raise ValueCannotTravel(
                f"{path} cannot be loaded here: {type(error).__name__}: {error}"
            ) from error


def data_folder() -> Path:
    """Jupyter's data folder, also where jupyter_core is not installed."""
    with contextlib.suppress(ImportError):
        from jupyter_core.paths import jupyter_data_dir

        return Path(jupyter_data_dir())
    explicit = os.environ.get("JUPYTER_DATA_DIR")
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(explicit) if explicit else Path(share, "jupyter")


def _pickler() -> Callable[..., Any]:
    # cloudpickle takes what the notebook itself defines: functions and classes of __main__.
    base: Any = pickle.Pickler
    with contextlib.suppress(ImportError):
        import cloudpickle

        base = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduced = _in_host_memory(value)
            if reduced is NotImplemented and base is not pickle.Pickler:
                return super().reducer_override(value)
            return reduced

    return Pickler


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
