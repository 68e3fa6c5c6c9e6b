"""Every sender of lease messages against the gate that reads them, the supervisor included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.messages import MESSAGES, Message, Refusal
from jupyter_gpugate.gate.lease_handler import LeaseHandler
from jupyter_gpugate.runs import attempts
from tests.integration.hosted import Hosted, Hosting

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


async def submitted(hosted: Hosted, code: str) -> str:
    """Submit a program that nobody waits for: its id."""
    body = {"name": "told", "argv": ["python3", "-c", code], "detach": True}
    run_id: str = (await hosted.ask("POST", "/runs", body))[1]["run_id"]
    return run_id


async def end_of(hosted: Hosted, run_id: str) -> str:
    """Wait for the end of a run: how it ended."""
    while (told := (await hosted.ask("GET", f"/runs/{run_id}"))[1])["status"] != "ended":
        await hosted.gate.changed(hosted.gate.version, 1)
    return str(told["end"])


def test_the_gate_reads_every_message_of_every_sender(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that completes, one that is taken back and one that cannot be started: run side and
    supervisor send each of their messages, and the gate refuses none.
    """
    exchanges = Exchanges(monkeypatch)
    release = tmp_path / "release"
    code = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.01)"

    async def body(hosted: Hosted) -> None:
        completes = await submitted(hosted, code)
        while ("supervisor", "heartbeat") not in exchanges.read:
            await hosted.gate.changed(hosted.gate.version, 1)
        release.touch()
        assert await end_of(hosted, completes) == "completed"
        await hosted.ask("POST", "/drain")
        taken_back = await submitted(hosted, "pass")
        await hosted.ask("POST", f"/runs/{taken_back}/cancel")
        assert await end_of(hosted, taken_back) == "cancelled"
        await hosted.ask("DELETE", "/drain")
        monkeypatch.setattr(attempts, "begin", cannot_begin)
        assert await end_of(hosted, await submitted(hosted, "pass")) == "failed"

    hosting(body)
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
