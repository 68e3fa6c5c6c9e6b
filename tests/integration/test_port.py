"""A server that asks a gate through its port, wherever that gate is."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.gate.local import LocalGate
from jupyter_gpugate.gate.port import Change, Listener
from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.runs.lease_client import UnixClient
from jupyter_gpugate.server import host as host_module
from jupyter_gpugate.server.host import Host, HostSettings

#: The limit is for broken code only.
PATIENCE_S = 120.0
RUN = {"name": "far", "source": "print(1)", "gpus": 0, "hints": {"ram_bytes": 64 << 20}}
#: Calls about a run that has ended, in an order in which each has something to answer.
CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/queue?inputs=1", None),
    ("GET", "/machine", None),
    ("GET", "/samples", None),
    ("GET", "/transitions", None),
    ("GET", "/panel", None),
    ("GET", "/runs", None),
    ("GET", "/runs/{run}", None),
    ("GET", "/runs/{run}/card", None),
    ("GET", "/runs/{run}/story", None),
    ("GET", "/runs/{run}/export", None),
    ("GET", "/estimate?name=far", None),
    ("POST", "/estimate", RUN),
    ("GET", "/calibrations", None),
    ("DELETE", "/calibrations?name=far", None),
    ("DELETE", "/machine?forget=GPU-none", None),
    ("POST", "/lock", {"seconds": 60}),
    ("DELETE", "/lock", None),
    ("POST", "/drain", {"reason": "a test"}),
]
#: Calls while nothing starts; the last one ends that.
OF_A_WAITING_RUN: list[tuple[str, str, Any]] = [
    ("GET", "/queue", None),
    ("GET", "/runs/{run}?wait=0", None),
    ("POST", "/runs/{run}/detach", {}),
    ("POST", "/runs/{run}/cancel", {}),
    ("DELETE", "/runs/{run}", None),
    ("DELETE", "/drain", None),
]


def copied(value: Any) -> Any:
    """A value that has travelled to another process and back."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own


class FarGate:
    """A gate whose answers come late and as copies, as from another process."""

    def __init__(self, near: LocalGate) -> None:
        self._near = near

    @property
    def version(self) -> int:
        return self._near.version

    def for_caller(self, caller: Any) -> FarGate:
        return FarGate(self._near.for_caller(copied(caller)))

    def follow(self, listener: Listener) -> Any:
        def hear(changes: Sequence[Change]) -> None:
            listener(copied(changes))

        return copied(self._near.follow(hear))

    def figures(self) -> Any:
        return copied(self._near.figures())

    def __getattr__(self, name: str) -> Any:
        async def late(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            answer = await getattr(self._near, name)(*copied(args), **copied(kwargs))
            await asyncio.sleep(0)
            return copied(answer)

        return late


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[HostSettings]:
    """The settings of a host of the test's own."""
    runtime = Path(tempfile.mkdtemp(prefix="gg-"))  # a socket's path is short
    yield HostSettings(
        runs=tmp_path / "runs", socket=runtime / "s", state=tmp_path / "state", root=tmp_path
    )
    shutil.rmtree(runtime, ignore_errors=True)


class Walker:
    """A client that makes calls one after the other, and keeps the form of each answer."""

    def __init__(self, socket: Path) -> None:
        self.found: dict[str, tuple[int, list[str]]] = {}
        self._client = UnixClient(str(socket))

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body) if method == "POST" else None
        asked = {"method": method, "body": data, "request_timeout": PATIENCE_S}
        answer = await self._client.fetch(API_PATH + path, **asked)
        assert answer.headers["Content-Type"].startswith("application/json")
        return answer.code, json.loads(answer.body)

    async def submit(self) -> str:
        """Submit a run and return its id."""
        _, answer = await self.ask("POST", "/runs", RUN)
        run_id: str = answer["run_id"]
        return run_id

    async def completed(self) -> str:
        """Submit a run, follow its transitions to its end and return its id."""
        _, told = await self.ask("GET", "/transitions")
        run_id = await self.submit()
        ends: list[str] = []
        while not ends:
            since = f"epoch={told['epoch']}&after={told['last']}&wait=10"
            _, told = await self.ask("GET", f"/transitions?{since}")
            ends = [row["end"] for row in told["transitions"] if row["status"] == "ended"]
        assert ends == ["completed"]
        return run_id

    async def walk(self, calls: Sequence[tuple[str, str, Any]], run_id: str) -> None:
        """Make calls: of each its status and the names in its answer are found."""
        for method, path, body in calls:
            status, answer = await self.ask(method, path.replace("{run}", run_id), body)
            self.found[f"{method} {path}"] = (status, list(answer))

    def close(self) -> None:
        self._client.close()


async def walked(settings: HostSettings) -> dict[str, tuple[int, list[str]]]:
    """Make every call of a host: about a run that has ended, and about one that waits."""
    host = Host(settings)
    await host.start()
    walker = Walker(settings.socket)
    try:
        await walker.walk(CALLS, await walker.completed())
        await walker.walk(OF_A_WAITING_RUN, await walker.submit())
        return walker.found
    finally:
        await host.stop(successor=False)
        walker.close()


def test_a_server_cannot_tell_a_gate_in_another_process(
    settings: HostSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call is answered the same by a gate whose answers come late and as copies."""
    near = asyncio.run(asyncio.wait_for(walked(settings), PATIENCE_S))
    monkeypatch.setattr(host_module, "LocalGate", lambda *made: FarGate(LocalGate(*made)))
    far = asyncio.run(asyncio.wait_for(walked(settings), PATIENCE_S))
    assert {call: status for call, (status, _) in near.items() if status >= 400} == {
        "DELETE /machine?forget=GPU-none": 400
    }
    assert far == near
