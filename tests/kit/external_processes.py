"""Processes that a test starts outside of any run."""

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
    """Start a process, and kill it at the end of the block."""
    process = subprocess.Popen(command, env=env, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def external_process() -> Iterator[int]:
    """Start a process that belongs to no run, and yield its pid."""
    with running(["sleep", "1000"]) as process:
        yield process.pid
