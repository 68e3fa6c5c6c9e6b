"""Waits for a run in the foreground: interrupts are counted, HTTP runs in threads of its own.

The main thread never blocks for long and never makes a request, so a signal is taken within a
moment and never in the middle of one.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Optional

from jupyter_gpugate.client import connection as gate
from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateUnreachable, Interrupted
from jupyter_gpugate.client.finding import with_ids
from jupyter_gpugate.client.following import Background, RunFollower, State, in_background

#: How long a first interrupt waits for a second one before the run goes on alone.
SECOND_CHANCE_S: Final = 5.0
#: Cancel (grace and all) may take a while; an interrupt this long after it no longer waits for it.
_TIME_TO_CANCEL_S: Final = 1.0


class Interrupts:
    """Counts SIGINT while entered, in place of KeyboardInterrupt in the middle of anything."""

    def __init__(self) -> None:
        self.count = 0
        #: Whether the wait is to end and the run to go on, whatever the count.
        self.left = False
        #: Whether this is where signals arrive.
        self.counts = threading.current_thread() is threading.main_thread()

    @contextlib.contextmanager
    def taken(self) -> Iterator[Interrupts]:
        """Count from here on; only the main thread can, elsewhere nothing is counted."""
        if not self.counts:
            yield self
            return
        before = signal.signal(signal.SIGINT, self._take)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def _take(self, _number: int, _frame: Optional[types.FrameType]) -> None:
        # Nothing but a count: a lock taken here could be held by the very code it interrupts.
        self.count += 1

    def leave(self, _number: int, _frame: Optional[types.FrameType]) -> None:
        """End the wait: a signal handler for what ends a terminal, such as SIGHUP."""
        self.left = True

    def asked_to_end(self) -> bool:
        """Return whether a signal has asked to end the wait."""
        return self.left or self.count > 0


class Verdict(Enum):
    """The meaning of the interrupts so far."""

    WAIT = "wait"
    WARN = "warn"  # one interrupt: a second one cancels
    LEAVE = "leave"  # no second one came: the run goes on alone
    CANCEL = "cancel"
    ENOUGH = "enough"  # not even the end of the cancel is waited for


class Patience:
    """Turns a count of interrupts into a verdict; without a person the first one cancels."""

    def __init__(self, *, interactive: bool) -> None:
        self._cancels_at = 2 if interactive else 1
        self._first_at: Optional[float] = None
        self._cancelled_at: Optional[float] = None
        self._seen = 0

    def verdict(self, interrupts: int, now: float) -> Verdict:
        """Judge; ``now`` is any steady clock in seconds."""
        more, self._seen = interrupts > self._seen, interrupts
        if self._cancelled_at is not None:
            enough = more and now - self._cancelled_at >= _TIME_TO_CANCEL_S
            return Verdict.ENOUGH if enough else Verdict.CANCEL
        if interrupts >= self._cancels_at:
            self._cancelled_at = now
            return Verdict.CANCEL
        if interrupts == 0:
            return Verdict.WAIT
        if self._first_at is None:
            self._first_at = now
        return Verdict.WARN if now - self._first_at < SECOND_CHANCE_S else Verdict.LEAVE


def connected(interrupts: Interrupts) -> Client:
    """Return a client of the user's gate, found or started.

    Raises `Interrupted` on an interrupt: nothing has been asked of anybody yet.
    """
    enough = threading.Event()
    client = in_background(
        lambda: gate.connect(give_up=enough.is_set), interrupts.asked_to_end, enough.set
    )
    if client is None:
        raise Interrupted("nothing was queued yet")
    return client


Show = Callable[[State, str], None]


def submitted(
    client: Client,
    body: Mapping[str, Any],
    interrupts: Interrupts,
    patience: Patience,
    show: Show = lambda _state, _note: None,
) -> State:
    """Queue a run and return the gate's answer; interrupts are judged after the answer.

    ``show`` gets the progress of a long submit.

    Only the answer shows whether a run is queued, so this waits for it and judges
    interrupts afterwards.  Only an interrupt that would not wait for a cancel either gives
    up, and after an interrupt a gate that does not answer is not asked again.
    """
    reports: list[str] = []
    shown = 0
    work = Background(
        lambda: client.submit(
            with_ids(client, body), give_up=interrupts.asked_to_end, report=reports.append
        )
    )
    while not work.done():
        if len(reports) > shown:
            shown = len(reports)
            show({"name": body.get("name"), "status": reports[-1]}, "")
        if patience.verdict(interrupts.count, time.monotonic()) is Verdict.ENOUGH:
            client.close()
            work.done(timeout_s=None)
    try:
        return work.result()
    except GateUnreachable as error:
        if error.status:  # it did answer
            raise
        raise GateUnreachable(f"{error}; the queue shows whether the run was queued") from None


def until_end(
    follower: RunFollower,
    interrupts: Interrupts,
    patience: Patience,
    show: Show,
    look: Callable[[State], object] = lambda _state: None,
    *,
    goes_on: Callable[[State], bool] = lambda _state: False,
) -> tuple[State, Verdict]:
    """Wait for the run's end, or until interrupts or a detach end the wait.

    ``show`` gets the state and a note whenever either changed, ``look`` the state again and again
    in between, for changes that the gate does not report.  ``goes_on`` says of an unfinished run
    that nobody needs to wait for it any longer.  Returns the last state and the verdict under which
    the wait ended; LEAVE means that the run goes on.
    """
    state: State = {"run_id": follower.run_id}
    shown = ""
    while True:
        news = follower.next()
        state = news or state
        verdict = patience.verdict(interrupts.count, time.monotonic())
        ended = state.get("status") == "ended"
        if verdict is Verdict.CANCEL and not ended:
            follower.cancel()
        verdict = _overruled(verdict, follower, interrupts, state)
        note = "" if ended else _note(verdict, follower)
        # A wait that is left has a message of its own.
        if ended or (verdict is not Verdict.LEAVE and (news or note != shown)):
            show(state, note)
            shown = note
        elif not ended:
            look(state)
        if verdict is Verdict.WAIT and not ended and goes_on(state):
            verdict = Verdict.LEAVE
        if ended or verdict is Verdict.ENOUGH:
            return state, verdict
        if verdict is Verdict.LEAVE and (state.get("detached") or follower.leave()):
            return state, verdict


def _overruled(
    verdict: Verdict, follower: RunFollower, interrupts: Interrupts, state: State
) -> Verdict:
    """Judge what else may end a wait: the terminal's end, and a run that others have detached."""
    if verdict in (Verdict.CANCEL, Verdict.ENOUGH):
        enough = verdict is Verdict.ENOUGH or interrupts.left
        if enough and (follower.not_taken or follower.refused):
            return Verdict.LEAVE  # nothing stops it
        return Verdict.ENOUGH if enough else verdict
    return Verdict.LEAVE if interrupts.left or state.get("detached") else verdict


def _note(verdict: Verdict, follower: RunFollower) -> str:
    if verdict is Verdict.WARN:
        return f"interrupt again within 5 s to cancel; {follower.going_on} otherwise"
    if follower.refused:
        return f"the cancel was refused: {follower.refused}"
    if verdict in (Verdict.CANCEL, Verdict.ENOUGH):
        how_far = follower.not_taken or "its processes are being stopped"
        return f"cancelling: {how_far}"
    return f"{follower.trouble}; {follower.going_on}" if follower.trouble else ""
