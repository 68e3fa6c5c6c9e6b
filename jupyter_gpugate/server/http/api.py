"""What all handlers of the user API share: who asks, what is read, how it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Hashable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ValidationError
from tornado.web import HTTPError, RequestHandler

from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.journal.journal import JournalError
from jupyter_gpugate.gate.lease_api import peer_uid
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.server.http.contract import calls_of
from jupyter_gpugate.server.http.polls import Making, Stamp, is_known
from jupyter_gpugate.server.http.wire import (
    BODY_LIMIT_BYTES,
    ENVIRONMENT_LIMIT_BYTES,
    SHOWN_CHARS,
    PollQuery,
    problem_of,
)

if TYPE_CHECKING:
    from jupyter_gpugate.gate.journal.history import History
    from jupyter_gpugate.server.feed import Feed
    from jupyter_gpugate.server.host import Host

#: A gate that takes up what is on the disk is waited for so long.
STARTING_S = 20.0


class ApiHandler(RequestHandler):
    """JSON in, JSON out; an error says what is wrong and where."""

    #: Below the API's own path; its methods are declared by `contract.call`.
    path: ClassVar[str] = ""
    #: Whether a host that ends when nobody needs it counts this as being needed.
    keeps_awake: ClassVar[bool] = True

    def initialize(self, host: Host) -> None:
        self.host = host

    @property
    def gate(self) -> GateLoop:
        if self.host.gate is None:
            raise HTTPError(503, "the gate is starting")
        return self.host.gate

    @property
    def launcher(self) -> Launcher:
        if self.host.launcher is None:
            raise HTTPError(503, "the gate is starting")
        return self.host.launcher

    @property
    def feed(self) -> Feed:
        if self.host.feed is None:
            raise HTTPError(503, "the gate is starting")
        return self.host.feed

    @property
    def history(self) -> History:
        if self.host.history is None:
            raise HTTPError(503, "the gate is starting")
        return self.host.history

    async def prepare(self) -> None:
        if self.keeps_awake:
            self.host.touched_at = awake_time()
        if peer_uid(self) not in (os.getuid(), 0):
            raise HTTPError(403, "this socket belongs to another user")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.host.led.wait(), STARTING_S)

    def fail(self, status: int, error: str, message: str, /, **detail: Any) -> None:
        self.set_status(status)
        self.finish(json.dumps({"error": error, "message": message, "detail": detail}, default=str))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, Refused):
            if error.retry_after:
                self.set_header("Retry-After", error.retry_after)
            self.fail(error.status, error.error, str(error), **error.detail)
        elif isinstance(error, JournalError):
            self.fail(503, "journal", f"the gate cannot write its journal: {error}")
        else:
            if status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                self.set_header("Allow", ", ".join(calls_of(type(self))).upper())
            words = {400: "bad_request", 403: "forbidden", 404: "not_found", 405: "bad_method"}
            message = getattr(error, "log_message", None) or self._reason
            self.fail(status_code, words.get(status_code, "internal"), str(message))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (Refused, JournalError)):
            super().log_exception(typ, value, tb)

    def data(self) -> Any:
        """The body as JSON data, neither of which is too large."""
        try:
            data = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise Refused(400, "bad_request", "the body is not JSON", field="body") from None
        self._check_sizes(data)
        return data

    def _check_sizes(self, data: Any) -> None:
        environment = data.get("environment") if isinstance(data, dict) else None
        of_environment = len(json.dumps(environment)) if environment else 0
        rest = len(self.request.body) - of_environment
        for field, what, size, limit in (
            ("environment", "the environment", of_environment, ENVIRONMENT_LIMIT_BYTES),
            ("body", "the body without its environment", rest, BODY_LIMIT_BYTES),
        ):
            if size > limit:
                problem = f"{what} is over {limit >> 10} KiB: stage large inputs as files"
                raise Refused(413, "too_large", problem, field=field, size=size, limit=limit)

    def validated(self, kind: type[BaseModel], data: Any) -> Any:
        """The body as a model, or a refusal that names the field, the value and what is allowed."""
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            field, problem, shown = problem_of(error)
            raise Refused(400, "bad_request", f"{field}: {problem}", field=field, **shown) from None

    def queried(self, kind: type[BaseModel]) -> Any:
        """The query as a model; an option that is unknown, or given twice, is refused."""
        given = {name: self.get_query_arguments(name) for name in self.request.query_arguments}
        known = [field.alias or name for name, field in kind.model_fields.items()]
        for name, values in given.items():
            if name not in known:
                allowed = f"; known here: {', '.join(known)}" if known else ""
                told = name[:SHOWN_CHARS]
                problem = f"{told}: no such option{allowed}"
                raise Refused(400, "bad_request", problem, field=told)
            if len(values) > 1:
                raise Refused(400, "bad_request", f"{name}: is given twice", field=name)
        return self.validated(kind, {name: values[0] for name, values in given.items()})

    async def polled(
        self, asked: PollQuery, make: Making, what: Hashable, stamp: Stamp = tuple
    ) -> None:
        """Answer with an ETag; with ``wait`` only once it differs from the caller's.

        It is made once for all who ask for the same in the same tick.  ``stamp`` tells what else
        than the tick it follows from.
        """
        known = asked.etag or self.request.headers.get("If-None-Match", "")
        deadline = awake_time() + asked.wait
        while True:
            version = self.gate.version
            made = await self.host.polls.answer(what, lambda: (self.gate.version, *stamp()), make)
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
