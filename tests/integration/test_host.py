"""A host in this process, its socket and its journal: what is answered only once it is on disk."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.model import GB
from jupyter_gpugate.core.protocol import API_PATH, to_json
from jupyter_gpugate.gate import failpoints
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.runs.lease_client import GateAway, GateRefused, LeaseClient, UnixClient
from jupyter_gpugate.server.host import Host, HostSettings
from tests.states import request

FULL = "store.write.before:enospc"


class Hosted:
    """A host that leads, and clients of its socket."""

    def __init__(self, host: Host, socket: Path) -> None:
        self.host = host
        self.lease = LeaseClient(str(socket))
        self.api = UnixClient(str(socket))

    @property
    def gate(self) -> GateLoop:
        assert self.host.gate is not None
        return self.host.gate

    async def granted(self, run_id: str) -> int:
        """Ask for a run as another run side would; the fence of its grant."""
        asked = to_json(request(run_id, vram=None, ram=GB, gpus=0))
        await self.lease.ask("request", {"request": asked, "run_side": "another"})
        present = {"run_side": "another", "run_ids": [run_id], "known": []}
        while not (news := await self.lease.ask("presence", present, 60))["grants"]:
            pass
        fence: int = news["grants"][0]["fence"]
        return fence

    async def started(self, run_id: str, fence: int, pid: int) -> str:
        """Ask to go, as the supervisor with this pid: "go", or why not."""
        told = {"run_id": run_id, "fence": fence, "pid": pid, "start_ticks": pid, "boot_id": ""}
        try:
            verdict: str = (await self.lease.ask("started", told))["verdict"]
        except GateRefused as error:
            return f"refused {error.status}"
        except GateAway:
            return "away"
        return verdict

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One call of the API: its status and its answer."""
        data = json.dumps(body or {}) if method == "POST" else None
        answer = await self.api.fetch(API_PATH + path, method=method, body=data)
        return answer.code, json.loads(answer.body or b"{}")


@pytest.fixture
def hosting(tmp_path: Path) -> Iterator[Callable[[Callable[[Hosted], Awaitable[None]]], None]]:
    """Run a coroutine beside a host of its own."""
    runtime = Path(tempfile.mkdtemp(prefix="gg-"))  # a socket's path is short

    async def beside(body: Callable[[Hosted], Awaitable[None]]) -> None:
        settings = HostSettings(
            runs=tmp_path / "runs", socket=runtime / "s", state=tmp_path / "state", root=tmp_path
        )
        host = Host(settings)
        await host.start()
        hosted = Hosted(host, settings.socket)
        try:
            await body(hosted)
        finally:
            failpoints.arm("")
            await host.stop(successor=False)
            hosted.lease.close()
            hosted.api.close()

    yield lambda body: asyncio.run(beside(body))
    failpoints.arm("")
    shutil.rmtree(runtime, ignore_errors=True)


Hosting = Callable[[Callable[[Hosted], Awaitable[None]]], None]


@pytest.mark.behaviour(123)
def test_of_many_that_ask_to_go_at_once_one_goes(hosting: Hosting) -> None:
    """Two supervisors of one fence never both get "go", and whoever got it gets it again."""

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("one")
        asked = (hosted.started("one", fence, pid) for pid in range(100, 108))
        verdicts = await asyncio.gather(*asked)
        assert sorted(verdicts) == ["go"] + 7 * ["refused 409"]
        again = await hosted.started("one", fence, 100 + verdicts.index("go"))
        assert again == "go"

    hosting(body)


def test_a_start_that_cannot_be_written_down_is_none(hosting: Hosting) -> None:
    """While the journal is full nobody goes; with room again the same question is answered."""

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("one")
        failpoints.arm(FULL)
        assert await hosted.started("one", fence, 100) == "away"
        assert hosted.gate.state.leases["one"].phase.value == "granted"
        failpoints.arm("")
        assert await hosted.started("one", fence, 100) == "go"

    hosting(body)


def test_what_cannot_be_written_down_is_not_done(hosting: Hosting) -> None:
    """A lock, a drain, its end and a forgotten name are a 503 while the journal is full, and none
    is in force; a lock that is given back is given back.
    """

    async def body(hosted: Hosted) -> None:
        assert (await hosted.ask("POST", "/lock"))[0] == 200
        assert (await hosted.ask("POST", "/drain", {"reason": "first"}))[0] == 200
        failpoints.arm(FULL)
        for method, path in (
            ("POST", "/drain"),
            ("DELETE", "/drain"),
            ("POST", "/lock"),
            ("DELETE", "/calibrations?name=x"),
        ):
            status, answer = await hosted.ask(method, path)
            assert (status, answer["error"]) == (503, "journal"), (method, path)
        assert hosted.gate.state.draining == "first"
        assert (await hosted.ask("DELETE", "/lock"))[0] == 200
        assert not hosted.gate.state.locks
        assert (await hosted.ask("POST", "/lock"))[0] == 503
        assert not hosted.gate.state.locks
        failpoints.arm("")
        assert (await hosted.ask("POST", "/lock"))[0] == 200
        assert (await hosted.ask("DELETE", "/drain"))[0] == 200
        assert hosted.gate.state.draining is None

    hosting(body)


def test_a_listener_that_fails_harms_nobody(hosting: Hosting) -> None:
    """What listens to the ticks may raise; the gate goes on, and so do the other listeners."""

    async def body(hosted: Hosted) -> None:
        heard: list[int] = []

        def fail() -> None:
            raise RuntimeError("a listener's own mistake")

        hosted.gate.listeners[:0] = [fail, lambda: heard.append(hosted.gate.version)]
        assert (await hosted.ask("POST", "/drain"))[0] == 200
        assert heard
        assert (await hosted.ask("GET", "/queue"))[0] == 200

    hosting(body)
