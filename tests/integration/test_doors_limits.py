"""Callers that keep a gate waiting are disconnected."""

from __future__ import annotations

import asyncio
import http.client
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, ResponseStartLine

from jupyter_gpugate.client import discovery
from jupyter_gpugate.server import doors
from tests.integration.gate_processes import Gate, Starts, state, submitted
from tests.kit.real_server import PATIENCE_S, Places, until


@pytest.fixture
def start(places: Places) -> Iterator[Starts]:
    """Start gates of one user."""
    started: list[Gate] = []

    def begin(*before: str, **environ: str) -> Gate:
        started.append(Gate(places, *before, **environ))
        return started[-1]

    yield begin
    for gate in started:
        gate.process.kill()
        gate.process.wait()


# -- too many callers -----------------------------------------------------------------------------

HALVES: Sequence[bytes] = (
    b"",
    b"POST /gpugate/api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Le",
    b"POST /gpugate/api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
)


def test_half_requests_keep_nobody_out(start: Starts) -> None:
    """More callers that never finish than there are descriptors: others are answered, those that
    wait in earnest go on waiting, and the log stays short.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < 600:
        pytest.skip("the test itself needs more descriptors")
    gate = start("prlimit", "--nofile=256:256")
    client = gate.client()
    run_id = submitted(client, "import time; time.sleep(600)")
    until(lambda: state(client, run_id).get("phase") == "running", "it runs")
    callers: list[socket.socket] = []
    with discovery.dial(client.socket_path, PATIENCE_S) as earnest:
        waiting = http.client.HTTPConnection("localhost")
        waiting.sock = earnest
        waiting.request("GET", "/gpugate/api/v1/runs?status=active")
        assert waiting.getresponse().read()
        etag = client.run(run_id).etag
        waiting.request("GET", f"/gpugate/api/v1/runs/{run_id}?wait=60&etag={etag}")
        try:
            for number in range(400):
                callers.append(socket.socket(socket.AF_UNIX))
                callers[-1].settimeout(PATIENCE_S)
                callers[-1].connect(str(client.socket_path))
                with suppress(OSError):  # the gate has let go of it already
                    callers[-1].sendall(HALVES[number % 3])
            first = client.queue()["tick"]
            until(lambda: client.queue()["tick"] > first + 1, "the gate goes on ticking")
            assert not client.queue()["running"][0]["overdue"]
            client.cancel(run_id)
            assert waiting.getresponse().status in (200, 304)
        finally:
            for caller in callers:
                caller.close()
    assert len(gate.said()) < 10_000


def test_a_request_that_never_ends_is_let_go(
    monkeypatch: pytest.MonkeyPatch, places: Places
) -> None:
    """Neither for a head nor for a body is a caller waited for without end; one who waits for an
    answer is left in peace.
    """
    monkeypatch.setattr(doors, "HEAD_S", 0.5)
    monkeypatch.setattr(doors, "BODY_S", 0.5)

    async def patient(request: HTTPServerRequest) -> None:
        await asyncio.sleep(2.0)
        line = cast(Any, request.connection)
        head = ResponseStartLine("", 200, "OK")
        await line.write_headers(head, HTTPHeaders({"Content-Length": "0"}))
        line.finish()

    async def body() -> None:
        answers: list[asyncio.Task[None]] = []
        places.socket.parent.mkdir(mode=0o700)
        server = doors.GateServer(lambda r: answers.append(asyncio.create_task(patient(r))))
        own = doors.Doors(server, places.socket, "0" * 64)
        own.open(None)
        lines = [await asyncio.open_unix_connection(str(places.socket)) for _ in range(4)]
        for (_, writer), half in zip(lines, (*HALVES, b"GET / HTTP/1.0\r\n\r\n"), strict=True):
            writer.write(half)
        heard = [await asyncio.wait_for(reader.read(), PATIENCE_S) for reader, _ in lines]
        assert heard[:3] == [b"", b"", b""]
        assert heard[3].startswith(b"HTTP/1.1 200 OK")
        for _, writer in lines:
            writer.close()
        own.close()

    asyncio.run(body())
