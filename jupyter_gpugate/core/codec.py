"""Every value of the core to JSON and back.

One codec for all: a frozen dataclass becomes an object with its field names, an enum its value, a
named tuple a list.  Reading is strict: an unknown, missing or ill-typed field is a
``ProtocolError`` that names it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Callable, TypeVar

#: No number that means anything is larger, and every reckoning with smaller ones stays finite.
LARGEST = (1 << 63) - 1
#: The most characters of an unknown name that a message repeats.
SHOWN_CHARS = 64

#: A JSON object whose fields are not checked yet, or are another program's: a body before its
#: validation, a record on the disk, a setting.
JsonObject = dict[str, Any]

T = TypeVar("T")
Reader = Callable[[Any, str], Any]
#: ``Optional[X]``, and ``X | None`` where Python knows that form.
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


class ProtocolError(ValueError):
    """A message does not have the form that its kind asks for."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def to_json(value: Any) -> Any:
    """Turn a value of the core into plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {json_name(f): to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(to_json(k)): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_json(v) for v in value)
    return value


def json_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field in JSON, which may be a word of Python."""
    return str(field.metadata.get("alias", field.name))


def from_json(cls: type[T], data: Any, field: str = "message") -> T:
    """Build a ``cls`` from JSON data; raise `ProtocolError` naming the field that is wrong."""
    kind: Any = cls
    return typing.cast(T, _reader(kind)(data, field))


# One reader per type, made once: a gate that starts reads ten thousand messages from its journal.


@functools.cache
def _reader(kind: Any) -> Reader:  # noqa: PLR0911 - one case per kind of type
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda data, _field: data
    if origin in _UNIONS:
        return _optional(_reader(args[0])) if type(None) in args else _of_union(args)
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _of_enum(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _of_named_tuple(kind)
    if origin is tuple:
        return _of_tuple(args)
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(_reader(args[0]), _reader(args[1]))
    return _of_scalar(kind)


def _optional(read: Reader) -> Reader:
    return lambda data, field: None if data is None else read(data, field)


def _of_union(kinds: Sequence[Any]) -> Reader:
    """Read dataclasses, which are distinguished by their fields."""
    readers = [({f.name for f in dataclasses.fields(kind)}, _reader(kind)) for kind in kinds]

    def read(data: Any, field: str) -> Any:
        for names, reader in readers:
            if isinstance(data, Mapping) and data.keys() == names:
                return reader(data, field)
        raise ProtocolError(field, "has the fields of no kind of value that is possible here")

    return read


def _of_dataclass(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    readers: dict[str, Reader] = {}
    needed = [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for f in dataclasses.fields(kind):
        readers[f.name] = _reader(hints[f.name])

    def read(data: Any, field: str) -> Any:
        if not isinstance(data, Mapping):
            raise ProtocolError(field, "must be an object")
        if not data.keys() <= readers.keys():
            unknown = min(map(str, data.keys() - readers.keys()))[:SHOWN_CHARS]
            raise ProtocolError(f"{field}.{unknown}", "is not a field of this message")
        for name in needed:
            if name not in data:
                raise ProtocolError(f"{field}.{name}", "is missing")
        return kind(**{n: readers[n](value, f"{field}.{n}") for n, value in data.items()})

    return read


def _of_enum(kind: Any) -> Reader:
    def read(data: Any, field: str) -> Any:
        try:
            return kind(data)
        except (ValueError, TypeError):
            choices = ", ".join(str(m.value) for m in kind)
            raise ProtocolError(field, f"must be one of {choices}") from None

    return read


def _of_named_tuple(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    names = [(name, _reader(hints[name])) for name in kind._fields]

    def read(data: Any, field: str) -> Any:
        if not isinstance(data, (list, tuple)) or len(data) != len(names):
            raise ProtocolError(field, f"must be a list of {len(names)}")
        return kind(*(r(value, f"{field}.{n}") for (n, r), value in zip(names, data)))

    return read


def _of_tuple(args: tuple[Any, ...]) -> Reader:
    alike = args[-1:] == (Ellipsis,)
    readers = [_reader(arg) for arg in (args[:1] if alike else args)]

    def read(data: Any, field: str) -> Any:
        if not isinstance(data, (list, tuple)):
            raise ProtocolError(field, "must be a list")
        if not alike and len(data) != len(readers):
            raise ProtocolError(field, f"must be a list of {len(readers)}")
        each = readers * len(data) if alike else readers
        return tuple(r(v, f"{field}[{i}]") for i, (r, v) in enumerate(zip(each, data)))

    return read


def _of_mapping(key: Reader, value: Reader) -> Reader:
    def read(data: Any, field: str) -> Any:
        if not isinstance(data, Mapping):
            raise ProtocolError(field, "must be an object")
        return {key(k, field): value(v, f"{field}.{str(k)[:SHOWN_CHARS]}") for k, v in data.items()}

    return read


def _of_scalar(kind: Any) -> Reader:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}

    def read(data: Any, field: str) -> Any:
        number = isinstance(data, (int, float)) and not isinstance(data, bool)
        if number and not -LARGEST <= data <= LARGEST:  # nor is "not a number"
            raise ProtocolError(field, "is not a number of bytes, seconds or items")
        if kind is float and number:
            return float(data)
        if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
            raise ProtocolError(field, f"must be {words.get(kind, kind.__name__)}")
        return data

    return read
