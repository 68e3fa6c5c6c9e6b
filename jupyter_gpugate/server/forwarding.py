"""Handlers of a Jupyter server: they authenticate, authorise, and pass requests to the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http.client import responses
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.auth.decorator import authorized as _untyped_authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web
from tornado.httpclient import HTTPClientError, HTTPResponse

from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.server.http.bodies import MOST_BODY_BYTES, TOO_LARGE

PASSED_ON = ("Content-Type", "If-None-Match", "Prefer")
#: A browser's query parameters for its server, which are not for the gate.
OF_THE_BROWSER = ("token", "_xsrf", "no_track_activity")
PASSED_BACK = (
    "Content-Type",
    "ETag",
    "Retry-After",
    "Cache-Control",
    "Allow",
    "Preference-Applied",
)
WITH_BODY = ("POST", "PUT", "PATCH")
#: Characters that quoting must keep in a path that is quoted already.
UNTOUCHED = "%/:@!$&'()*+,;=~"
SCRIPT = Path(__file__).parent / "static" / "live.js"

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Forward(Protocol):
    """Passes a request on to the gate; raises `OSError` if none answers."""

    async def __call__(
        self, target: str, *, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> HTTPResponse:
        """The gate's answer."""


def _authorized(action: str) -> Callable[[_Method], _Method]:
    """`authorized` for this extension's resource, with the type of what it decorates kept."""
    decorate: Callable[[_Method], _Method] = _untyped_authorized(action, resource="gpugate")
    return decorate


class GuardedHandler(ExtensionHandlerMixin, APIHandler):
    """Authorize every method, supported or not."""

    auth_resource = "gpugate"

    async def respond(self) -> None:
        """Answer an authorised request."""
        raise NotImplementedError

    @web.authenticated
    @_authorized("read")
    async def get(self, *_path: str) -> None:
        await self.respond()

    @web.authenticated
    @_authorized("read")
    async def head(self, *_path: str) -> None:
        await self.respond()

    @web.authenticated
    @_authorized("execute")
    async def post(self, *_path: str) -> None:
        await self.respond()

    @web.authenticated
    @_authorized("write")
    async def delete(self, *_path: str) -> None:
        await self.respond()

    @web.authenticated
    @_authorized("write")
    async def put(self, *_path: str) -> None:
        await self.respond()

    @web.authenticated
    @_authorized("write")
    async def patch(self, *_path: str) -> None:
        await self.respond()

    @allow_unauthenticated
    async def options(self, *path: str) -> None:  # type: ignore[override]
        """Answer a browser's preflight request; treat others like any other method."""
        if "Access-Control-Request-Method" in self.request.headers:
            super().options(*path)
        elif (answered := self.head()) is not None:
            await answered

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Give the server's own errors the form of the gate's errors."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        words = {400: "bad_request", 404: "not_found", 405: "bad_method"}
        word = "forbidden" if status_code in (401, 403) else words.get(status_code, "internal")
        message = getattr(error, "log_message", None) or responses.get(status_code, "")
        self.fail(status_code, word, str(message))

    def fail(self, status: int, error: str, message: str, **detail: Any) -> None:
        self.set_status(status)
        self.finish({"error": error, "message": message, "detail": detail})


class ForwardHandler(GuardedHandler):
    """Everything under the API."""

    def initialize(self, name: str, forward: Forward) -> None:
        super().initialize(name)
        self.forward = forward

    async def respond(self) -> None:
        if self._is_no_json():
            self.fail(415, "bad_media_type", "the body must be application/json")
            return
        if len(self.request.body) > MOST_BODY_BYTES:
            self.fail(413, "too_large", TOO_LARGE, field="body", limit=MOST_BODY_BYTES)
            return
        headers = {k: self.request.headers[k] for k in PASSED_ON if k in self.request.headers}
        try:
            response = await self.forward(
                self._target(),
                method=self.request.method or "GET",
                headers=headers,
                body=self.request.body if self.request.method in WITH_BODY else None,
            )
        except (OSError, HTTPClientError, asyncio.TimeoutError) as error:
            self.fail(503, "gate_away", f"the gate does not answer: {error}")
            return
        self.set_status(response.code)
        for name in PASSED_BACK:
            if name in response.headers:
                self.set_header(name, response.headers[name])
        self.finish(response.body or None)

    def _is_no_json(self) -> bool:
        """Return whether a body may be from a form of another site: with a cookie, not JSON."""
        given = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        is_json = given == "application/json"
        return bool(self.request.body) and not self.token_authenticated and not is_json

    def _target(self) -> str:
        """Return the path and the query as sent, without the browser's own parameters."""
        path = quote(self.request.path.partition(f"{API_PATH}/")[2], safe=UNTOUCHED)
        asked = parse_qsl(self.request.query, keep_blank_values=True)
        query = urlencode([(k, v) for k, v in asked if not _is_of_the_browser(k, v)])
        return f"{API_PATH}/{path}" + (f"?{query}" if query else "")


def _is_of_the_browser(name: str, value: str) -> bool:
    """Return whether a parameter is a token, or the bare time that a front end adds."""
    return name in OF_THE_BROWSER or (name.isdecimal() and not value)


class ScriptHandler(GuardedHandler):
    """The script that keeps cards and panels live."""

    async def respond(self) -> None:
        if self.request.method != "GET":
            self.set_header("Allow", "GET")
            self.fail(405, "bad_method", responses[405])
            return
        script = await asyncio.to_thread(SCRIPT.read_bytes)
        self.finish(script, set_content_type="text/javascript; charset=utf-8")


def routes(forward: Forward) -> list[tuple[str, type[GuardedHandler], dict[str, object]]]:
    """The routes of a Jupyter server."""
    return [
        (rf"{API_PATH}/(.*)", ForwardHandler, {"forward": forward}),
        (r"/gpugate/static/live\.js", ScriptHandler, {}),
    ]
