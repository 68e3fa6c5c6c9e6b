"""The lease messages and every value of the core, to and from JSON.

One codec for all: a frozen dataclass becomes an object with its field names, an enum its value, a
named tuple a list.  Reading is strict: an unknown, missing or ill-typed field is a
``ProtocolError`` that names it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import sys
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

LEASE_PATH = "/lease/v1"
API_PATH = "/gpugate/api/v1"
#: Seconds between heartbeats, before a lease counts as overdue, and between presences.
HEARTBEAT_S = 2.0
LEASE_TTL_S = 15.0
PRESENCE_S = 10.0

#: Jupyter's, the Hub's, its proxy's and the gate's own tokens: no run ever sees them.
_TOKENS = re.compile(r"JUPYTERHUB_|JPY_|CONFIGPROXY_|JUPYTER_TOKEN|GPUGATE_TOKEN")

T = TypeVar("T")


def is_token(variable: str) -> bool:
    """Whether an environment variable is a server's own and no business of a run."""
    return _TOKENS.match(variable) is not None



class ProtocolError(ValueError):
    """A message does not have the form that its kind asks for."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def to_json(value: Any) -> Any:
    """Turn a value of the core into plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(to_json(k)): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_json(v) for v in value)
    return value


def from_json(cls: type[T], data: Any, field: str = "message") -> T:
    """Build a ``cls`` from JSON data; raise `ProtocolError` naming the field that is wrong."""
    return typing.cast(T, _read(cls, data, field))


@functools.lru_cache(maxsize=None)
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, vars(sys.modules[cls.__module__]))


def _read(kind: Any, data: Any, field: str) -> Any:  # noqa: PLR0911 - one case per kind of type
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin is typing.Union:
        return None if data is None else _read(args[0], data, field)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, field)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_enum(kind, data, field)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _read_named_tuple(kind, data, field)
    if origin is tuple:
        return _read_tuple(args, data, field)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise ProtocolError(field, "must be an object")
        return {_read(args[0], k, field): _read(args[1], v, f"{field}.{k}") for k, v in data.items()}
    return _read_scalar(kind, data, field)


def _read_dataclass(kind: Any, data: Any, field: str) -> Any:
    if not isinstance(data, Mapping):
        raise ProtocolError(field, "must be an object")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = set(data) - set(fields)
    if unknown:
        raise ProtocolError(f"{field}.{sorted(unknown)[0]}", "is not a field of this message")
    hints = _hints(kind)
    values = {}
    for name, spec in fields.items():
        if name in data:
            values[name] = _read(hints[name], data[name], f"{field}.{name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{field}.{name}", "is missing")
    return kind(**values)


def _read_enum(kind: Any, data: Any, field: str) -> Any:
    try:
        return kind(data)
    except ValueError:
        choices = ", ".join(str(m.value) for m in kind)
        raise ProtocolError(field, f"must be one of {choices}") from None


def _read_named_tuple(kind: Any, data: Any, field: str) -> Any:
    if not isinstance(data, (list, tuple)) or len(data) != len(kind._fields):
        raise ProtocolError(field, f"must be a list of {len(kind._fields)}")
    hints = _hints(kind)
    return kind(*(_read(hints[n], v, f"{field}.{n}") for n, v in zip(kind._fields, data)))


def _read_tuple(args: tuple[Any, ...], data: Any, field: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise ProtocolError(field, "must be a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], v, f"{field}[{i}]") for i, v in enumerate(data))
    if len(args) != len(data):
        raise ProtocolError(field, f"must be a list of {len(args)}")
    return tuple(_read(a, v, f"{field}[{i}]") for i, (a, v) in enumerate(zip(args, data)))


def _read_scalar(kind: Any, data: Any, field: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is int and isinstance(data, bool):
        raise ProtocolError(field, "must be a whole number")
    if not isinstance(data, kind):
        words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise ProtocolError(field, f"must be {words.get(kind, kind.__name__)}")
    return data
