"""A handle on one run: what it does now, its end, its output and its results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Optional

from jupyter_gpugate.faces import card, words
from jupyter_gpugate.notebook import results
from jupyter_gpugate.notebook.client import Client, connect
from jupyter_gpugate.notebook.errors import GateError, RunCancelled, RunFailed
from jupyter_gpugate.notebook.waiting import Follower, State


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

    def state(self) -> State:
        """Return everything that the gate knows of the run; raise `GateError` if it cannot."""
        return self._asked().run(self.run_id).body or {}

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

    def explain(self) -> Explanation:
        """Say where the run stands and why, with every number that was used."""
        state = self.state()
        lines = [card.text(state)]
        for reason in state.get("reasons") or ():
            lines.append(f"because {words.why(reason)}")
            numbers = (reason.get("numbers") or {}).items()
            lines += [f"    {words.number(name, value)}" for name, value in numbers]
        return Explanation("\n".join(lines))

    def follow(self) -> Follower:
        """Start to follow the run; whoever asks for it closes it."""
        return Follower(Client(self._asked().socket_path), self.run_id)

    def __repr__(self) -> str:
        return f"<Run {self.run_id}>"

    def _repr_mimebundle_(self, **_choice: Any) -> dict[str, str]:
        try:
            return card.bundle(self.state())
        except GateError as error:
            return {"text/plain": f"{self!r}: {error}"}

    def _asked(self) -> Client:
        if self._client is None:
            self._client = connect()
        return self._client

    def _ended(self, timeout_s: Optional[float]) -> State:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        follower = self.follow()
        try:
            while deadline is None or time.monotonic() < deadline:
                state = follower.next(timeout_s=1.0)
                if state is not None and state.get("status") == "ended":
                    return state
        finally:
            follower.close()
        raise TimeoutError(f"run {self.run_id} has not ended within {timeout_s:g} s")


def raise_for_end(state: Mapping[str, Any]) -> None:
    """Return if an ended run completed; else raise `RunFailed` or `RunCancelled`."""
    who = f"{state.get('name')} ({state.get('run_id')})"
    if state.get("end") == "completed":
        return
    if state.get("end") == "cancelled":
        raise RunCancelled(f"{who} was cancelled", state)
    error = state.get("error") or {}
    last = f": {error.get('ename')}: {error.get('evalue')}" if error.get("ename") else ""
    raise RunFailed(f"{who} {words.ended(state)}{last}", state)
