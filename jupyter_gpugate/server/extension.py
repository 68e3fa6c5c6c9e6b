"""The Jupyter Server extension: hosts the user's gate and shows it to browsers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from jupyter_server.auth.decorator import authorized as _untyped_authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web
from tornado.httpclient import HTTPClientError
from tornado.ioloop import IOLoop
from traitlets import Bool, CaselessStrEnum, Dict, Float, Int, Unicode

from jupyter_gpugate._version import __version__
from jupyter_gpugate.core.model import MB
from jupyter_gpugate.core.protocol import API_PATH
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.local_disk import state_directory
from jupyter_gpugate.runs.lease_client import UnixClient
from jupyter_gpugate.server.host import Host, HostSettings
from jupyter_gpugate.server.paths import SOCKET_VARIABLE, runs_directory, user_socket

#: Longer than any long poll.
FORWARD_TIMEOUT_S = 120.0
PASSED_ON = ("Content-Type", "If-None-Match")
#: What a browser says to its server in a query is no business of the gate.
OF_THE_BROWSER = ("token", "_xsrf")
PASSED_BACK = ("Content-Type", "ETag", "Retry-After", "Cache-Control")

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _authorized(action: str) -> Callable[[_Method], _Method]:
    """`authorized` for this extension's resource, with the type of what it decorates kept."""
    decorate: Callable[[_Method], _Method] = _untyped_authorized(action, resource="gpugate")
    return decorate


class ForwardHandler(ExtensionHandlerMixin, APIHandler):
    """Everything under the API: authenticated and authorised here, answered by the user's gate."""

    auth_resource = "gpugate"

    @web.authenticated
    @_authorized("read")
    async def get(self, path: str) -> None:
        await self._forward(path)

    @web.authenticated
    @_authorized("execute")
    async def post(self, path: str) -> None:
        await self._forward(path)

    @web.authenticated
    @_authorized("write")
    async def delete(self, path: str) -> None:
        await self._forward(path)

    async def _forward(self, path: str) -> None:
        app: GpuGate = self.settings["gpugate_app"]
        asked = parse_qsl(self.request.query, keep_blank_values=True)
        query = urlencode([(k, v) for k, v in asked if k not in OF_THE_BROWSER])
        headers = {k: self.request.headers[k] for k in PASSED_ON if k in self.request.headers}
        try:
            await asyncio.wait_for(app.host.ready.wait(), FORWARD_TIMEOUT_S)
            fault = app.fault or app.host.fault
            if fault:
                raise ConnectionError(fault)
            response = await app.client.fetch(
                f"{API_PATH}/{path}" + (f"?{query}" if query else ""),
                method=self.request.method or "GET",
                headers=headers,
                body=self.request.body if self.request.method == "POST" else None,
                request_timeout=FORWARD_TIMEOUT_S,
            )
        except (OSError, HTTPClientError, asyncio.TimeoutError) as error:
            self.set_status(503)
            self.finish(
                {
                    "error": "gate_away",
                    "message": f"the gate does not answer: {error}",
                    "detail": {},
                }
            )
            return
        self.set_status(response.code)
        for name in PASSED_BACK:
            if name in response.headers:
                self.set_header(name, response.headers[name])
        self.finish(response.body or None)


class GpuGate(ExtensionApp):
    """Admits evaluations when the memory they need is measured to be free."""

    name = "jupyter_gpugate"
    extension_url = "/gpugate"
    load_other_extensions = True
    version = __version__

    head_after_s = Float(600, help="Seconds after which room is set aside for the oldest run.").tag(
        config=True
    )
    watch_wait_s = Float(
        300, help="Seconds after which an unmeasured run makes do with what fits."
    ).tag(config=True)
    linger_s = Float(30, help="Seconds to wait for the memory of a gone run to be seen free.").tag(
        config=True
    )
    max_running_per_user = Int(
        None, allow_none=True, help="Live runs a user may have at once."
    ).tag(config=True)
    max_runs_per_device = Int(8, help="Live runs a device may have at once.").tag(config=True)
    max_queued_per_user = Int(200, help="Queued runs a user may have at once.").tag(config=True)
    placement = CaselessStrEnum(["spread", "pack"], "spread", help="How devices are chosen.").tag(
        config=True
    )
    grace_s = Float(10, help="Seconds between asking a run to stop and killing it.").tag(
        config=True
    )
    runs_directory = Unicode(help="Where run directories lie; a network home is fine.").tag(
        config=True
    )
    state_directory = Unicode(help="Where the journal lies; must be a local disk.").tag(config=True)
    usable_vram_mb = Dict(
        key_trait=Unicode(),
        value_trait=Int(min=1),
        help="By UUID: how much of a GPU that cannot be measured may be given by declared numbers.",
    ).tag(config=True)
    stop_runs_on_exit = Bool(
        default_value=False, help="Stop this user's runs when the server stops."
    ).tag(config=True)

    def initialize_settings(self) -> None:
        """Tell every kernel of this server where the socket is; start the host with the loop."""
        socket = user_socket()
        os.environ[SOCKET_VARIABLE] = str(socket)
        self.client = UnixClient(str(socket))
        self.host = Host(self._settings(socket), self.log)
        self.settings["gpugate_app"] = self
        self.fault = ""  # why the gate did not start
        self._start: asyncio.Task[None] | None = None
        IOLoop.current().add_callback(self._begin)

    def initialize_handlers(self) -> None:
        self.handlers.append((r"/gpugate/api/v1/(.*)", ForwardHandler))

    async def stop_extension(self) -> None:
        """Runs go on without this server, unless its configuration says otherwise."""
        if self._start is not None and not self._start.done():
            self._start.cancel()
        await asyncio.gather(*filter(None, [self._start]), return_exceptions=True)
        if self.stop_runs_on_exit and self.host.launcher is not None:
            await self.host.launcher.cancel_all()
        await self.host.stop()
        self.client.close()

    def current_activity(self) -> bool | None:
        """Whether runs are unfinished: a server with runs is not idle."""
        launcher = self.host.launcher
        return True if launcher is not None and launcher.unfinished() else None

    def _begin(self) -> None:
        self._start = asyncio.ensure_future(self.host.start())
        self._start.add_done_callback(self._started)

    def _started(self, start: asyncio.Task[None]) -> None:
        if not start.cancelled() and start.exception() is not None:
            self.fault = str(start.exception())
            self.log.error("the gate did not start", exc_info=start.exception())
            self.host.ready.set()

    def _settings(self, socket: Path) -> HostSettings:
        traits = Traits(
            head_after_s=self.head_after_s,
            watch_wait_s=self.watch_wait_s,
            linger_s=self.linger_s,
            max_running_per_user=self.max_running_per_user,
            max_runs_per_device=self.max_runs_per_device,
            max_queued_per_user=self.max_queued_per_user,
            placement=self.placement,
            usable_vram_bytes={uuid: mb * MB for uuid, mb in self.usable_vram_mb.items()},
        )
        root = getattr(self.serverapp, "root_dir", "") or Path.cwd()
        return HostSettings(
            traits=traits,
            runs=Path(self.runs_directory) if self.runs_directory else runs_directory(),
            socket=socket,
            state=Path(self.state_directory) if self.state_directory else state_directory(),
            grace_s=self.grace_s,
            root=Path(root),
        )
