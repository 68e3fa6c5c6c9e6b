"""A process whose first thread has ended while another one lives and holds memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.supervisor_process import until

#: The call that ends one thread alone, by machine.
_EXIT = {"x86_64": 60, "aarch64": 93}
MB = 1 << 20


def code(megabytes: int) -> str:
    """A program whose first thread ends; the other one holds so much until it is killed."""
    number = _EXIT.get(os.uname().machine)
    if number is None:
        pytest.skip("knows the number of the call for x86_64 and aarch64 alone")
    return (
        "import ctypes, threading, time\n"
        f"held = bytearray({megabytes} << 20)\n"
        "def live():\n"
        "    held[::4096] = b'x' * len(held[::4096])\n"
        "    time.sleep(1000)\n"
        "threading.Thread(target=live).start()\n"
        f"ctypes.CDLL(None).syscall({number}, 0)\n"
    )


@contextmanager
def headless(megabytes: int, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start such a process, and wait until it is one; kill it afterwards."""
    command = [sys.executable, "-c", code(megabytes)]
    with subprocess.Popen(command, env={**os.environ, **environ}) as process:
        try:
            until(lambda: is_headless(process.pid), "the end of the first thread")
            yield process
        finally:
            process.kill()


def is_headless(pid: int) -> bool:
    """Whether the first thread of a process has ended and another one lives."""
    task = Path(f"/proc/{pid}/task")
    state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return state == b"Z" and len(list(task.iterdir())) > 1
