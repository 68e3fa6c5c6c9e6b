"""Hosts a user's gate and run side in this process, or follows the process that does.

Of all processes of one user that could host them, the one that holds the lock does; the others
forward to its socket and take over when it goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import getpass
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application

from jupyter_gpugate.core.protocol import from_json, is_token, to_json
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.clock import awake_time, boot_id
from jupyter_gpugate.gate.history import History
from jupyter_gpugate.gate.journal import Journal, JournalError
from jupyter_gpugate.gate.local_disk import state_directory
from jupyter_gpugate.gate.lock import GateLock
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.machine import MachineReader
from jupyter_gpugate.gate.nvml import GpuReader
from jupyter_gpugate.gate.sampling import Sampler
from jupyter_gpugate.gate.socket import lease_routes
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.machine import this_machine
from jupyter_gpugate.server.feed import Feed
from jupyter_gpugate.server.handlers import api_routes
from jupyter_gpugate.server.paths import SOCKET_VARIABLE, runs_directory, user_socket
from jupyter_gpugate.server.polls import Polls
from jupyter_gpugate.server.wire import BODY_LIMIT_BYTES, ENVIRONMENT_LIMIT_BYTES

#: More than any body may have: whatever is too large is told so by its handler.
MOST_BODY_BYTES = 4 * (BODY_LIMIT_BYTES + ENVIRONMENT_LIMIT_BYTES)
#: How often a follower looks whether it may take over.
LOOK_S = 1.0


@dataclass(frozen=True)
class HostSettings:
    """What a site may set; the defaults are this user's own places."""

    traits: Traits = field(default_factory=Traits)
    runs: Path = field(default_factory=runs_directory)
    socket: Path = field(default_factory=user_socket)
    state: Path = field(default_factory=state_directory)
    grace_s: float = 10.0
    root: Path = field(default_factory=Path.cwd)  # where runs without a cwd start

    def as_text(self) -> str:
        """All of it, for another process to read."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps({**named, "traits": to_json(self.traits)}, default=str)

    @classmethod
    def from_text(cls, text: str) -> HostSettings:
        """Read `as_text`; what another version wrote beyond this one's settings is left out."""
        given: dict[str, Any] = json.loads(text)
        names = {f.name for f in dataclasses.fields(Traits)}
        traits = {name: value for name, value in given["traits"].items() if name in names}
        return cls(
            traits=from_json(Traits, traits, "traits"),
            runs=Path(given["runs"]),
            socket=Path(given["socket"]),
            state=Path(given["state"]),
            grace_s=float(given["grace_s"]),
            root=Path(given["root"]),
        )


class Host:
    """One process's part in its user's gate."""

    def __init__(self, settings: HostSettings, log: logging.Logger | None = None) -> None:
        self.settings = settings
        self.log = log or logging.getLogger("jupyter_gpugate")
        self.owner = getpass.getuser()
        self.gate: GateLoop | None = None
        self.launcher: Launcher | None = None
        self.feed: Feed | None = None
        self.history: History | None = None
        self.polls = Polls()
        self.fault = ""  # why nobody can be asked here
        self.touched_at = awake_time()  # the last request of anybody
        self.ready = asyncio.Event()
        self.led = asyncio.Event()  # this process has all runs at hand
        self._lock = GateLock(settings.state / "gate.lock")
        self._held = contextlib.AsyncExitStack()  # what leading has opened, to be closed again
        self._following: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether the gate lives in this process."""
        return self.launcher is not None

    async def start(self) -> None:
        """Lead if nobody does, else follow; what cannot be now is tried again."""
        if not await self._is_leading():
            if not self.fault:
                self.log.info("another process of %s hosts the gate; forwarding to it", self.owner)
            self._following = asyncio.create_task(self._follow())
        self.ready.set()

    async def stop(self, *, successor: bool = True) -> None:
        """Leave; runs go on, and a process of their own takes over what is unfinished."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        unfinished = self.launcher is not None and self.launcher.unfinished()
        try:
            await self._held.aclose()
        except JournalError as error:
            self.log.warning("%s", error)
        self.led.clear()
        self.gate = self.launcher = self.feed = self.history = None
        if unfinished and successor:
            self._start_successor()

    def idle_s(self) -> float:
        """Seconds since anything was asked or unfinished; for a host that ends when unused."""
        if self.launcher is not None and self.launcher.unfinished():
            self.touched_at = awake_time()
        return awake_time() - self.touched_at

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if await self._is_leading():
                self.log.info("this process hosts the gate now")
                return

    async def _is_leading(self) -> bool:
        """Take the lead if it is free; where that fails, let go of it and keep the reason."""
        try:
            if not self._lock.acquire():
                self.fault = ""
                return False
            self._held.callback(self._lock.release)
            await self._lead()
        except BaseException as error:
            await self._held.aclose()
            if not isinstance(error, (JournalError, OSError)):
                raise
            if self.fault != str(error):
                self.log.warning("the gate cannot be hosted here: %s", error)
            self.fault = str(error)
            return False
        self.fault = ""
        return True

    async def _lead(self) -> None:
        settings = self.settings
        journal = await asyncio.to_thread(self._open_journal)
        sampler = Sampler(GpuReader(clock=awake_time), MachineReader(clock=awake_time))
        gate = GateLoop(sampler, journal, settings.traits, log=self.log)
        self._held.push_async_callback(gate.stop)
        await gate.start()
        await self._listen(gate)
        launcher = Launcher(
            runs=settings.runs,
            socket=settings.socket,
            owner=self.owner,
            grace_s=settings.grace_s,
            root=settings.root,
            machine=await asyncio.to_thread(this_machine, settings.state),
            log=self.log,
            cache=settings.state / "sources",
        )
        self._held.push_async_callback(launcher.stop)
        await launcher.start()
        self.feed = Feed(gate, launcher)
        self.history = History(gate, settings.state / "samples", log=self.log)
        self._held.push_async_callback(self.history.close)
        gate.listeners += [self.feed.look, self.history.look]
        # Whoever asked for a run before all are known would be told that there is none.
        self.gate, self.launcher = gate, launcher
        self.led.set()

    async def _listen(self, gate: GateLoop) -> None:
        routes = [*lease_routes(gate, self.owner), *api_routes(self)]
        application = Application(routes, log_function=_say_nothing)
        server = HTTPServer(application, max_body_size=MOST_BODY_BYTES)
        place = self.settings.socket
        server.add_socket(bind_unix_socket(str(place), mode=0o600, backlog=512))

        told = self.settings.state / "socket"

        async def close() -> None:
            server.stop()
            for path in (place, told):
                with contextlib.suppress(OSError):
                    path.unlink()
            await server.close_all_connections()

        self._held.push_async_callback(close)
        # A client with another runtime directory finds its gate by this.
        with contextlib.suppress(OSError):
            told.write_text(str(place), encoding="utf-8")

    def _open_journal(self) -> Journal:
        self.settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal = Journal.open(self.settings.state / "gate.sqlite", boot_id=boot_id())
        if journal.notice:
            self.log.warning("%s", journal.notice)
        return journal

    def _start_successor(self) -> None:
        """A small process of the user's own that goes on with the queue."""
        environ = {k: v for k, v in os.environ.items() if not is_token(k)}
        environ[SOCKET_VARIABLE] = str(self.settings.socket)
        settings = ["--settings", self.settings.as_text()]
        subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpugate", "serve", "--user", *settings],
            env=environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _say_nothing(_handler: object) -> None:
    """Requests on the socket are too many, and too dull, for the server's log."""
