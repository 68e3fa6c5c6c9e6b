"""Pickled values, which another process on another device must be able to load.

The notebook's side uses this module as well; see `buffers` for the file beside a pickle.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Optional

from .buffers import BufferCallback

PROTOCOL = 5
#: Reduces a value as ``__reduce__`` does; ``NotImplemented`` leaves it to the value's own class.
Reducer = Callable[[Any], Any]


def refuse_open_file(value: object) -> None:
    """Refuse what cloudpickle would replace by a copy in memory, at the start of the file."""
    if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
        raise TypeError("an open file cannot be copied to another process; pass its path")


def tensor_in_host_memory(value: Any) -> Any:
    """Reduce a tensor on any device to an array in host memory, with a buffer of its own."""
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and not value.requires_grad:
        # Kinds that NumPy does not have, such as bfloat16 or sparse, are left to torch.
        with contextlib.suppress(TypeError, RuntimeError):
            return torch.from_numpy, (value.cpu().resolve_conj().resolve_neg().numpy(),)
    return NotImplemented


def _in_host_memory(value: Any) -> Any:
    """Reduce an array on any device so that it is loaded into host memory."""
    refuse_open_file(value)
    reduced = tensor_in_host_memory(value)
    if reduced is not NotImplemented:
        return reduced
    torch, jax, cupy = (sys.modules.get(name) for name in ("torch", "jax", "cupy"))
    if torch is not None:
        storages = (
            getattr(torch.storage, "TypedStorage", ()),
            getattr(torch, "UntypedStorage", ()),
        )
        if isinstance(value, storages) and value.device.type != "cpu":
            return value.cpu().__reduce__()
    if jax is not None and isinstance(value, jax.Array):
        return sys.modules["numpy"].asarray(value).__reduce_ex__(PROTOCOL)
    if cupy is not None and isinstance(value, cupy.ndarray):
        return value.get().__reduce_ex__(PROTOCOL)
    return NotImplemented


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _in_host_memory(value)


def dump_by_reference(value: object, file: BinaryIO) -> None:
    """Pickle a value for this same cell: its classes are found by name."""
    _Pickler(file, PROTOCOL).dump(value)


def dump_by_value(
    value: object,
    file: BinaryIO,
    outside: Optional[BufferCallback] = None,
    reduce: Reducer = _in_host_memory,
) -> None:
    """Pickle a value for another program; cloudpickle includes what __main__ defines."""
    cloudpickle = cloudpickle_if_installed()
    base: Any = cloudpickle.Pickler if cloudpickle is not None else pickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduced = reduce(value)
            if reduced is NotImplemented and cloudpickle is not None:
                return super().reducer_override(value)
            return reduced

    Pickler(file, PROTOCOL, buffer_callback=outside).dump(value)


def cloudpickle_if_installed() -> Any:
    """Return the module cloudpickle; None where it is not installed."""
    with contextlib.suppress(ImportError):
        import cloudpickle

        return cloudpickle
    return None


def pickling_hint(error: BaseException) -> str:
    """Suggest cloudpickle if that would pickle a function or class of the cell."""
    by_name = isinstance(error, (pickle.PicklingError, AttributeError))
    if not by_name or cloudpickle_if_installed() is not None:
        return ""
    return "; install cloudpickle in this environment to hand over what a cell defines"
