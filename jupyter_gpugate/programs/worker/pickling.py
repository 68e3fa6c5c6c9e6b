"""Pickled values, which another process on another device must be able to load."""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Optional

PROTOCOL = 5
#: Takes a buffer; a true answer leaves it inside the pickle.
BufferCallback = Callable[[pickle.PickleBuffer], bool]


def _portable(value: Any) -> Any:
    """Reduce an array on any device so that it is loaded into host memory.

    ``NotImplemented`` leaves the value to its own class.  An open file is refused: cloudpickle
    would replace it by a copy in memory, at the start of the file.
    """
    if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
        raise TypeError("an open file does not travel, its path does")
    torch, jax, cupy = (sys.modules.get(name) for name in ("torch", "jax", "cupy"))
    if torch is not None:
        storages = (
            getattr(torch.storage, "TypedStorage", ()),
            getattr(torch, "UntypedStorage", ()),
        )
        if type(value) is torch.Tensor and not value.requires_grad:
            # Kinds that NumPy does not have, such as bfloat16 or sparse, are left to torch.
            with contextlib.suppress(TypeError, RuntimeError):
                return torch.from_numpy, (value.cpu().resolve_conj().resolve_neg().numpy(),)
        elif isinstance(value, storages) and value.device.type != "cpu":
            return value.cpu().__reduce__()
    if jax is not None and isinstance(value, jax.Array):
        return sys.modules["numpy"].asarray(value).__reduce_ex__(PROTOCOL)
    if cupy is not None and isinstance(value, cupy.ndarray):
        return value.get().__reduce_ex__(PROTOCOL)
    return NotImplemented


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _portable(value)


def dump_by_reference(value: object, file: BinaryIO) -> None:
    """Pickle a value for this same cell: its classes are found by name."""
    _Pickler(file, PROTOCOL).dump(value)


def dump_by_value(value: object, file: BinaryIO, outside: Optional[BufferCallback] = None) -> None:
    """Pickle a value for another program: cloudpickle includes the cell's own classes."""
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        _Pickler(file, PROTOCOL, buffer_callback=outside).dump(value)
        return

    base: Any = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduced = _portable(value)
            return super().reducer_override(value) if reduced is NotImplemented else reduced

    Pickler(file, PROTOCOL, buffer_callback=outside).dump(value)


def _cloudpickle() -> Any:
    with contextlib.suppress(ImportError):
        import cloudpickle

        return cloudpickle
    return None


def pickling_hint(error: BaseException) -> str:
    """Suggest cloudpickle if that would pickle a function or class of the cell."""
    by_name = isinstance(error, (pickle.PicklingError, AttributeError))
    if not by_name or _cloudpickle() is not None:
        return ""
    return "; install cloudpickle in this environment to hand over what a cell defines"
