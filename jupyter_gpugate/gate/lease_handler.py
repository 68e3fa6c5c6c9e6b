"""The base of all handlers of the lease protocol: the caller, its message, the answer."""

from __future__ import annotations

import json
from typing import Any, ClassVar, TypeVar

from tornado.web import HTTPError, RequestHandler

from jupyter_gpugate.core.codec import ProtocolError, from_json, to_json
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.messages import Message, Refusal
from jupyter_gpugate.gate.door import Door
from jupyter_gpugate.gate.journal.journal import JournalError
from jupyter_gpugate.gate.loop import GateLoop

A = TypeVar("A")
M = TypeVar("M", bound=Message[Any])


class LeaseHandler(RequestHandler):
    """Answers one kind of message; whose it is follows from the caller, not from its body."""

    message: ClassVar[type[Message[Any]]]

    def initialize(self, gate: GateLoop, door: Door) -> None:
        self.gate = gate
        self.door = door

    def prepare(self) -> None:
        self.caller = self.door.admit(self.request)

    def read(self, kind: type[M]) -> M:
        """The body as a message, or a 400 that names the field."""
        try:
            return from_json(kind, json.loads(self.request.body or b"{}"), "message")
        except ProtocolError as error:
            field = error.field.removeprefix("message.")
            raise HTTPError(400, f"{field}: {error.problem}") from None
        except (ValueError, RecursionError):
            raise HTTPError(400, "the body is not JSON") from None

    def reply(self, _message: Message[A], answer: A) -> None:
        """Answer a message with a value of the type that it asks for."""
        self.finish(to_json(answer))

    def fail(self, status: int, error: str, message: str, /, **detail: Any) -> None:
        self.set_status(status)
        self.finish(to_json(Refusal(error, message, detail)))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, JournalError):
            self.fail(503, "journal", f"the gate cannot write its journal: {error}")
            return
        message = getattr(error, "log_message", None) or self._reason
        words = {400: "bad_message", 403: "forbidden", 404: "not_found"}
        self.fail(status_code, words.get(status_code, "internal"), str(message))

    def lease(self, run_id: str, fence: int) -> RunLease | None:
        """Return the live lease of this fence; otherwise answer that the caller is fenced."""
        lease = self.gate.state.leases.get(run_id)
        if lease is None or lease.terms.fence != fence:
            newest = lease.terms.fence if lease else None
            self.fail(409, "fence", "this lease is over", fence=fence, newest=newest)
            return None
        return lease
