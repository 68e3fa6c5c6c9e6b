"""The ways to reach a gate: the user's socket, its abstract socket, and within its own process.

The socket's folder may go away while the gate lives: a service manager deletes it at log-out, a
cleaner empties /tmp.  Then the gate listens anew; the name cannot be removed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from jupyter_gpugate.gate.kernel_name import BACKLOG
from jupyter_gpugate.places import SOCKET_VARIABLE, check_own, spare_runtime_folder
from jupyter_gpugate.proc import peer_of
from jupyter_gpugate.server.paths import UnsafePath, check_length

#: For the head of a request, and between two on one line; then for its body.
HEAD_S = 20.0
BODY_S = 30.0
#: Descriptors reserved for the journal, the readers and new runs.
RESERVED = 64
#: Connections accepted at once, before other work has its turn.
BURST = 64
#: How long to stop accepting when no descriptors are left.
PAUSE_S = 0.5


class GateServer(HTTPServer):
    """Serves requests; a connection that does not complete its request in time is closed."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Bound the time that a request may take to arrive."""
        bounds = {"idle_connection_timeout": HEAD_S, "body_timeout": BODY_S}
        super().initialize(*args, **{**kwargs, **bounds})
        self._unheard: dict[object, None] = {}  # connections without a whole request, oldest first

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        """Register a connection whose request is not complete."""
        self._unheard[server_conn] = None
        delegate = super().start_request(server_conn, request_conn)
        return _Hearing(delegate, lambda: self._unheard.pop(server_conn, None))

    def on_close(self, server_conn: object) -> None:
        """Forget a connection."""
        self._unheard.pop(server_conn, None)
        super().on_close(server_conn)

    def drop_oldest(self) -> bool:
        """Close the connection that has kept this server waiting longest, if there is one."""
        for connection in self._unheard:
            del self._unheard[connection]
            cast(Any, connection).stream.close()
            return True
        return False


class _Hearing(HTTPMessageDelegate):
    """Passes a request on, and reports when it is complete."""

    def __init__(self, inner: HTTPMessageDelegate, heard: Callable[[], object]) -> None:
        self._inner = inner
        self._heard = heard

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        self._heard()
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()


class Doors:
    """Accepts connections; ``path`` is the current socket, None while no place is available."""

    def __init__(
        self, server: GateServer, place: Path, digest: str, log: logging.Logger | None = None
    ) -> None:
        own = f"gpugate-{digest[:8]}.sock"
        #: The second one is for a place that a gate of another home has, the last one for a folder
        #: that cannot be made again.
        self._places = (place, place.with_name(own), spare_runtime_folder() / own)
        self._server = server
        self._log = log or logging.getLogger("jupyter_gpugate")
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._named: socket.socket | None = None
        self._file: os.stat_result | None = None
        self._fault = ""
        self.path: Path | None = None

    def open(self, named: socket.socket | None) -> None:
        """Listen on the socket, and under the name; raise `OSError` if no place is available."""
        self._settle()
        if self.path is None:
            raise OSError(self._fault)
        if self.path != self._places[0]:
            self._log.warning("%s; listening on %s", self._fault, self.path)
        if named is not None:
            named.settimeout(0)
            self._named = named
            self._attend(named)

    def look(self) -> bool:
        """Listen again if the path no longer leads here; return whether anything has changed."""
        if self._is_here() and self.path == self._places[0]:
            return False
        before, fault = self.path if self._is_here() else None, self._fault
        self._settle()
        if self.path is None and self._fault != fault:
            self._log.warning("the gate has no socket: %s", self._fault)
        if self.path is not None and self.path != before:
            self._log.warning("the gate's socket was removed; listening on %s", self.path)
        return self.path != before

    def inside(self) -> IOStream:
        """Connect within this process, without the socket."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.settimeout(0)
        self._server.handle_stream(IOStream(theirs), cast(Any, ""))
        return IOStream(ours)

    def close(self) -> None:
        """Stop accepting, and remove the socket unless another gate has replaced it."""
        if self.path is not None and self._is_here():
            with suppress(OSError):
                self.path.unlink()
        for listener in (self._listener, self._named):
            if listener is not None:
                self._loop.remove_reader(listener.fileno())
        if self._listener is not None:
            self._listener.close()
        self._listener = self._named = self.path = None

    def _is_here(self) -> bool:
        if self.path is None or self._file is None:
            return False
        try:
            return os.path.samestat(self._file, self.path.lstat())
        except OSError:
            return False

    def _settle(self) -> None:
        """Listen at the first available place, unless it is the present one."""
        faults = []
        for place in self._places:
            if place == self.path and self._is_here():
                break
            try:
                self._move(place)
                break
            except (OSError, UnsafePath) as error:
                faults.append(str(error))
        else:
            self.path = None
        self._fault = faults[0] if faults else ""

    def _move(self, place: Path) -> None:
        listener = _listen(place)
        old, old_path, was_here = self._listener, self.path, self._is_here()
        self._listener, self.path, self._file = listener, place, place.lstat()
        self._attend(listener)
        if old is not None:
            self._accept(old)  # the callers that are in its backlog already
            self._loop.remove_reader(old.fileno())
            old.close()
        if was_here and old_path is not None:
            with suppress(OSError):
                old_path.unlink()

    # -- callers --------------------------------------------------------------------------------

    def _attend(self, listener: socket.socket) -> None:
        if listener in (self._listener, self._named):
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(BURST):
            if not _has_room(listener) and not self._server.drop_oldest():
                self._rest(listener)
                return
            try:
                line, _address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                self._rest(listener)
                return
            self._take_in(line, listener)

    def _rest(self, listener: socket.socket) -> None:
        """Stop polling for callers for a while; they wait in the backlog."""
        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(PAUSE_S, self._attend, listener)

    def _take_in(self, line: socket.socket, listener: socket.socket) -> None:
        line.settimeout(0)
        # Anybody can connect to the abstract socket; at the path, others get a written refusal.
        if listener is self._named and not peer_of(line).is_trusted:
            line.close()
            return
        self._server.handle_stream(IOStream(line), cast(Any, ""))


def _has_room(listener: socket.socket) -> bool:
    """Whether descriptors are left for a caller; the kernel gives the lowest that is free."""
    try:
        free = os.dup(listener.fileno())
    except OSError:
        return False
    os.close(free)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or free < max(limit - RESERVED, limit // 2)


def _listen(place: Path) -> socket.socket:
    """Listen on a socket in a folder of the user; an abandoned socket is replaced."""
    check_length(place)
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        check_own(place.parent, f"the folder of the socket ({SOCKET_VARIABLE})", closed=True)
        if not stat.S_ISSOCK(place.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "is not a socket", str(place))
        if _is_answered(place):
            raise OSError(
                errno.EADDRINUSE, "the gate of another home directory listens there", str(place)
            )
        place.unlink()
    except FileNotFoundError:
        if not place.parent.is_dir():
            raise
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.settimeout(0)
        listener.bind(str(place))
        place.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _is_answered(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(place))
        except BlockingIOError:
            return True  # its backlog is full
        except OSError:
            return False
    return True
