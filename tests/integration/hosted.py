"""A host of a gate and a run side in this process, and clients of its socket."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from jupyter_gpugate.core.messages import PresenceMessage, RequestMessage, StartedMessage
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate import failpoints
from jupyter_gpugate.gate.local import LocalGate
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.runs.lease_client import GateAway, GateRefused, LeaseClient, UnixClient
from jupyter_gpugate.server.host import Host, HostSettings
from tests.kit.core_builders import request

#: The limit is for broken code only.
PATIENCE_S = 120.0


class Hosted:
    """A host that leads, and clients of its socket."""

    def __init__(self, host: Host, socket: Path) -> None:
        self.host = host
        self.lease = LeaseClient(str(socket))
        self.api = UnixClient(str(socket))

    @property
    def gate(self) -> GateLoop:
        assert self.host.backend is not None
        assert isinstance(self.host.backend.gate, LocalGate)
        return self.host.backend.gate.loop

    async def granted(self, run_id: str) -> int:
        """Ask for a run as another run side would; the fence of its grant."""
        asked = request(run_id, vram=None, ram=GB, gpus=0)
        await self.lease.ask(RequestMessage(asked, run_side="another"))
        present = PresenceMessage((run_id,), run_side="another")
        while not (news := await self.lease.ask(present, 60)).grants:
            pass
        return news.grants[0].fence

    async def ended(self, run_id: str) -> tuple[str, str]:
        """Be there until a run of another run side has ended: how, and why."""
        present = PresenceMessage((run_id,), run_side="another")
        while not (news := await self.lease.ask(present, 60)).ended:
            pass
        (end,) = news.ended
        return end.end.value, end.reason

    async def fences(self, run_id: str) -> list[int]:
        """Those of every grant that a run has had."""
        story = await self.gate.story(run_id)
        return [entry["grant"]["fence"] for entry in story if entry["event"] == "granted"]

    async def is_empty(self) -> bool:
        """Whether nobody runs, nobody waits and nothing is reserved."""
        shown = (await self.ask("GET", "/queue"))[1]
        return not (shown["running"] or shown["queued"] or shown["reservations"]["ram"])

    async def started(
        self, run_id: str, fence: int, pid: int, start_ticks: int | None = None
    ) -> str:
        """Ask to go, as the supervisor with this pid: "go", or why not."""
        ticks = pid if start_ticks is None else start_ticks
        message = StartedMessage(run_id, fence, pid, ticks, "")
        try:
            return (await self.lease.ask(message)).verdict
        except GateRefused as error:
            return f"refused {error.status}"
        except GateAway:
            return "away"

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One call of the API: its status and its answer."""
        data = json.dumps(body or {}) if method == "POST" else None
        answer = await self.api.fetch(API_PATH + path, method=method, body=data)
        return answer.code, json.loads(answer.body or b"{}")


class Hosting(Protocol):
    """Runs a coroutine beside a host with these times."""

    def __call__(self, body: Callable[[Hosted], Awaitable[None]], **traits: float) -> None: ...


@contextmanager
def hosts_in(root: Path) -> Iterator[Hosting]:
    """Give what runs a coroutine beside a host that keeps its runs and its state in a folder."""
    runtime = Path(tempfile.mkdtemp(prefix="gg-"))  # a socket's path is short

    async def beside(body: Callable[[Hosted], Awaitable[None]], **traits: float) -> None:
        settings = HostSettings(
            traits=Traits(**traits),  # type: ignore[arg-type]
            runs=root / "runs",
            socket=runtime / "s",
            state=root / "state",
            root=root,
        )
        host = Host(settings)
        await host.start()
        hosted = Hosted(host, settings.socket)
        try:
            await asyncio.wait_for(body(hosted), PATIENCE_S)
        finally:
            failpoints.arm("")
            await host.stop(successor=False)
            hosted.lease.close()
            hosted.api.close()

    yield lambda body, **traits: asyncio.run(beside(body, **traits))
    failpoints.arm("")
    shutil.rmtree(runtime, ignore_errors=True)
