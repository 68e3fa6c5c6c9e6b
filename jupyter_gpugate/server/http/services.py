"""The services that a hosting process gives to the handlers of the user API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tornado.httputil import HTTPServerRequest

from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.port import Gate
from jupyter_gpugate.proc import Caller
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.server.feed import Feed
from jupyter_gpugate.server.http.polls import Polls


@dataclass(frozen=True)
class Backend:
    """A gate, its user's run side, and what follows from both."""

    gate: Gate
    launcher: Launcher
    feed: Feed


class Services:
    """The services shared by all handlers; the backend exists while this process hosts the gate."""

    def __init__(self, admit: Callable[[HTTPServerRequest], Caller]) -> None:
        self.admit = admit  # names the caller of a request, or raises `HTTPError`
        self.polls = Polls()
        self.used_at = awake_time()  # the last request
        self.backend: Backend | None = None
        self.ready = asyncio.Event()  # there is a backend

    def open(self, backend: Backend) -> None:
        """Answer from this backend."""
        self.backend = backend
        self.ready.set()

    def close(self) -> None:
        """Answer nothing until there is another backend."""
        self.ready.clear()
        self.backend = None
