"""Runs whose begin a test can see and whose end it decides, and a queue that it can hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kit.real_server import Places, Served, until

HINT = "--hint-ram 64MB"


class ControlledRun:
    """A run that reports its begin through a file and ends when the test says so."""

    def __init__(self, places: Places, name: str) -> None:
        self.name = f"{name}_{time.monotonic_ns()}"
        self._begun = places.root / f"{self.name}.begun"
        self._end = places.root / f"{self.name}.end"
        self._module = places.notebooks / f"{self.name}.py"

    def module(self) -> str:
        """Write the cell's code as a module, to be run from one line, and return its name."""
        self._module.write_text(self.source().partition("\n")[2])
        return self.name

    def source(self, options: str = "", before: str = "", after: str = "x = 6 * 7") -> str:
        """Return the source of a gated cell."""
        return (
            f"%%gated_eval {self.name} {HINT} {options}\n"
            f"import os, time\n{before}\n"
            f"open({str(self._begun)!r}, 'a').write('begun ')\n"
            f"while not os.path.exists({str(self._end)!r}):\n    time.sleep(0.02)\n{after}"
        )

    def begins(self) -> None:
        until(self._begun.exists, f"{self.name} runs")

    def times_begun(self) -> int:
        return self._begun.read_text().count("begun") if self._begun.exists() else 0

    def end(self) -> None:
        self._end.touch()


@contextmanager
def drained(server: Served) -> Iterator[None]:
    """Hold every run in the queue."""
    assert server.ask("POST", "/drain", {"reason": "a test"}).status == 200
    try:
        yield
    finally:
        server.ask("DELETE", "/drain")


def processes_of(run_id: str) -> list[int]:
    """Return the processes that have a run's id in their environment."""
    mark, found = f"GPUGATE_RUN_ID={run_id}".encode(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def waits_for(release: Path) -> str:
    """A run that goes on until a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.1)\n"
