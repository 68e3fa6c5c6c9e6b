"""Every sender of lease messages against the gate that reads them, the supervisor included."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.messages import MESSAGES, Message, Refusal
from jupyter_gpugate.gate.lease_handler import LeaseHandler
from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.runs import attempts
from jupyter_gpugate.runs.lease_client import UnixClient
from jupyter_gpugate.server.host import Host, HostSettings

#: The limit is for broken code only.
PATIENCE_S = 120.0
RUN_SIDE = {"request", "defaults", "presence", "register", "withdraw", "decline", "finished"}
SUPERVISOR = {"started", "heartbeat", "finished"}


class Exchanges:
    """All messages that the gate has read, by their senders, and its answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: set[tuple[str, str]] = set()
        self.answers: list[tuple[Message[Any], object]] = []
        self.refused: list[str] = []
        read, reply, fail = LeaseHandler.read, LeaseHandler.reply, LeaseHandler.fail

        def noted(handler: LeaseHandler, kind: Any) -> Any:
            message = read(handler, kind)
            sender = "run side" if "User-Agent" in handler.request.headers else "supervisor"
            self.read.add((sender, kind.name))
            return message

        def answered(handler: LeaseHandler, message: Message[Any], answer: Any) -> None:
            self.answers.append((message, answer))
            reply(handler, message, answer)

        def failed(handler: LeaseHandler, status: int, *args: Any, **detail: Any) -> None:
            if status < 500:  # a gate that stops ends open questions with an error of its own
                self.refused.append(f"{status} {args}")
            fail(handler, status, *args, **detail)

        monkeypatch.setattr(LeaseHandler, "read", noted)
        monkeypatch.setattr(LeaseHandler, "reply", answered)
        monkeypatch.setattr(LeaseHandler, "fail", failed)


class Api:
    """Calls of the user API."""

    def __init__(self, client: UnixClient) -> None:
        self._client = client

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body or {}) if method == "POST" else None
        answer = await self._client.fetch(
            API_PATH + path, method=method, body=data, request_timeout=PATIENCE_S
        )
        assert answer.code < 300, answer.body
        return json.loads(answer.body)

    async def submit(self, code: str) -> str:
        body = {"name": "told", "argv": ["python3", "-c", code], "detach": True}
        run_id: str = (await self.ask("POST", "/runs", body))["run_id"]
        return run_id

    async def ended(self, run_id: str) -> str:
        """Wait for the end of a run: how it ended."""
        told = await self.ask("GET", f"/runs/{run_id}")
        while told["status"] != "ended":
            await self.ask("GET", "/queue?wait=1")
            told = await self.ask("GET", f"/runs/{run_id}")
        return str(told["end"])


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Callable[[Callable[[Api], Awaitable[None]]], None]]:
    """Run a coroutine beside a gate and a run side of its own."""
    runtime = Path(tempfile.mkdtemp(prefix="gg-"))  # a socket's path is short

    async def serve(body: Callable[[Api], Awaitable[None]]) -> None:
        host = Host(
            HostSettings(
                runs=tmp_path / "runs", socket=runtime / "s", state=tmp_path / "state",
                root=tmp_path,
            )
        )  # fmt: skip
        client = UnixClient(str(runtime / "s"))
        await host.start()
        try:
            await asyncio.wait_for(body(Api(client)), PATIENCE_S)
        finally:
            await host.stop(successor=False)
            client.close()

    yield lambda body: asyncio.run(serve(body))
    shutil.rmtree(runtime, ignore_errors=True)


def test_the_gate_reads_every_message_of_every_sender(
    beside: Callable[[Callable[[Api], Awaitable[None]]], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A run that completes, one that is taken back and one that cannot be started: run side and
    supervisor send each of their messages, and the gate refuses none.
    """
    exchanges = Exchanges(monkeypatch)
    release = tmp_path / "release"
    code = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.01)"

    async def body(api: Api) -> None:
        completes = await api.submit(code)
        while ("supervisor", "heartbeat") not in exchanges.read:
            await api.ask("GET", "/queue?wait=1")
        release.touch()
        assert await api.ended(completes) == "completed"
        await api.ask("POST", "/drain")
        taken_back = await api.submit("pass")
        await api.ask("POST", f"/runs/{taken_back}/cancel")
        assert await api.ended(taken_back) == "cancelled"
        await api.ask("DELETE", "/drain")
        monkeypatch.setattr(attempts, "begin", cannot_begin)
        assert await api.ended(await api.submit("pass")) == "failed"

    beside(body)
    assert {name for sender, name in exchanges.read if sender == "run side"} == RUN_SIDE
    assert {name for sender, name in exchanges.read if sender == "supervisor"} == SUPERVISOR
    assert exchanges.refused == []
    assert {message.name for message, _ in exchanges.answers} == {kind.name for kind in MESSAGES}
    for message, answer in exchanges.answers:
        assert type(answer) is message.answer
        assert from_json(message.answer, json.loads(json.dumps(to_json(answer)))) == answer


async def cannot_begin(*_: object) -> None:
    """Stand in for the start of a supervisor on a machine that allows none."""
    raise PermissionError(13, "no supervisor may start")


def test_a_refusal_has_one_form() -> None:
    """A program finds the code, the words and the numbers of a refusal under the same names."""
    refusal = Refusal("fence", "this lease is over", {"fence": 7, "newest": None})
    assert to_json(refusal) == {
        "error": "fence",
        "message": "this lease is over",
        "detail": {"fence": 7, "newest": None},
    }
    assert from_json(Refusal, to_json(refusal)) == refusal
