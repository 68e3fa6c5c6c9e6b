"""The Jupyter Server extension: hosts the user's gate and shows it to browsers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jupyter_events import EventLogger
from jupyter_server.extension.application import ExtensionApp
from prometheus_client import REGISTRY
from tornado.httpclient import HTTPResponse
from tornado.ioloop import IOLoop
from traitlets import (
    Bool,
    Bunch,
    Callable,
    CaselessStrEnum,
    Dict,
    Float,
    Int,
    TraitError,
    Unicode,
    Union,
    validate,
)
from traitlets.utils.importstring import import_item

from jupyter_gpugate._version import __version__
from jupyter_gpugate.core.resources import MB
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.journal.local_disk import state_directory
from jupyter_gpugate.places import SERVER_VARIABLE, SOCKET_VARIABLE, runs_folder
from jupyter_gpugate.runs.lease_client import UnixClient
from jupyter_gpugate.server.feed import StatusChange
from jupyter_gpugate.server.figures import Figures
from jupyter_gpugate.server.follower import TransitionFollower
from jupyter_gpugate.server.forwarding import routes
from jupyter_gpugate.server.host import Host, HostSettings
from jupyter_gpugate.server.lines import FORWARD_TIMEOUT_S, Lines
from jupyter_gpugate.server.paths import user_socket

EVENTS = Path(__file__).with_name("event_schemas")
#: Every transition of a run is emitted on the server's event bus under this name.
TRANSITION = "urn:jupyter-gpugate:run-transition:v1"


class GpuGate(ExtensionApp):
    """Starts evaluations when the memory that they need is measured to be free."""

    name = "jupyter_gpugate"
    extension_url = "/gpugate"
    load_other_extensions = True
    version = __version__

    head_after_s = Float(
        600, help="Seconds after which memory is set aside for the oldest waiting run."
    ).tag(config=True)
    watch_wait_s = Float(
        300,
        help="Seconds after which an unmeasured run's charge (the memory that is reserved for it) "
        "may shrink to what is free.",
    ).tag(config=True)
    linger_s = Float(
        30, help="Seconds to wait until the memory of an ended run is measured to be free."
    ).tag(config=True)
    max_running_per_user = Int(None, allow_none=True, help="Active runs per user.").tag(config=True)
    max_runs_per_device = Int(8, help="Active runs per device.").tag(config=True)
    max_queued_per_user = Int(1000, help="Queued runs per user.").tag(config=True)
    placement = CaselessStrEnum(["spread", "pack"], "spread", help="How devices are chosen.").tag(
        config=True
    )
    device_mask = CaselessStrEnum(
        ["index", "uuid"],
        "index",
        help="How CUDA_VISIBLE_DEVICES names a run's devices: by number on machines without MIG "
        "slices, or always by UUID.",
    ).tag(config=True)
    grace_s = Float(10, help="Seconds between asking a run to stop and killing it.").tag(
        config=True
    )
    runs_directory = Unicode(
        help="The folder of run directories; it may be on a network disk."
    ).tag(config=True)
    state_directory = Unicode(help="The folder of the journal; it must be on a local disk.").tag(
        config=True
    )
    usable_vram_mb = Dict(
        key_trait=Unicode(),
        value_trait=Int(min=1),
        help="By UUID: usable memory of a GPU that cannot be measured, given out by declared "
        "numbers.",
    ).tag(config=True)
    stop_runs_on_exit = Bool(
        default_value=False, help="Stop this user's runs when the server stops."
    ).tag(config=True)
    run_ended_hook = Union(
        [Callable(), Unicode()],
        default_value=None,
        allow_none=True,
        help="""Called with the answer of GET /runs/{id} when a run of this user ends: a callable,
        or the name of one that can be imported, such as "my_site.hooks.ended". A plain function
        runs in a thread. Its exceptions are logged.""",
    ).tag(config=True)

    #: A server calls an extension also where `initialize_settings` has failed.
    _is_set_up = False

    @validate("run_ended_hook")
    def _importable(self, proposal: Bunch) -> Any:
        named = proposal.value
        if not isinstance(named, str):
            return named
        try:
            hook = import_item(named)
        except ImportError as error:
            raise TraitError(f"run_ended_hook: {named!r} cannot be imported: {error}") from None
        if not callable(hook):
            raise TraitError(f"run_ended_hook: {named!r} cannot be called")
        return hook

    def initialize_settings(self) -> None:
        """Give the socket's path to every kernel of this server; start the host with the loop."""
        socket = user_socket()
        self.host = Host(self._settings(socket), self.log)
        self.client = UnixClient(self.host.dial)
        self.lines = Lines(self.host.dial)
        for variable in (SOCKET_VARIABLE, SERVER_VARIABLE):
            os.environ[variable] = str(socket)
        self.follower = TransitionFollower(
            self.client,
            told=self._tell,
            heard=self._heard,
            ended=self.run_ended_hook,
            log=self.log,
        )
        self.figures = Figures(self.host.services, self.follower)
        REGISTRY.register(self.figures)
        self._bus.register_event_schema(EVENTS / "run.yaml")
        self.fault = ""  # why the gate did not start
        self._start: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        IOLoop.current().add_callback(self._begin)
        self._is_set_up = True

    def initialize_handlers(self) -> None:
        self.handlers.extend(routes(self._forward))

    async def stop_extension(self) -> None:
        """Stop; runs go on without this server, unless its configuration says otherwise."""
        if not self._is_set_up:
            return
        REGISTRY.unregister(self.figures)
        if self.stop_runs_on_exit and self.host.backend is not None:
            await self.host.backend.launcher.orders.cancel_all()
        tasks = [task for task in (self._start, self._following) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.follower.close()
        await self.host.stop()
        self.client.close()
        self.lines.close()

    def current_activity(self) -> bool | None:
        """Return whether runs are unfinished anywhere: a server with runs is not idle."""
        return True if self._is_set_up and self.follower.live else None

    @property
    def _bus(self) -> EventLogger:
        bus = self.serverapp.event_logger if self.serverapp is not None else None
        if bus is None:
            raise LookupError("this server has no event bus")
        return bus

    async def _forward(
        self, target: str, *, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> HTTPResponse:
        """Pass a request on to the gate once its address is known."""
        await asyncio.wait_for(self.host.ready.wait(), FORWARD_TIMEOUT_S)
        fault = self.fault or self.host.fault
        if fault:
            raise ConnectionError(fault)
        return await self.lines.fetch(target, method=method, headers=headers, body=body)

    # -- starting, and changes reported by the gate -----------------------------------------------

    def _begin(self) -> None:
        self._start = asyncio.ensure_future(self.host.start())
        self._start.add_done_callback(self._started)

    def _started(self, start: asyncio.Task[None]) -> None:
        if start.cancelled():
            return
        if start.exception() is not None:
            self.fault = str(start.exception())
            self.log.error("the gate did not start", exc_info=start.exception())
            self.host.ready.set()
            return
        if self.host.backend is not None:
            feed = self.host.backend.feed
            self.follower.begin_at(feed.epoch, feed.first)
        self._following = asyncio.ensure_future(self.follower.follow())
        self._following.add_done_callback(self._stopped_following)

    def _stopped_following(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.log.error("runs are not followed any more", exc_info=task.exception())

    def _tell(self, change: StatusChange) -> None:
        self._bus.emit(schema_id=TRANSITION, data=vars(change))

    def _heard(self, live: int) -> None:
        """Update the time of the last activity, by which idle servers are culled."""
        if live:
            self.settings["last_activity_times"]["jupyter_gpugate"] = datetime.now(timezone.utc)

    def _settings(self, socket: Path) -> HostSettings:
        traits = Traits(
            head_after_s=self.head_after_s,
            watch_wait_s=self.watch_wait_s,
            linger_s=self.linger_s,
            max_running_per_user=self.max_running_per_user,
            max_runs_per_device=self.max_runs_per_device,
            max_queued_per_user=self.max_queued_per_user,
            placement=self.placement,
            device_mask=self.device_mask,
            usable_vram_bytes={uuid: mb * MB for uuid, mb in self.usable_vram_mb.items()},
        )
        root = getattr(self.serverapp, "root_dir", "") or Path.cwd()
        return HostSettings(
            traits=traits,
            runs=Path(self.runs_directory) if self.runs_directory else runs_folder(),
            socket=socket,
            state=Path(self.state_directory) if self.state_directory else state_directory(),
            grace_s=self.grace_s,
            root=Path(root),
        )
