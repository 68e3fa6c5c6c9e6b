"""The cgroup of a run whose supervisor is dead.

Every process in it belongs to the run, with any environment and any time of its fork.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import start_ticks

#: How often, and with what pause, it is tried to remove one that is not empty yet.
TRIES, TRY_S = 20, 0.05


class OrphanedCgroup:
    """A run's cgroup; one that is missing, or not this run's, has no processes."""

    def __init__(self, told: str, run_id: str) -> None:
        path = Path(told)
        is_own = path.is_absolute() and path.name.startswith(f"gpugate-{run_id}-")
        self._path = path if is_own and ".." not in path.parts and path.is_dir() else None

    def members(self) -> list[ProcessKey]:
        """Return the living processes in it."""
        found = []
        for place in self._below():
            with suppress(OSError, ValueError):
                for pid in map(int, (place / "cgroup.procs").read_text("ascii").split()):
                    ticks = start_ticks(pid) if pid > 1 else None
                    if ticks is not None:
                        found.append(ProcessKey(pid, ticks))
        return found

    def kill(self) -> None:
        """Kill all of them at once, where the kernel can."""
        if self._path is not None:
            with suppress(OSError):
                descriptor = os.open(self._path / "cgroup.kill", os.O_WRONLY | os.O_NOFOLLOW)
                try:
                    os.write(descriptor, b"1")
                finally:
                    os.close(descriptor)

    async def remove(self) -> None:
        """Remove it and the cgroups below it; killed processes may take a moment to go."""
        for _ in range(TRIES):
            if await asyncio.to_thread(self._is_removed):
                return
            await asyncio.sleep(TRY_S)

    def _is_removed(self) -> bool:
        for place in reversed(self._below()):
            with suppress(OSError):
                place.rmdir()
        return self._path is None or not self._path.is_dir()

    def _below(self) -> list[Path]:
        """Return it and all cgroups below it, the outer ones first."""
        found = [] if self._path is None else [self._path]
        for place in found:  # grows meanwhile
            with suppress(OSError):
                found += [
                    Path(e.path) for e in os.scandir(place) if e.is_dir(follow_symlinks=False)
                ]
        return found
