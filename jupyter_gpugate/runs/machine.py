"""Identifies the machine of a run, if several machines mount the same home.

No identifier of the machine itself is enough: the boot id changes with a reboot, and a name or
``/etc/machine-id`` may be missing, or the same in every copy of an image.  What two machines never
share is the state directory, which lies on a local disk and whose lock makes a gate the only one.
So its mark is made in there, once, and each run keeps the mark of the machine that it was
submitted on.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from jupyter_gpugate.proc import boot_id
from jupyter_gpugate.runs.folder import opened

#: The file in the state directory.
MARK_FILE: Final = "machine"

_MARK: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Machine:
    """One machine, as a run's record names it."""

    mark: str
    host: str  # for people
    boot_id: str
    pids: str  # the namespace in which a pid means a process

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def owns(self, record: object) -> bool:
        """Return whether a run with this record of its machine was submitted on this one.

        A run without a record was written before there were marks.  If the state directory was
        lost or moved, boot and pids still show that the run's processes can be judged here.
        """
        if not isinstance(record, Mapping):
            return True
        if record.get("mark") == self.mark:
            return True
        same = (self.boot_id, self.pids)
        return bool(all(same)) and (record.get("boot_id"), record.get("pids")) == same


def this_machine(state: Path) -> Machine:
    """Return this machine by the mark in its state directory, which is made where it is missing.

    Raises `OSError` where it can neither be read nor written.
    """
    return Machine(_mark_of(state), socket.gethostname(), boot_id(), _pid_namespace())


def renew_mark(state: Path, machine: Machine) -> None:
    """Write the mark of this machine again if it was removed."""
    with opened(state.resolve()) as folder:
        if MARK_FILE not in folder.names():
            folder.write(MARK_FILE, f"{machine.mark}\n".encode())


def host_of(record: object) -> str:
    """Return the name, for people, of the machine in a run's record."""
    host = record.get("host") if isinstance(record, Mapping) else None
    return host if isinstance(host, str) and host else "an unknown host"


def _mark_of(state: Path) -> str:
    with opened(state.resolve()) as folder:
        with contextlib.suppress(FileNotFoundError):
            found = folder.read(MARK_FILE, 1024).decode("ascii", "replace").strip()
            if _MARK.fullmatch(found):
                return found
        mark = secrets.token_hex(16)
        folder.write(MARK_FILE, f"{mark}\n".encode())
        return mark


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no path, a name
    except OSError:
        return ""


def elsewhere(record: Any) -> str:
    """Describe a run of another machine, for people."""
    return f"on another machine ({host_of(record)})"
