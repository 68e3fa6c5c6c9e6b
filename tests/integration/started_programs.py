"""Programs that hold memory, for the machine reader."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path


class Program:
    """A Python program that says "here" when it is as the test wants it, and then waits.

    ``go`` lets it go on to the next time that it says so.
    """

    def __init__(
        self,
        source: str,
        *,
        command: tuple[str, ...] = (),
        cwd: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command or (sys.executable, "-c", PRELUDE + textwrap.dedent(source)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, **(environ or {})},
        )
        self.pid = self.process.pid
        self.said = self.hear()

    def hear(self) -> list[str]:
        """Return what it says before and after "here"."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == ["here"], f"it said {words}"
        return words[1:]

    def go(self) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


PRELUDE = """
import ctypes, mmap, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the test
MB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
def here(*words):
    os.write(1, (" ".join(["here", *map(str, words)]) + "\\n").encode())
    if not os.read(0, 3):
        os._exit(0)
def hold(megabytes):
    ballast = bytearray(megabytes * MB)
    ballast[::4096] = b"x" * len(ballast[::4096])
    return ballast
"""


def started(programs: ExitStack, source: str, **options: object) -> Program:
    """Start a program and wait until it is there."""
    program = Program(source, **options)  # type: ignore[arg-type]
    programs.callback(program.kill)
    return program


def stat_of(pid: int) -> list[str]:
    """Fields 3 and on of /proc/PID/stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def listed() -> list[int]:
    """Every number in /proc."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
