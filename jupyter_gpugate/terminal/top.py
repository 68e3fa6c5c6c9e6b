"""`jupyter gpugate top`: the queue, drawn again every second until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Optional

from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.errors import GateError, GateUnreachable, SubmissionError
from jupyter_gpugate.faces import columns, tables, words
from jupyter_gpugate.terminal.exits import OK
from jupyter_gpugate.terminal.follow import write

_PAUSE_S: Final = 1.0
#: The other screen of a terminal, which leaves what was there before; and the cursor.
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def top(options: argparse.Namespace) -> int:
    """Show the queue until an interrupt; as JSON, a line for each look."""
    if not options.json and not sys.stdout.isatty():
        raise SubmissionError(
            "top needs a terminal: `queue` prints the queue once, `top --json` a line every second"
        )
    looks = _Looks(connect())
    with contextlib.suppress(KeyboardInterrupt):
        if options.json:
            _print_lines(looks)
        with _other_screen(), _resizes(looks.again):
            while True:
                write(picture(*looks.next(), *shutil.get_terminal_size()))
    return OK


def picture(snapshot: dict[str, Any], trouble: str, width: int, height: int) -> str:
    """Return what draws the queue over the last one, cut to the size of the terminal."""
    head = f"{time.strftime('%H:%M:%S')}  Ctrl-C ends this view, and no run"
    lines = [columns.cut(head, width)]
    lines += columns.wrapped(words.visible(trouble), width) if trouble else []
    if snapshot:
        lines += tables.queue(snapshot, width)["text/plain"].split("\n")
    left_out = len(lines) - (height - 1)
    if left_out > 0:
        more = f"... {left_out + 1:,} more lines: `jupyter gpugate queue` shows all"
        lines = [*lines[: height - 2], columns.cut(more, width)]
    drawn = "".join(f"{columns.cut(line, width)}{_CLEAR_LINE}\r\n" for line in lines)
    return f"{_HOME}{drawn}{_CLEAR_BELOW}"


class _Looks:
    """Snapshots of the gate, one a second, also where the gate restarts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._snapshot: dict[str, Any] = {}
        self._last_at: Optional[float] = None
        #: Set when the terminal has another size.
        self.again = threading.Event()

    def next(self) -> tuple[dict[str, Any], str]:
        """Return the newest snapshot, and why it is an old one, if it is."""
        self._pause()
        trouble = ""
        try:
            self._snapshot = self._client.queue()
        except GateUnreachable as error:
            trouble = f"{error}; trying again"
            with contextlib.suppress(GateError):
                self._client = connect(start=False)
        return self._snapshot, trouble

    def _pause(self) -> None:
        if self._last_at is not None:
            self.again.wait(max(0.0, self._last_at + _PAUSE_S - time.monotonic()))
            self.again.clear()
        self._last_at = time.monotonic()


def _print_lines(looks: _Looks) -> None:
    while True:
        snapshot, trouble = looks.next()
        if not trouble:
            write(f"{json.dumps(snapshot)}\n")


@contextlib.contextmanager
def _other_screen() -> Iterator[None]:
    """Draw on the terminal's other screen, and give the first one back in any case."""
    write(_ENTER)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number in before:
            signal.signal(number, _interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        write(_LEAVE)


@contextlib.contextmanager
def _resizes(changed: threading.Event) -> Iterator[None]:
    before = signal.signal(signal.SIGWINCH, lambda *_: changed.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
