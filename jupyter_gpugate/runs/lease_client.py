"""The run side's end of the lease protocol: HTTP over the gate's unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar, cast

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.iostream import IOStream, StreamClosedError
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.messages import LEASE_PATH, Message, Refusal
from jupyter_gpugate.places import socket_address
from jupyter_gpugate.proc import peer_of

A = TypeVar("A")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0


class GateAway(Exception):
    """The gate did not answer; the same message may be sent again."""


class GateRefused(Exception):
    """The gate answered with a refusal that asking again will not change."""

    def __init__(self, status: int, refusal: Refusal, retry_after: str | None = None) -> None:
        super().__init__(refusal.message)
        self.status = status
        self.refusal = refusal
        self.retry_after = retry_after


#: Opens a connection to the gate, wherever it is at that moment.
Dial = Callable[[], Awaitable[IOStream]]


class _Line(TCPClient):
    """Connects to one fixed place."""

    def __init__(self, dial: Dial) -> None:
        super().__init__()
        self._dial = dial

    async def connect(self, *_args: Any, **options: Any) -> IOStream:
        try:
            return await asyncio.wait_for(self._dial(), options.get("timeout"))
        except asyncio.TimeoutError:
            raise ConnectionError("timed out while connecting") from None


async def dial_socket(address: str) -> IOStream:
    """Connect to a unix socket, "@" in place of the NUL before a name that the kernel keeps.

    Raises `OSError` if no process listens, or one of another user than this one or root.
    """
    line = IOStream(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        where: Any = socket_address(address)
        await line.connect(where)
        peer = peer_of(line.socket)
    except (OSError, StreamClosedError) as error:
        line.close()
        raise ConnectionError(f"{address}: {getattr(error, 'real_error', None) or error}") from None
    if not peer.is_trusted:
        line.close()
        raise PermissionError(f"{address}: another user's process listens there")
    return line


class Way(NamedTuple):
    """The ways to the gate: from this process, and the addresses for other processes."""

    dial: Dial
    addresses: Callable[[], Sequence[str]]

    @classmethod
    def by_socket(cls, path: str) -> Way:
        """The way for a gate that is at one place."""
        return cls(functools.partial(dial_socket, path), lambda: [path])


class UnixClient:
    """An HTTP client for one unix socket; a connection per request."""

    def __init__(self, path: str | Dial, lines: int = 200) -> None:
        self._client = SimpleAsyncHTTPClient(force_instance=True, max_clients=lines)
        dial = functools.partial(dial_socket, path) if isinstance(path, str) else path
        self._client.tcp_client = _Line(dial)

    async def fetch(self, path: str, **options: Any) -> HTTPResponse:
        """Send one request; raise `OSError` without an answer."""
        request = HTTPRequest(f"http://localhost{path}", connect_timeout=5, **options)
        answer = self._client.fetch(request, raise_error=False)
        # A cancelled wait must not make the client complain about a late answer.
        answer.add_done_callback(lambda late: late.cancelled() or late.exception())
        try:
            return await asyncio.shield(answer)
        except HTTPClientError as error:
            raise ConnectionError(str(error)) from None

    def close(self) -> None:
        self._client.close()


class LeaseClient:
    """Sends lease messages; `ask` once, `insist` until the gate has answered."""

    def __init__(self, path: str | Dial) -> None:
        self._client = UnixClient(path)

    async def ask(self, message: Message[A], timeout_s: float = 20.0) -> A:
        """The gate's answer; `GateAway` without one, `GateRefused` for a 4xx."""
        try:
            response = await self._client.fetch(
                f"{LEASE_PATH}/{message.name}",
                method="POST",
                body=json.dumps(to_json(message)),
                request_timeout=timeout_s,
            )
        except OSError as error:
            raise GateAway(str(error)) from None
        if response.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise GateAway(_refusal_in(response).message)
        if response.code >= HTTPStatus.BAD_REQUEST:
            retry_after = response.headers.get("Retry-After")
            raise GateRefused(response.code, _refusal_in(response), retry_after)
        return cast(A, from_json(message.answer, json.loads(response.body), "answer"))

    async def insist(self, message: Message[A]) -> A:
        """Ask again and again, with growing jittered pauses, until the gate has answered."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await self.ask(message)
            except GateAway:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause = min(2 * pause, LONGEST_PAUSE_S)

    async def tell(self, message: Message[A]) -> A | None:
        """Insist on what the gate may already know, or no longer; then there is no answer."""
        try:
            return await self.insist(message)
        except GateRefused:
            return None

    def close(self) -> None:
        self._client.close()


def _refusal_in(response: HTTPResponse) -> Refusal:
    """Read the gate's words; an answer that has none, such as tornado's own, is named by status."""
    with contextlib.suppress(ValueError, RecursionError):
        return from_json(Refusal, json.loads(response.body or b""), "answer")
    return Refusal("refused", f"status {response.code}")
