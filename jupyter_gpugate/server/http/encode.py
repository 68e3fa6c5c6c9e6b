"""Dataclasses as JSON."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import Any

from jupyter_gpugate.core.codec import json_name

SCALARS = frozenset((str, int, float, bool, type(None)))
#: By dataclass: its fields in JSON, and the attributes that they are read from.
_NAMES: dict[type, tuple[tuple[str, str], ...]] = {}


def encode(value: Any, *, sort_keys: bool = False) -> str:
    """Return a value as JSON: dataclasses as objects, tuples as lists."""
    return json.dumps(value, default=fields_of, sort_keys=sort_keys, check_circular=False)


def fields_of(value: Any) -> dict[str, object]:
    """Return the fields of a dataclass, or the items of a mapping, by their names in JSON."""
    names = _NAMES.get(type(value))
    if names is None:
        if not dataclasses.is_dataclass(value):
            return dict(value)
        names = tuple((json_name(field), field.name) for field in dataclasses.fields(value))
        _NAMES[type(value)] = names
    return {name: getattr(value, attribute) for name, attribute in names}


def as_json(value: Any, made: dict[int, Any] | None = None) -> Any:
    """Return a value as the reader of its JSON gets it; ``made`` are the parts that are known."""
    if type(value) in SCALARS:
        return value
    made = {} if made is None else made
    known = made.get(id(value))
    if known is None:
        known = made[id(value)] = _made(value, made)
    return known


def _made(value: Any, made: dict[int, Any]) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [as_json(one, made) for one in value]
    found = value if isinstance(value, dict) else fields_of(value)
    return {name: as_json(one, made) for name, one in found.items()}
