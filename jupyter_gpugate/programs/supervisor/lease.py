"""The messages of an attempt to the gate: may it go, it lives, it has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .attempt import Attempt
from .clock import awake_time
from .gate_link import CONFLICT, OK, Answer, GateLink
from .inbox import Inbox
from .processes import Proc
from .stop_request import Stop, StopRequest
from .workers import bytes_by_device

HOLD_FENCE_S = 600.0  # without any gate, an attempt that waits for "go" gives up
ASK_S = 0.25  # between two looks for an answer
LONGEST_BEAT_S, SHORTEST_BEAT_S = 30.0, 0.2
REFUSED_BELOW = 500  # a status from here on means: ask again


class Lease:
    """One attempt's side of the lease that the gate has granted."""

    def __init__(self, attempt: Attempt, supervisor: Proc, inbox: Inbox, stop: StopRequest) -> None:
        self._attempt = attempt
        self._supervisor = supervisor
        self._inbox = inbox
        self._stop = stop
        self._beat_at = 0.0
        self.caps: dict[str, int] = {}  # of the whole run by device, as last heard of
        #: The entries of the device mask; a gate of an earlier version names none.
        self.visible_devices: list[str] = []
        self.says_ready = False  # the gate regards the service as ready
        path, others = attempt.launch["socket"], attempt.launch.get("sockets", [])[1:]
        self._link = GateLink(path, inbox.wake, others)

    @property
    def is_busy(self) -> bool:
        """Whether a message is under way, in a thread of its own."""
        return self._link.is_busy

    def wait_for_go(self) -> dict[str, Any] | None:
        """Ask until the gate answers: None for go, else the end of an attempt that never began."""
        body = {**self._attempt.identity(), "pid": self._supervisor.pid}
        body.update(start_ticks=self._supervisor.ticks, boot_id=self._attempt.boot_id)
        give_up_at = awake_time() + HOLD_FENCE_S
        while not self._stop.is_made():
            now = awake_time()
            answer = self._link.take(now)
            if answer is not None and answer.status != 0:
                give_up_at = now + HOLD_FENCE_S
                if answer.status == OK and answer.body.get("verdict") == "go":
                    self.visible_devices = answer.body.get("visible_devices") or []
                    return None
                if answer.status < REFUSED_BELOW:
                    return self._refused(answer)
            if now >= give_up_at:
                return {"outcome": "not_started", "reason": "no gate answered"}
            self._link.ask("started", lambda: body, now)
            self._inbox.wait(ASK_S)
        return self._stop.end()

    def _refused(self, answer: Answer) -> dict[str, Any]:
        self._stop.is_fenced = answer.status in (OK, CONFLICT)
        refused = str(answer.body.get("message") or f"refused with {answer.status}")
        reason = "fenced" if self._stop.is_fenced else refused
        return {"outcome": "not_started", "reason": reason}

    def take_answer(self, now: float) -> None:
        """Take the answer to a heartbeat, which may ask for a stop or for other caps."""
        answer = self._link.take(now)
        if answer is None:
            return
        if answer.status == CONFLICT:
            self._stop.fence()
        elif answer.status == OK:
            self.caps = bytes_by_device(answer.body.get("caps")) or self.caps
            if answer.body.get("verdict") == "stop":
                self._stop.make(_stop_in(answer.body))
            self.says_ready = self.says_ready or answer.body.get("ready") is True
            next_in = answer.body.get("next_in")
            if isinstance(next_in, (int, float)) and self._beat_at > now:
                self._beat_at = now + min(LONGEST_BEAT_S, max(SHORTEST_BEAT_S, next_in))
        else:
            self._beat_at = now

    def hurry(self) -> None:
        """Make the next heartbeat due."""
        self._beat_at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether it is time for a heartbeat."""
        return now >= self._beat_at and not self._stop.is_fenced

    def beat(self, heartbeat: Callable[[], dict[str, Any]], now: float) -> None:
        """Send a heartbeat unless a message is under way."""
        if self._link.ask("heartbeat", heartbeat, now):
            self._beat_at = now + self._attempt.launch["heartbeat_s"]

    def is_end_taken(self, end: dict[str, Any], now: float) -> bool:
        """Report the end; True once the gate has taken it, or has no use for it."""
        answer = self._link.take(now)
        if answer is not None and answer.message == "finished" and answer.status in (OK, CONFLICT):
            return True
        message = {**self._attempt.identity(), "end": end}
        self._link.ask("finished", lambda: message, now)
        return False


def _stop_in(verdict: dict[str, Any]) -> Stop:
    """Read the stop that the gate asks for; a gate of a former version gives its reason."""
    with suppress(KeyError, TypeError):
        return Stop.read(verdict.get("stop") or verdict)
    return Stop.of("stopped by the gate")
