"""Commands of `jupyter gpugate` as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

from tests.kit.real_server import Places, until

NOTHING: Mapping[str, str] = MappingProxyType({})


def gpugate(
    places: Places, *words: str, more: Mapping[str, str] = NOTHING, **options: Any
) -> subprocess.CompletedProcess[str]:
    """One command to its end, with some variables ``more``."""
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpugate", *words],
        env=places.environ(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        **{"cwd": places.notebooks, "stdin": subprocess.DEVNULL, **options},
    )


def told(places: Places, *words: str) -> Any:
    """What a command prints with ``--json``."""
    done = gpugate(places, *words)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


class AtTerminal:
    """A command at a terminal of its own, and all that it has drawn so far."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.drawn = ""
        self._terminal = terminal
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def shows(self, text: str) -> None:
        """Wait until it has drawn a text."""
        until(lambda: text in self.drawn, f"{text!r} is drawn")

    def types(self, keys: str) -> None:
        """Type on its keyboard."""
        os.write(self._terminal, keys.encode())

    def interrupts(self) -> None:
        """Interrupt the command, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(120)
        self._reader.join()
        return code

    def _read(self) -> None:
        with suppress(OSError):  # the other side is closed
            while data := os.read(self._terminal, 65536):
                self.drawn += data.decode(errors="replace")


@contextmanager
def at_terminal(places: Places, *words: str) -> Iterator[AtTerminal]:
    """Run a command at a terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpugate", *words],
        env=places.environ(TERM="xterm", COLUMNS="100", LINES="30"),
        cwd=places.notebooks,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield AtTerminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
