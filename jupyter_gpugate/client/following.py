"""Calls and news of the gate in threads, for a main thread that only ever waits in short steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, Optional, TypeVar

from jupyter_gpugate.client import connection as gate
from jupyter_gpugate.client.connection import Answer, Client, Pauses
from jupyter_gpugate.client.errors import GateError, GateUnreachable

T = TypeVar("T")
State = dict[str, Any]

#: One look of the main thread, and the least time between two answers shown.
_STEP_S: Final = 0.05
_PACE_S: Final = 0.25
#: A gate that is away this long is taken for gone: then one is started.
_GONE_S: Final = 10.0
#: How long a gate may take to accept a detach.
_TIME_TO_TELL_S: Final = 5.0
#: The gate's answer where a run has ended already.
_TOO_LATE: Final = 409


class Background(Generic[T]):
    """One call in a daemon thread; its caller waits for the result in short steps."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: Optional[T] = None
        self._error: Optional[BaseException] = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gpugate-call", daemon=True)
        self._thread.start()

    def done(self, timeout_s: Optional[float] = _STEP_S) -> bool:
        return self._done.wait(timeout_s)

    def result(self) -> T:
        """Return the result of the finished call, or raise its exception."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _work(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
            self._error = error
        finally:
            self._done.set()


def in_background(
    call: Callable[[], T], interrupted: Callable[[], bool], abandon: Callable[[], None]
) -> Optional[T]:
    """Run ``call`` beside the main thread; on an interrupt ``abandon`` it and return None."""
    work = Background(call)
    while not work.done():
        if interrupted():
            abandon()
            work.done(timeout_s=None)
            return None
    return work.result()


class RunFollower:
    """Follows one run over HTTP in a thread of its own, through restarts of its gate."""

    going_on: ClassVar[str] = "the run goes on"

    def __init__(self, client: Client, run_id: str) -> None:
        self.run_id = run_id
        self._client = client
        self._closed = threading.Event()
        self._news = threading.Condition()
        self._state: Optional[State] = None
        self._error: Optional[Exception] = None
        self._cancelling: Optional[Background[None]] = None
        self._leaving: Optional[Background[bool]] = None
        #: Why the gate cannot be asked at the moment; empty when it can.
        self.trouble = ""
        #: The gate's answer to a cancel that it refused, or has not accepted yet.
        self.refused = ""
        self.not_taken = ""
        self._thread = threading.Thread(target=self._follow, name="gpugate-follow", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float = _STEP_S) -> Optional[State]:
        """Return the newest state since the last call, None when there is none in time."""
        with self._news:
            if self._state is None and self._error is None:
                self._news.wait(timeout_s)
            if self._error is not None:
                raise self._error
            state, self._state = self._state, None
            return state

    def cancel(self) -> None:
        """Ask for the cancel, again and again until the gate has taken or refused it."""
        if self._cancelling is None:
            self._cancelling = Background(self._cancel)

    def leave(self) -> bool:
        """Detach the run at the gate; return False if the run has ended before.

        If the gate cannot be reached in time, it withdraws the run when this process ends, if still
        queued then.
        """
        self._leaving = Background(self._leave)
        return not self._leaving.done(_TIME_TO_TELL_S) or self._leaving.result()

    def close(self) -> None:
        """End the threads; afterwards nothing of this wait is left."""
        self._closed.set()
        self._client.close()
        self._thread.join()
        for asking in (self._cancelling, self._leaving):
            if asking is not None:
                asking.result()

    def _ask(self, etag: Optional[str]) -> Answer:
        return self._client.run(self.run_id, wait_s=gate.POLL_S, etag=etag)

    def _ask_to_cancel(self) -> object:
        return self._client.cancel(self.run_id)

    def _ask_to_detach(self) -> object:
        return self._client.detach(self.run_id)

    def _follow(self) -> None:
        etag: Optional[str] = None
        pauses = Pauses()
        away_since: Optional[float] = None
        while not self._closed.is_set():
            try:
                answer = self._ask(etag)
            except GateUnreachable as error:
                self.trouble = str(error)
                away_since = away_since or time.monotonic()
                self._closed.wait(pauses.next())
                self._look_again(start=time.monotonic() - away_since > _GONE_S)
                continue
            except Exception as error:  # noqa: BLE001 - raised where the state is taken
                self._tell(error=error)
                return
            self.trouble, pauses, away_since = "", Pauses(), None
            etag = answer.etag
            if answer.body is not None:
                self._tell(state=answer.body)
                if answer.body.get("status") == "ended":
                    return
            self._closed.wait(_PACE_S)

    def _cancel(self) -> None:
        try:
            self._insist(self._ask_to_cancel)
        except GateError as error:
            self.refused = str(error)

    def _leave(self) -> bool:
        try:
            self._insist(self._ask_to_detach)
        except GateError as error:
            return error.status != _TOO_LATE
        return True

    def _insist(self, ask: Callable[[], object]) -> None:
        """Ask until the gate has answered; raise `GateError` where it refuses."""
        pauses = Pauses()
        while not self._closed.is_set():
            try:
                ask()
            except GateUnreachable as error:
                self.not_taken = str(error)
                self._closed.wait(pauses.next())
                continue
            except GateError:
                self.not_taken = ""
                raise
            self.not_taken = ""
            return

    def _look_again(self, *, start: bool) -> None:
        try:
            found = gate.connect(start=start, give_up=self._closed.is_set)
        except GateError as error:
            self.trouble = str(error)
            return
        self._client = found
        if self._closed.is_set():
            found.close()

    def _tell(self, state: Optional[State] = None, error: Optional[Exception] = None) -> None:
        with self._news:
            self._state, self._error = state, error
            self._news.notify_all()


class GroupFollower(RunFollower):
    """Follows a group of runs in the same way; its ``run_id`` is the id of the group."""

    going_on = "the runs go on"

    def _ask(self, etag: Optional[str]) -> Answer:
        return self._client.group(self.run_id, wait_s=gate.POLL_S, etag=etag)

    def _ask_to_cancel(self) -> object:
        return self._client.cancel_group(self.run_id)

    def _ask_to_detach(self) -> object:
        return self._client.detach_group(self.run_id)
