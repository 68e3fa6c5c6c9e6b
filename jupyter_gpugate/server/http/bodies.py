"""Refuses bodies that are too large, with the same form of error as elsewhere."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.web import Application

from jupyter_gpugate.server.http.wire import BODY_LIMIT_BYTES, ENVIRONMENT_LIMIT_BYTES

#: An upper limit for all calls; handlers refuse what is too large for their own call.
MOST_BODY_BYTES = 4 * (BODY_LIMIT_BYTES + ENVIRONMENT_LIMIT_BYTES)
#: How much is read and discarded before the answer: a client that still sends does not read.
MOST_DISCARDED_BYTES = 256 << 20
TOO_LARGE = f"the body is over {MOST_BODY_BYTES >> 20} MiB: stage large inputs as files"
REFUSAL = {
    "error": "too_large",
    "message": TOO_LARGE,
    "detail": {"field": "body", "limit": MOST_BODY_BYTES},
}


class BoundedApplication(Application):
    """Passes on only bodies within the limit."""

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        return _Bounded(super().start_request(server_conn, request_conn), request_conn)


class _Bounded(HTTPMessageDelegate):
    def __init__(self, inner: HTTPMessageDelegate, connection: HTTPConnection) -> None:
        self._inner = inner
        self._connection = connection
        self._size = 0

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        length = headers.get("Content-Length", "0")
        if length.isdecimal() and len(length) < 20:  # noqa: PLR2004 - any other is no length
            self._size = int(length) if int(length) > MOST_BODY_BYTES else 0
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._size += len(chunk)
        return None if self._is_too_large else self._inner.data_received(chunk)

    def finish(self) -> None:
        if not self._is_too_large:
            self._inner.finish()
            return
        self._inner.on_connection_close()
        payload = json.dumps(REFUSAL).encode()
        length = str(len(payload))
        headers = HTTPHeaders({"Content-Type": "application/json", "Content-Length": length})
        start: Any = ResponseStartLine("HTTP/1.1", 413, "Content Too Large")
        self._connection.write_headers(start, headers, payload)
        self._connection.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()

    @property
    def _is_too_large(self) -> bool:
        return self._size > MOST_BODY_BYTES
