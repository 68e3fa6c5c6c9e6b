"""Reads the records that the user's gate writes in places that do not depend on settings."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Optional

from jupyter_gpugate.core.codec import gate_name

#: A path that begins like this means an abstract socket, not a file.
KERNELS: Final = "@gpugate-"
_LARGEST: Final = 1 << 16


def sockets() -> list[Path]:
    """Return the sockets that gates of this user on this machine have recorded."""
    return _paths("socket")


def places() -> list[Path]:
    """Return the sockets that those gates were configured with; they may use other ones."""
    return _paths("place")


def kept_by_the_kernel() -> list[Path]:
    """Return the abstract socket of a gate, if any gate has written a record."""
    return [Path(f"{KERNELS}{_name()}")] if any(True for _ in _records()) else []


def kernel_address(path: Path) -> Optional[str]:
    """Return the address of an abstract socket; None for a file."""
    text = str(path)
    return f"\0{text[1:]}" if text.startswith(KERNELS) else None


def home() -> str:
    """Return the real path of this user's home; "" for a user without one."""
    try:
        return os.path.realpath(Path.home())
    except RuntimeError:
        return ""


def _paths(field: str) -> list[Path]:
    found = [Path(str(record.get(field) or "")) for record in _records()]
    return [path for path in found if path.is_absolute() and "\0" not in str(path)]


def _records() -> Iterator[dict[str, Any]]:
    name = f"gate-{_name()[:16]}.lock"
    for folder in _folders():
        try:
            record = json.loads(_own_text(folder / name).splitlines()[1])
        except (OSError, ValueError, IndexError):
            continue
        if isinstance(record, dict):
            yield record


def _folders() -> Iterator[Path]:
    if home():
        yield Path(home(), ".local", "state", "gpugate")
    own = f"gpugate-{os.geteuid()}"
    for place in ("/var/tmp", "/tmp", "/dev/shm"):  # noqa: S108 - the file's owner is checked
        yield Path(place, own)


def _own_text(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(str(path))
        return file.read(_LARGEST).decode("ascii")


def _name() -> str:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return gate_name(boot_id, os.geteuid(), home())
