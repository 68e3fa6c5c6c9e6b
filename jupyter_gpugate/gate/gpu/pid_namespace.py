"""Checks whether the pids that a driver lists belong to this PID namespace.

Some drivers number processes as the host does, whichever PID namespace asks; others translate, and
hide what the asking namespace does not have.  In a container a foreign number can be that of an
unrelated process, so none is named there before the numbers are proven to be of this namespace.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

#: The kernel gives the first namespace this fixed inode.
INITIAL_NAMESPACE = "pid:[4026531836]"
#: Open in every CUDA program, in no mere monitor.
CUDA_DEVICE = "/dev/nvidia-uvm"


class PidNamespace:
    """The evidence about one namespace; a proof remains valid."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._proven = False

    def doubt(self, listed: Collection[int]) -> str:
        """Return why pids that the driver lists cannot be taken for ours; "" when they can."""
        if not self._proven:
            try:
                namespace = str((self._proc / "self/ns/pid").readlink())
            except OSError as error:
                return f"the PID namespace cannot be read: {error}"
            if namespace != INITIAL_NAMESPACE:
                strangers = [pid for pid in listed if not (self._proc / str(pid)).exists()]
                if strangers:
                    return f"the driver lists pid {min(strangers)}, which is not in this container"
                if not any(self._computes(pid) for pid in listed):
                    return "in a container, and it is not proven that the driver lists its pids"
            self._proven = True
        return ""

    def _computes(self, pid: int) -> bool:
        try:
            handles = list((self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False  # gone, or another user's
        return any(_target(handle).startswith(CUDA_DEVICE) for handle in handles)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""  # closed meanwhile
