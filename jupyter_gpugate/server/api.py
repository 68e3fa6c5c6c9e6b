"""What all handlers of the user API share: who asks, what is read, how it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ValidationError
from tornado.web import HTTPError, RequestHandler

from jupyter_gpugate.gate.clock import boot_time
from jupyter_gpugate.gate.journal import JournalError
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.socket import peer_uid
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.server.wire import problem_of

if TYPE_CHECKING:
    from jupyter_gpugate.server.host import Host

LONGEST_POLL_S = 60.0
#: A gate that takes up what is on the disk is waited for so long.
STARTING_S = 20.0


class ApiHandler(RequestHandler):
    """JSON in, JSON out; an error says what is wrong and where."""

    #: The names that a query may have here.
    query: ClassVar[tuple[str, ...]] = ()

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

    async def prepare(self) -> None:
        self.host.touched_at = boot_time()
        if peer_uid(self) not in (os.getuid(), 0):
            raise HTTPError(403, "this socket belongs to another user")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.host.led.wait(), STARTING_S)
        unknown = sorted(set(self.request.query_arguments) - set(self.query))
        if unknown:
            allowed = f"; known here: {', '.join(self.query)}" if self.query else ""
            raise Refused(
                400, "bad_request", f"{unknown[0]}: no such option{allowed}", field=unknown[0]
            )

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
            words = {400: "bad_request", 403: "forbidden", 404: "not_found", 405: "bad_method"}
            message = getattr(error, "log_message", None) or self._reason
            self.fail(status_code, words.get(status_code, "internal"), str(message))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (Refused, JournalError)):
            super().log_exception(typ, value, tb)

    def data(self) -> Any:
        """The body as JSON data."""
        try:
            return json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise Refused(400, "bad_request", "the body is not JSON", field="body") from None

    def validated(self, kind: type[BaseModel], data: Any) -> Any:
        """The body as a model, or a refusal that names the field, the value and what is allowed."""
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            field, problem, value = problem_of(error)
            shown = repr(value)[:100]
            raise Refused(
                400, "bad_request", f"{field}: {problem}", field=field, value=shown
            ) from None

    def flag(self, name: str) -> bool:
        return self.get_query_argument(name, "") not in ("", "0", "false")

    def number(self, name: str, default: float, most: float) -> float:
        """A number of the query, within 0 and ``most``."""
        text = self.get_query_argument(name, "") or str(default)
        try:
            value = float(text)
        except ValueError:
            raise Refused(
                400, "bad_request", f"{name}: {text!r} is no number", field=name
            ) from None
        if not 0 <= value <= most:
            raise Refused(400, "bad_request", f"{name}: must be from 0 to {most:g}", field=name)
        return value

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query, from ``least`` to ``most``."""
        text = self.get_query_argument(name, "") or str(default)
        if not text.isdecimal() or not least <= int(text) <= most:
            problem = f"{name}: must be a whole number from {least} to {most}"
            raise Refused(400, "bad_request", problem, field=name, value=text)
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some words, the first where none is given."""
        word = self.get_query_argument(name, "") or choices[0]
        if word not in choices:
            problem = f"{name}: must be one of {', '.join(filter(None, choices))}"
            raise Refused(400, "bad_request", problem, field=name, value=word)
        return word

    async def polled(self, make: Callable[[], tuple[Any, Any]]) -> None:
        """Answer with an ETag; with ``wait`` only once it differs from the caller's."""
        known = self.get_query_argument("etag", "") or self.request.headers.get("If-None-Match", "")
        deadline = boot_time() + self.number("wait", 0, LONGEST_POLL_S)
        while True:
            version = self.gate.version
            answer, essence = make()
            etag = tag_of(essence)
            left = deadline - boot_time()
            if etag != known or left <= 0:
                break
            await self.gate.changed(version, left)
        self.set_header("ETag", etag)
        self.set_header("Content-Type", "application/json")
        if etag == known:
            self.set_status(304)
            self.finish()
        else:
            self.finish(json.dumps(answer))


def tag_of(essence: Any) -> str:
    """An ETag of whatever counts as the answer's content."""
    digest = hashlib.blake2b(json.dumps(essence, sort_keys=True).encode(), digest_size=12)
    return f'"{digest.hexdigest()}"'
