"""Reads the records that the user's gate writes in places that do not depend on settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jupyter_gpugate.places import (
    abstract_path,
    gate_name,
    lock_file,
    lock_folders,
    open_private,
)

_LARGEST: Final = 1 << 16


def sockets() -> list[Path]:
    """Return the sockets that gates of this user on this machine have recorded."""
    return _paths("socket")


def places() -> list[Path]:
    """Return the sockets that those gates were configured with; they may use other ones."""
    return _paths("place")


def kept_by_the_kernel() -> list[Path]:
    """Return the abstract socket of a gate, if any gate has written a record."""
    return [Path(abstract_path(gate_name()))] if any(True for _ in _records()) else []


def _paths(field: str) -> list[Path]:
    found = [Path(str(record.get(field) or "")) for record in _records()]
    return [path for path in found if path.is_absolute() and "\0" not in str(path)]


def _records() -> Iterator[dict[str, Any]]:
    name = lock_file(gate_name())
    for folder in lock_folders():
        try:
            with os.fdopen(open_private(folder / name, os.O_RDONLY), "rb") as file:
                lines = file.read(_LARGEST).decode("ascii").splitlines()
            record = json.loads(lines[1])
        except (OSError, ValueError, IndexError):
            continue
        if isinstance(record, dict):
            yield record
