"""Hosts a user's gate and run side in this process, or follows the process that does.

Of all processes of one user that could host them, the one that holds the lock does; the others
forward to its socket and take over when it goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tornado.iostream import IOStream

from jupyter_gpugate.core.codec import JsonObject, from_json, to_json
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.door import Door
from jupyter_gpugate.gate.gpu.reader import GpuReader
from jupyter_gpugate.gate.journal.history import History
from jupyter_gpugate.gate.journal.journal import Journal, JournalError
from jupyter_gpugate.gate.journal.local_disk import state_directory
from jupyter_gpugate.gate.lease_api import lease_routes
from jupyter_gpugate.gate.local import LocalGate
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.machine.kernels import UserNames
from jupyter_gpugate.gate.machine.reader import MachineReader
from jupyter_gpugate.gate.sampling import Sampler
from jupyter_gpugate.places import SOCKET_VARIABLE, abstract_path, check_own, runs_folder
from jupyter_gpugate.proc import RUN_MODULE, boot_id, importable, is_token
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.lease_client import Way, dial_socket
from jupyter_gpugate.runs.machine import Machine, renew_mark, this_machine
from jupyter_gpugate.server.claim import Claim
from jupyter_gpugate.server.doors import Doors, GateServer
from jupyter_gpugate.server.feed import Feed
from jupyter_gpugate.server.http.bodies import MOST_DISCARDED_BYTES, BoundedApplication
from jupyter_gpugate.server.http.handlers import api_routes
from jupyter_gpugate.server.http.services import Backend, Services
from jupyter_gpugate.server.paths import user_socket

#: Set for every process of a run, unless the run has removed it.
RUN_VARIABLE = "GPUGATE_RUN_ID"
#: How often a follower tries to take over, and a gate checks that it can be found.
LOOK_S = 1.0


@dataclass(frozen=True)
class HostSettings:
    """The settings of a host; the defaults are this user's own places."""

    traits: Traits = field(default_factory=Traits)
    runs: Path = field(default_factory=runs_folder)
    socket: Path = field(default_factory=user_socket)
    state: Path = field(default_factory=state_directory)
    grace_s: float = 10.0
    root: Path = field(default_factory=Path.cwd)  # where runs without a cwd start

    def as_text(self) -> str:
        """Return all settings as text for another process."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps({**named, "traits": to_json(self.traits)}, default=str)

    @classmethod
    def from_text(cls, text: str) -> HostSettings:
        """Read `as_text`; unknown settings of another version are ignored."""
        given: JsonObject = json.loads(text)
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
    """The role of one process in its user's gate: leader or follower."""

    def __init__(self, settings: HostSettings, log: logging.Logger | None = None) -> None:
        self.settings = settings
        self.log = log or logging.getLogger("jupyter_gpugate")
        self.owner = UserNames().of(os.geteuid())
        self.door = Door(self.owner)
        self.services = Services(self.door.admit)
        self.fault = ""  # why no gate can be asked here
        self.ready = asyncio.Event()
        fields = json.loads(settings.as_text())
        self._claim = Claim(settings.socket, settings.state, fields)
        self._doors: Doors | None = None
        self._machine: Machine | None = None  # as its mark in the state directory names it
        self._starting: subprocess.Popen[bytes] | None = None  # a gate outside of this run
        self._differed = False  # the different settings were logged
        self._held = contextlib.AsyncExitStack()  # what leading has opened, to be closed again
        self._following: asyncio.Task[None] | None = None

    @property
    def backend(self) -> Backend | None:
        """The gate and the run side, while they live in this process."""
        return self.services.backend

    async def start(self) -> None:
        """Lead if no process does, else follow; a failed attempt is repeated."""
        if not await self._is_leading():
            if not self.fault:
                self.log.info("another process of %s hosts the gate; forwarding to it", self.owner)
            self._following = asyncio.create_task(self._follow())
        self.ready.set()

    async def dial(self) -> IOStream:
        """Connect to the gate, within this process if it is hosted here."""
        if self._doors is not None:
            return self._doors.inside()
        fault: OSError = ConnectionError("no gate answers")
        for address in self._claim.addresses():
            try:
                return await dial_socket(address)
            except OSError as error:
                fault = error
        raise fault

    async def stop(self, *, successor: bool = True) -> None:
        """Stop hosting; runs go on, and a new process takes over the unfinished ones."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        unfinished = self._has_unfinished_runs()
        try:
            await self._held.aclose()
        except JournalError as error:
            self.log.warning("%s", error)
        self.services.close()
        if unfinished and successor:
            self._start_successor()

    def idle_s(self) -> float:
        """Return the seconds since the last request or unfinished run."""
        if self._has_unfinished_runs():
            self.services.used_at = awake_time()
        return awake_time() - self.services.used_at

    def _has_unfinished_runs(self) -> bool:
        return self.backend is not None and bool(self.backend.launcher.records.unfinished())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if await self._is_leading():
                self.log.info("this process now hosts the gate")
                return

    async def _is_leading(self) -> bool:
        """Take the lead if it is free; on failure, release it and store the reason."""
        if os.environ.get(RUN_VARIABLE):
            await self._have_gate_outside()
            return False
        try:
            if not self._claim.take():
                self._tell_differences()
                self.fault = ""
                return False
            self._held.callback(self._claim.release)
            check_own(self.settings.runs, "runs_directory")
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

    async def _have_gate_outside(self) -> None:
        """Make sure that there is a gate; inside a run it is started outside of that run."""
        try:
            (await self.dial()).close()
            self.fault = ""
        except OSError as error:
            self.fault = str(error)
            if self._starting is None or self._starting.poll() is not None:
                self._starting = _start_gate({**os.environ})

    def _tell_differences(self) -> None:
        """Log once that the active gate has other settings."""
        differences = self._claim.differences()
        if differences and not self._differed:
            self._differed = True
            self.log.warning("the gate of %s runs with other settings: %s", self.owner, differences)

    def _addresses(self) -> list[str]:
        """Return the addresses by which a supervisor reaches this gate and its successor."""
        own = [str(self._doors.path)] if self._doors is not None and self._doors.path else []
        return [*own, abstract_path(self._claim.name)]

    async def _lead(self) -> None:
        settings = self.settings
        journal = await asyncio.to_thread(self._open_journal)
        sampler = Sampler(GpuReader(clock=awake_time), MachineReader(clock=awake_time))
        gate = GateLoop(sampler, journal, settings.traits, log=self.log)
        self._held.push_async_callback(gate.stop)
        await gate.start()
        self._machine = await asyncio.to_thread(this_machine, settings.state)
        self._listen(gate)
        launcher = Launcher(
            runs=settings.runs,
            socket=Way(self.dial, self._addresses),
            owner=self.owner,
            grace_s=settings.grace_s,
            root=settings.root,
            machine=self._machine,
            log=self.log,
            cache=settings.state / "sources",
        )
        self._held.push_async_callback(launcher.stop)
        await launcher.start()
        history = History(gate, settings.state / "samples", log=self.log)
        self._held.push_async_callback(history.close)
        local = LocalGate(gate, history, self.owner)
        feed = Feed(local, launcher.records)
        gate.listeners.append(history.look)
        # A request for a run before all are registered would be answered that there is none.
        self.services.open(Backend(local, launcher, feed))

    def _listen(self, gate: GateLoop) -> None:
        routes = [*lease_routes(gate, self.door), *api_routes(self.services)]
        application = BoundedApplication(routes, log_function=_say_nothing)
        server = GateServer(application, max_body_size=MOST_DISCARDED_BYTES)
        doors = Doors(server, self.settings.socket, self._claim.name, self.log)

        async def close() -> None:
            self._doors = None
            doors.close()
            self._claim.record(None)
            await server.close_all_connections()

        self._held.push_async_callback(close)
        doors.open(self._claim.listener)
        self._doors = doors
        self._claim.record(doors.path)
        minding = asyncio.create_task(self._mind(doors, gate))
        self._held.callback(minding.cancel)

    async def _mind(self, doors: Doors, gate: GateLoop) -> None:
        """Make sure that the gate can be found, even if its socket or records are removed.

        With a tick, so that an idle gate does not wake once more; without, where none comes.
        """
        ticked = asyncio.Event()
        gate.listeners.append(ticked.set)
        looked_at = awake_time()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ticked.wait(), 2 * LOOK_S)
            ticked.clear()
            if awake_time() - looked_at < 0.9 * LOOK_S:
                continue
            looked_at = awake_time()
            try:
                doors.look()
                self._claim.renew(doors.path)
                if self._machine is not None:
                    renew_mark(self.settings.state, self._machine)
            except OSError as error:
                self.log.debug("the gate's records cannot be rewritten: %s", error)

    def _open_journal(self) -> Journal:
        journal = Journal.open(self.settings.state / "gate.sqlite", boot_id=boot_id())
        if journal.notice:
            self.log.warning("%s", journal.notice)
        return journal

    def _start_successor(self) -> None:
        """Start a small process of the user that continues the queue."""
        environ = {**os.environ, SOCKET_VARIABLE: str(self.settings.socket)}
        _start_gate(environ, "--settings", self.settings.as_text())


def _start_gate(environ: dict[str, str], *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN_MODULE, "jupyter_gpugate", "serve", "--user", *options],
        env=importable({k: v for k, v in environ.items() if not is_token(k)}),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _say_nothing(_handler: object) -> None:
    """Do not log requests on the socket: they are too many."""
