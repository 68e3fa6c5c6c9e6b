"""Processes of a test's own that no gate has started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO


@contextmanager
def running(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stderr: IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed when the block ends, or fails."""
    process = subprocess.Popen(command, env=env, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def stranger() -> Iterator[int]:
    """A process that belongs to no run, by its pid."""
    with running(["sleep", "1000"]) as process:
        yield process.pid
