"""The run side with real supervisors, and a gate of a few lines that it talks to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.messages import Defaults, Differences, Gone, Queued
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.machine import Machine, this_machine
from tests.integration.supervisor_process import PATIENCE_S, Gate


class GateOfRuns(Gate):
    """Keeps the requests it got, and gives the grants that a test makes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.grants: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.verdicts: dict[int, tuple[int, dict[str, Any]]] = {}  # fence -> answer to started
        self.replies.update(
            defaults=(200, to_json(Defaults(gpus=0, managed=True))),
            request=(200, to_json(Queued())),
            register=(200, to_json(Differences())),
            withdraw=(200, to_json(Gone())),
            decline=(200, to_json(Gone())),
        )
        self._closed = threading.Event()

    def answer(self, message: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if message == "presence":
            self._closed.wait(0.05)  # a long poll, in short
            news = [grant for grant in self.grants if grant["fence"] not in body["known"]]
            return 200, {"grants": news, "ended": self.ended, "estimates": {}}
        status, answer = super().answer(message, body)
        return (
            self.verdicts.get(body["fence"], (status, answer))
            if message == "started"
            else (status, answer)
        )

    def grant(self, run_id: str, fence: int) -> None:
        """Let a run start its first attempt under a fence."""
        numbers: dict[str, Any] = {"devices": [], "charges": {}, "basis": {}, "caps": {}}
        identity = {"run_id": run_id, "attempt": 1, "fence": fence, "enforcement": "none"}
        self.grants.append({**identity, **numbers})

    def take_back(self, fence: int) -> None:
        """Forget a grant, as when it was not used in time."""
        self.grants = [grant for grant in self.grants if grant["fence"] != fence]


@contextlib.contextmanager
def gate_of_runs() -> Iterator[GateOfRuns]:
    """Have a gate listen in a folder of its own, where a socket's path is short."""
    with tempfile.TemporaryDirectory(prefix="gpugate-") as folder:
        gate = GateOfRuns(Path(folder) / "gate.sock")
        gate.open()
        try:
            yield gate
        finally:
            gate.close()


def run_side(socket: Path, root: Path, machine: Machine | None = None) -> Launcher:
    """Make a run side; after another one, it finds what that one has left."""
    return Launcher(
        runs=root / "runs",
        socket=socket,
        owner="ada",
        grace_s=1.0,
        root=root,
        machine=machine or this_machine(root),
        log=logging.getLogger("test"),
    )


def served(launcher: Launcher, test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's own steps between the start and the stop of a run side."""

    async def serve() -> None:
        await launcher.start()
        try:
            await test()
        finally:
            await launcher.stop()
            # Its last question is still open, until the gate has answered.
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "the last answer")

    asyncio.run(serve())


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, and let the run side go on meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.01)
    return found


def program(code: str, **fields: Any) -> dict[str, Any]:
    """A body as the API has validated it: a program, that tells its run by its environment."""
    environment = {"PATH": os.environ["PATH"]}
    numbers = {"workers": 1, "episodes": 1, "class": "normal"}
    argv = ["python3", "-c", code]
    return {"name": "test", "argv": argv, "environment": environment, **numbers, **fields}
