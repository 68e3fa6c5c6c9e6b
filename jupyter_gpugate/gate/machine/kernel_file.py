"""A text file of the kernel that is read again and again through one descriptor."""

from __future__ import annotations

import os
from typing import Final

#: Every file read here is written by the kernel in one piece, far shorter than this.
_WHOLE: Final = 64 * 1024


class KernelFile:
    """A file below /proc or /sys/fs/cgroup, opened once and read from its start each time.

    ``read`` raises `OSError` where the file is not there or cannot be read; the next ``read``
    opens it anew.
    """

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._descriptor = -1

    def read(self) -> bytes:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(self._descriptor, _WHOLE, 0)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
