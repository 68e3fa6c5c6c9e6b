"""Names the caller of each request on a gate's socket, and admits those whom the gate serves."""

from __future__ import annotations

import contextlib
import socket

from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError

from jupyter_gpugate.proc import Caller, peer_of, start_ticks


class Door:
    """Admits the processes of one user, and those of root, which act for this user.

    The kernel names the process at the other end of a unix socket; nothing in a request does.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def admit(self, request: HTTPServerRequest) -> Caller:
        """Return the caller; raise `HTTPError` (403) for a process of anybody else, or over TCP."""
        line = getattr(getattr(request.connection, "stream", None), "socket", None)
        peer = peer_of(line) if line is not None and line.family == socket.AF_UNIX else None
        if peer is None or not peer.is_trusted:
            raise HTTPError(403, "this socket belongs to another user")
        ticks = None
        with contextlib.suppress(OSError):  # no descriptor is left to look with
            ticks = start_ticks(peer.pid)
        return Caller(peer.uid, peer.pid, ticks, self.owner)
