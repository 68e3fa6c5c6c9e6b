"""The base of all handlers of the user API: the caller, the request and the form of answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Hashable
from http import HTTPStatus
from typing import Any, ClassVar

from tornado.web import HTTPError, RequestHandler

from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.port import Gate, Rejected, Unrecorded
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.reading import stamp_of
from jupyter_gpugate.runs.record import Records, Refused
from jupyter_gpugate.server.feed import Feed
from jupyter_gpugate.server.http.contract import calls_of
from jupyter_gpugate.server.http.encode import encode
from jupyter_gpugate.server.http.polls import Making, Stamp, is_known
from jupyter_gpugate.server.http.services import Backend, Services
from jupyter_gpugate.server.http.wire import PollQuery

#: A gate that takes up what is on the disk is waited for so long.
STARTING_S = 20.0
#: The status of an order that the gate rejects.
REJECTED = {"bad_request": 400, "state": 409}


class ApiHandler(RequestHandler):
    """A handler that reads and writes JSON; an error names the problem and the field."""

    #: Below the API's own path; its methods are declared by `contract.call`.
    path: ClassVar[str] = ""
    #: Whether this counts as use, for a host that ends when unused.
    keeps_awake: ClassVar[bool] = True

    def set_default_headers(self) -> None:
        self.set_header("Content-Type", "application/json; charset=UTF-8")

    def initialize(self, services: Services) -> None:
        self.services = services

    @property
    def gate(self) -> Gate:
        return self._backend.gate.for_caller(self.caller)

    @property
    def launcher(self) -> Launcher:
        return self._backend.launcher

    @property
    def records(self) -> Records:
        return self.launcher.records

    def stamp_of(self, run_id: str) -> tuple[Any, ...]:
        """Return a stamp that changes whenever anything that is reported of a run changes."""
        record = self.records.known(run_id)
        return *stamp_of(record), self.launcher.waited_for.has(record)

    @property
    def feed(self) -> Feed:
        return self._backend.feed

    @property
    def _backend(self) -> Backend:
        if self.services.backend is None:
            raise HTTPError(503, "the gate is starting")
        return self.services.backend

    async def prepare(self) -> None:
        if self.keeps_awake:
            self.services.used_at = awake_time()
        self.caller = self.services.admit(self.request)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.services.ready.wait(), STARTING_S)

    def fail(self, status: int, error: str, message: str, /, **detail: Any) -> None:
        self.set_status(status)
        self.finish(json.dumps({"error": error, "message": message, "detail": detail}, default=str))

    def answer(self, value: Any) -> None:
        """Answer with a value, such as a dataclass of `answers`."""
        self.finish(encode(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, Refused):
            if error.retry_after:
                self.set_header("Retry-After", error.retry_after)
            self.fail(error.status, error.error, str(error), **error.detail)
        elif isinstance(error, Rejected):
            self.fail(REJECTED[error.error], error.error, str(error), **error.detail)
        elif isinstance(error, Unrecorded):
            self.fail(503, "journal", f"the gate cannot write its journal: {error}")
        else:
            if status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                self.set_header("Allow", ", ".join(calls_of(type(self))).upper())
            words = {400: "bad_request", 403: "forbidden", 404: "not_found", 405: "bad_method"}
            message = getattr(error, "log_message", None) or self._reason
            self.fail(status_code, words.get(status_code, "internal"), str(message))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (Refused, Rejected, Unrecorded)):
            super().log_exception(typ, value, tb)

    async def polled(
        self, asked: PollQuery, make: Making, what: Hashable, stamp: Stamp = tuple
    ) -> None:
        """Answer with an ETag; with ``wait`` only once it differs from the caller's.

        It is made once for equal requests in the same tick.  ``stamp`` returns any other state
        on which it depends.
        """
        known = asked.etag or self.request.headers.get("If-None-Match", "")
        deadline = awake_time() + asked.wait
        while True:
            version = self.gate.version
            made = await self.services.polls.answer(
                (self.caller.name, what), lambda: (self.gate.version, *stamp()), make
            )
            same, left = is_known(made.etag, known), deadline - awake_time()
            if not same or left <= 0 or self._is_gone():
                break
            await self.gate.changed(version, left)
        self.set_header("ETag", made.etag)
        self.set_header("Content-Type", "application/json")
        if same:
            self.set_status(304)
            self.finish()
        else:
            self.finish(made.payload)

    def _is_gone(self) -> bool:
        """Return whether the client has disconnected."""
        stream = getattr(self.request.connection, "stream", None)
        return stream is not None and stream.closed()
