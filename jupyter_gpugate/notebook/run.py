"""A handle on one run: its state, its end, its output and its results."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, Optional

from jupyter_gpugate.client import discovery, results
from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.errors import GateError, GateUnreachable, RunCancelled, RunFailed
from jupyter_gpugate.client.following import RunFollower, State
from jupyter_gpugate.faces import card, words

_MESSAGE_CHARS: Final = 2000


class Explanation(str):
    """Text that a notebook shows as it is, not quoted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Run:
    """One run, by its id; it may have been submitted by another notebook of the same user."""

    def __init__(self, run_id: str, client: Optional[Client] = None) -> None:
        self.run_id = run_id
        self._client = client
        self._known: State = {}  # the last state

    def state(self) -> State:
        """Return everything that the gate knows of the run; raise `GateError` if it cannot."""
        self._known = self._asked().run(self.run_id).body or {}
        return self._known

    def status(self) -> str:
        """Return "queued", the phase of a live run ("running", ...), or how it ended."""
        state = self.state()
        word = {"active": state.get("phase"), "ended": state.get("end")}.get(state["status"])
        return str(word or state["status"])

    def wait(self, timeout_s: Optional[float] = None) -> Run:
        """Wait for the end and return this handle.

        Raises `RunFailed` with the run's traceback, `RunCancelled`, or `TimeoutError`; an interrupt
        ends the wait, not the run.
        """
        raise_for_end(self._ended(timeout_s))
        return self

    def wait_until_ready(self, timeout_s: Optional[float] = None) -> Run:
        """Wait until this service is ready and return this handle.

        Raises as `wait` if it ends before, `RunFailed` if it was stopped, and `ValueError` for a
        run that is no service.
        """
        state = self._when(lambda state: state.get("ready") is not False, "become ready", timeout_s)
        if not state.get("service"):
            raise ValueError(f"{self.run_id} is no service: submit it with --service")
        if state.get("status") == "ended":
            raise_for_end(state)
            raise RunFailed(f"{self.run_id} is not ready: it was stopped", state)
        return self

    def cancel(self) -> dict[str, Any]:
        """Stop the run for certain; says by what means and in how many milliseconds."""
        return self._asked().cancel(self.run_id)

    def output(self) -> str:
        """Return all that the run has written so far, as it was written."""
        parts: list[str] = []
        start = 0
        while True:
            piece = self._asked().output(self.run_id, start)
            if not piece["text"]:
                return "".join(parts)
            parts.append(piece["text"])
            start = piece["next"]

    def result(self, timeout_s: Optional[float] = None) -> Any:
        """Return what ``--output`` named, once the run has completed.

        One name: its value; several: a dict by name.  With more than one worker each value is a
        list by worker.  Raises as `wait` does.
        """
        state = self._ended(timeout_s)
        raise_for_end(state)
        values = results.load(state)
        return next(iter(values.values())) if len(values) == 1 else values

    def when_ended(self, callback: Callable[[Run], object]) -> None:
        """Return at once, and call ``callback`` with this handle when the run has ended.

        It is called once, in a thread of its own, also where the run has ended already and where
        the gate restarts meanwhile.  Its output, or its traceback if it fails, appears below
        the cell that made the call.
        """
        # ipykernel shows what a thread prints below the newest cell, unless its context says else.
        here = contextvars.copy_context()
        threading.Thread(
            target=here.run, args=(self._call, callback), name="gpugate-when-ended", daemon=True
        ).start()

    def values(self) -> dict[str, Any]:
        """Return the values that were handed back, by name, whatever the end of the run."""
        return results.load(self.state())

    def explain(self) -> Explanation:
        """Explain the state of the run and its reasons, with every number that was used."""
        state = self.state()
        lines = [card.text(state)]
        for reason in state.get("reasons") or ():
            lines.append(f"because {words.why(reason)}")
            numbers = (reason.get("numbers") or {}).items()
            lines += [f"    {words.number(name, value)}" for name, value in numbers]
        return Explanation("\n".join(lines))

    def follow(self) -> RunFollower:
        """Start to follow the run; the caller closes the follower."""
        return RunFollower(Client(self._asked().socket_path), self.run_id)

    def __repr__(self) -> str:
        if not self._known:
            with contextlib.suppress(GateError):
                self._client = self._client or connect(start=False)
                self.state()
        # Its name and parameters never change; its state may, so the text does not have it.
        name = " ".join(filter(None, (self._known.get("name"), words.parameters(self._known))))
        return f"<Run {self.run_id}{f' {name}' if name else ''}>"

    def _repr_mimebundle_(self, **_choice: Any) -> dict[str, str]:
        from jupyter_gpugate.notebook import live

        try:
            return live.bundle(self.state())
        except GateError as error:
            return {"text/plain": f"{self!r}: {error}"}

    def _call(self, callback: Callable[[Run], object]) -> None:
        try:
            self._ended(None)
            callback(self)
        except Exception:  # noqa: BLE001 - whatever it is, it is told and kills nothing
            traceback.print_exc()

    def _asked(self) -> Client:
        self._client = connected(self._client)
        return self._client

    def _ended(self, timeout_s: Optional[float]) -> State:
        return self._when(lambda _state: False, "ended", timeout_s)

    def _when(self, holds: Callable[[State], bool], what: str, timeout_s: Optional[float]) -> State:
        """Return the state as soon as this holds, or of the end."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        follower = self.follow()
        try:
            while deadline is None or time.monotonic() < deadline:
                state = follower.next(timeout_s=1.0)
                if state is not None and (state.get("status") == "ended" or holds(state)):
                    return state
        finally:
            follower.close()
        raise TimeoutError(f"run {self.run_id} has not {what} within {timeout_s:g} s")


def connected(client: Optional[Client]) -> Client:
    """Return the client if its gate is still there, else one of the gate that is there now."""
    if client is not None:
        try:
            discovery.dial(client.socket_path, timeout_s=2.0).close()
        except GateUnreachable:  # gone since; another one may have its place
            return connect()
        return client
    return connect()


def raise_for_end(state: Mapping[str, Any]) -> None:
    """Return if an ended run completed; else raise `RunFailed` or `RunCancelled`."""
    who = f"{state.get('name')} ({state.get('run_id')})"
    if state.get("end") == "completed":
        return
    if state.get("end") == "cancelled":
        raise RunCancelled(f"{who} was cancelled", state)
    error = state.get("error") or {}
    # An exception's words may have many lines: the first says what it is, the traceback has all.
    evalue = str(error.get("evalue") or "").strip().partition("\n")[0]
    last = [str(word) for word in (error.get("ename"), evalue) if word]
    advice = list(words.beyond_hints(state))
    said = ": ".join([f"{who} {words.ended(state)}", *last])
    raise RunFailed("; ".join([words.shortened(said, _MESSAGE_CHARS), *advice]), state)
