"""Processes that hold a gate's lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable


class Process:
    """Another process, told what to do line by line; ``answer`` is its first line."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer = self._line()

    def ask(self, word: str) -> str:
        assert self.popen.stdin is not None
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()
        return self._line()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def _line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()


Starts = Callable[..., Process]
