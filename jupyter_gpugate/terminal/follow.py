"""A terminal's wait for its run: output on stdout, the run's state on stderr."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Optional

from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.following import GroupFollower, RunFollower, State
from jupyter_gpugate.client.groups import SubmittedGroup, Sweep, submit_group
from jupyter_gpugate.client.stream import OutputStream
from jupyter_gpugate.client.waiting import (
    Interrupts,
    Patience,
    Show,
    Verdict,
    connected,
    submitted,
    until_end,
)
from jupyter_gpugate.faces import card, words

#: How often the numbers of an unchanged reason are printed again.
_NUMBERS_S: Final = 60.0


@contextlib.contextmanager
def taking_signals() -> Iterator[Terminal]:
    """Treat signals to this process as requests about its run, from the submit to the end."""
    interrupts = Interrupts()
    with interrupts.taken(), _leaving(interrupts):
        yield Terminal(interrupts)


class Terminal:
    """A terminal's way through the gate: connect, submit, wait.

    Without a person at it, the first interrupt cancels.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._patience = Patience(interactive=sys.stdin is not None and sys.stdin.isatty())

    def submitted(self, body: Mapping[str, Any]) -> tuple[Client, State]:
        """Queue a run and return the gate's answer; raises `Interrupted` before that."""
        client = connected(self._interrupts)
        show = Progress().show
        return client, submitted(client, body, self._interrupts, self._patience, show)

    def submitted_group(self, sweep: Sweep, show: Show) -> tuple[Client, SubmittedGroup]:
        """Queue every run of a sweep; raises `Interrupted` before the first."""
        client = connected(self._interrupts)
        return client, submit_group(client, sweep, self._interrupts, self._patience, show=show)

    def waited_group(self, client: Client, group: str, show: Show) -> tuple[State, Verdict]:
        """Wait for the ends of all runs of a group, or until a signal says not to."""
        follower = GroupFollower(client, group)
        try:
            return until_end(follower, self._interrupts, self._patience, show)
        finally:
            follower.close()

    def waited(
        self, client: Client, run_id: str, show: Show, *, streams: bool
    ) -> tuple[State, Verdict]:
        """Wait for a run's end, or until a signal says not to; return as `until_end` does."""
        stream = None
        ended = False
        follower = RunFollower(client, run_id)
        if streams:
            stream = OutputStream(Client(client.socket_path), run_id, write)
        try:
            state, verdict = until_end(follower, self._interrupts, self._patience, show)
            ended = state.get("status") == "ended"
        finally:
            follower.close()
            if stream is not None:
                stream.close(to_the_end=ended)
        return state, verdict


class Progress:
    """Prints the run's state on stderr whenever it changes.

    Free memory changes all the time: numbers alone are printed at most once a minute.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._warned: set[str] = set()
        self._clock = clock
        self._seen: Optional[tuple[object, ...]] = None
        self._said = ""
        self._said_at = 0.0
        self._advised = False
        self._has_said_retry = False

    def show(self, state: State, note: str) -> None:
        """Say the state, or the note in its place."""
        reasons = state.get("reasons") or ()
        reason = reasons[0] if reasons and state.get("status") == "queued" else {}
        why = f": {words.why(reason)}" if reason else ""
        line = note or f"{state.get('run_id') or ''} {card.title(state)}{why}".lstrip()
        seen = (
            *(state.get(name) for name in ("status", "position", "phase", "ready", "end")),
            *(reason.get(name) for name in ("kind", "resource", "who")),
            note,
        )
        now = self._clock()
        if seen != self._seen or (line != self._said and now - self._said_at >= _NUMBERS_S):
            self._seen, self._said, self._said_at = seen, line, now
            say(line)
        self._say_retry(state)
        for warning in map(str, state.get("warnings") or ()):
            if warning not in self._warned:
                self._warned.add(warning)
                say(f"warning: {warning}")
        if state.get("status") == "ended" and not self._advised:
            self._advised = True
            for advice in words.advice(state):
                say(advice)

    def _say_retry(self, state: State) -> None:
        """Say once that the run is tried again: as soon as it waits for that, or has started."""
        sentence = words.retried(state)
        if sentence and not self._has_said_retry:
            self._has_said_retry = True
            say(f"{state.get('run_id') or ''} {sentence}".lstrip())


def warn_of_lost_input() -> None:
    """Print on stderr that the input of a pipe or a file will not reach the command."""
    try:
        mode = os.fstat(0).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return
        unread = array.array("i", [0])
        fcntl.ioctl(0, termios.FIONREAD, unread)
    except OSError:
        return
    if unread[0] > 0:
        say("the command's standard input is empty: piped input does not reach it")


def say(line: str) -> None:
    """Print to stderr; a terminal that is gone is no reason to fail.

    Warnings and reasons may quote output of a run, which must not control the terminal.
    """
    shown = "\n".join(map(words.visible, line.split("\n")))
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{shown}\n")
        sys.stderr.flush()


def write(text: str) -> None:
    """Write to stdout at once; a reader that has gone away, like `head`, has had enough."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        # Buffered output would fail again when the interpreter ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _leaving(interrupts: Interrupts) -> Iterator[None]:
    """Let the end of the terminal or of its session end the wait; `nohup` goes on to hold."""
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    with contextlib.ExitStack() as before:
        if interrupts.counts:
            for number in numbers:
                signal.signal(number, interrupts.leave)
                before.callback(signal.signal, number, signal.SIG_DFL)
        yield
