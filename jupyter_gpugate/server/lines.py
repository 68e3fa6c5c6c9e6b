"""Connections from a server to its user's gate; long polls do not delay other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qs

from tornado.httpclient import HTTPResponse

from jupyter_gpugate.runs.lease_client import Dial, UnixClient

#: Longer than any long poll.
FORWARD_TIMEOUT_S = 120.0
#: Each line takes a file descriptor here and another one at the gate.
LOOKING_LINES = 300


class Lines:
    """Passes requests on; equal long polls share a connection, separate from other requests."""

    def __init__(self, dial: Dial) -> None:
        self._acting = UnixClient(dial)
        self._looking = UnixClient(dial, lines=LOOKING_LINES)
        self._looks: dict[tuple[str, ...], asyncio.Task[HTTPResponse]] = {}

    async def fetch(
        self, target: str, *, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> HTTPResponse:
        """Return the gate's answer; raise `OSError` if there is none."""
        if method == "GET" and _waits(target):
            return await self._look(target, headers)
        return await self._acting.fetch(
            target, method=method, headers=headers, body=body, request_timeout=FORWARD_TIMEOUT_S
        )

    async def _look(self, target: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Return an answer that is shared by all callers with the same question."""
        key = (target, *(f"{name}: {value}" for name, value in sorted(headers.items())))
        look = self._looks.get(key)
        if look is None:
            asked = self._looking.fetch(
                target, method="GET", headers=headers, request_timeout=FORWARD_TIMEOUT_S
            )
            look = self._looks[key] = asyncio.ensure_future(asked)
            look.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(look)

    def _answered(self, key: tuple[str, ...], look: asyncio.Task[HTTPResponse]) -> None:
        self._looks.pop(key, None)
        if not look.cancelled():
            look.exception()  # every caller may have disconnected

    def close(self) -> None:
        self._acting.close()
        self._looking.close()


def _waits(target: str) -> bool:
    _, _, query = target.partition("?")
    return parse_qs(query).get("wait", ["0"])[0].strip("0.") != ""
