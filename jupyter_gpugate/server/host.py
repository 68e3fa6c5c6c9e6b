"""Hosts a user's gate and run side in this process, or follows the process that does.

Of all processes of one user that could host them, the one that holds the lock does; the others
forward to its socket and take over when it goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application

from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.clock import boot_id, boot_time
from jupyter_gpugate.gate.journal import Journal
from jupyter_gpugate.gate.local_disk import state_directory
from jupyter_gpugate.gate.lock import GateLock
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.machine import MachineReader
from jupyter_gpugate.gate.nvml import GpuReader
from jupyter_gpugate.gate.sampling import Sampler
from jupyter_gpugate.gate.socket import lease_routes
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.server.handlers import api_routes
from jupyter_gpugate.server.paths import runs_directory, user_socket
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


class Host:
    """One process's part in its user's gate."""

    def __init__(self, settings: HostSettings, log: logging.Logger | None = None) -> None:
        self.settings = settings
        self.log = log or logging.getLogger("jupyter_gpugate")
        self.owner = getpass.getuser()
        self.gate: GateLoop | None = None
        self.launcher: Launcher | None = None
        self.touched_at = boot_time()  # the last request of anybody
        self._lock = GateLock(settings.state / "gate.lock")
        self._server: HTTPServer | None = None
        self._following: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()

    @property
    def leads(self) -> bool:
        """Whether the gate lives in this process."""
        return self.gate is not None

    async def start(self) -> None:
        """Lead if nobody does, else follow."""
        if self._lock.acquire():
            await self._lead()
        else:
            self.log.info("another process of %s hosts the gate; forwarding to it", self.owner)
            self.ready.set()
            self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Leave; runs go on, and a process of their own takes over what is unfinished."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        unfinished = self.launcher is not None and self.launcher.unfinished()
        if self.launcher is not None:
            self.launcher.leave()
        if self._server is not None:
            self._server.stop()
            with contextlib.suppress(OSError):
                self.settings.socket.unlink()
            await self._server.close_all_connections()
        if self.launcher is not None:
            await self.launcher.stop()
        if self.gate is not None:
            await self.gate.stop()
        self._lock.release()
        if unfinished:
            self._start_successor()

    def idle_s(self) -> float:
        """Seconds since anything was asked or unfinished; for a host that ends when unused."""
        if self.launcher is not None and self.launcher.unfinished():
            self.touched_at = boot_time()
        return boot_time() - self.touched_at

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._lock.acquire():
                self.log.info("the process that hosted the gate is gone; taking over")
                await self._lead()
                return

    async def _lead(self) -> None:
        settings = self.settings
        journal = await asyncio.to_thread(self._open_journal)
        sampler = Sampler(GpuReader(clock=boot_time), MachineReader(clock=boot_time))
        gate = GateLoop(sampler, journal, settings.traits, log=self.log)
        await gate.start()
        launcher = Launcher(
            runs=settings.runs,
            socket=settings.socket,
            owner=self.owner,
            grace_s=settings.grace_s,
            root=settings.root,
            log=self.log,
        )
        routes = [*lease_routes(gate, self.owner), *api_routes(self)]
        # Starting a run waits on the socket, and a browser must not see half a host.
        self.gate, self.launcher = gate, launcher
        self._server = HTTPServer(
            Application(routes, log_function=_say_nothing), max_body_size=MOST_BODY_BYTES
        )
        self._server.add_socket(bind_unix_socket(str(settings.socket), mode=0o600, backlog=512))
        await launcher.start()
        self.ready.set()

    def _open_journal(self) -> Journal:
        self.settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal = Journal.open(self.settings.state / "gate.sqlite", boot_id=boot_id())
        if journal.notice:
            self.log.warning("%s", journal.notice)
        return journal

    def _start_successor(self) -> None:
        """A small process of the user's own that goes on with the queue."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB_", "JPY_"))}
        environ["GPUGATE_USER_SOCKET"] = str(self.settings.socket)
        subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpugate", "serve", "--user"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _say_nothing(_handler: object) -> None:
    """Requests on the socket are too many, and too dull, for the server's log."""
