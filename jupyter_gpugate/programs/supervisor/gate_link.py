"""Messages to the gate over its unix socket."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from .attempt_files import CHUNK, as_json

OK, CONFLICT = 200, 409
GONE = 410  # a device has disappeared since the grant; the body says which


class Answer(NamedTuple):
    """An answer of the gate to one message; status 0: none that could be understood."""

    message: str
    status: int
    body: dict[str, Any]


def post(path: str, message: str, body: dict[str, Any]) -> Answer:
    """Ask the gate once over its unix socket; raise OSError or ValueError without an answer.

    A path that begins with "@" is a name that the kernel keeps.  Any user may take one, so the
    process at the other end must be this user's or root's.

    Written out because http.client costs 6 MB and 18 ms; HTTP/1.0 has no chunks.
    """
    content = as_json(body)
    head = (
        f"POST /lease/v1/{message} HTTP/1.0\r\nHost: gpugate\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10.0)
        link.connect("\0" + path[1:] if path.startswith("@") else path)
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] not in (0, os.geteuid()):
            raise PermissionError(path)
        link.sendall(head.encode() + content)
        answer = b""
        while chunk := link.recv(CHUNK):
            answer += chunk
    status_line, _, rest = answer.partition(b"\r\n")
    status = int(status_line.split()[1]) if status_line.startswith(b"HTTP/") else 0
    data = json.loads(rest.partition(b"\r\n\r\n")[2]) if status in (OK, GONE) else {}
    return Answer(message, status, data if isinstance(data, dict) else {})


class GateLink:
    """Sends one message at a time, each in a thread of its own; failures wait longer and longer."""

    def __init__(self, path: str, wake: Callable[[], object], others: Iterable[str] = ()) -> None:
        self._paths, self._wake = (path, *others), wake
        self._thread: threading.Thread | None = None
        self._answer: Answer | None = None
        self._delay_s = self._not_before = 0.0

    @property
    def is_busy(self) -> bool:
        return self._thread is not None

    def ask(self, message: str, body: Callable[[], dict[str, Any]], now: float) -> bool:
        """Send a message unless another is under way or the last failure is too young."""
        if self._thread is not None or now < self._not_before:
            return False
        thread = threading.Thread(target=self._run, args=(message, body()), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the run has used up every process there may be
            self._wait_longer(now)
            return False
        self._thread = thread
        return True

    def take(self, now: float) -> Answer | None:
        """Return the answer once it is there; any but 200 and 409 means: ask again, later."""
        if self._thread is None or self._answer is None:
            return None
        self._thread.join()  # no other thread is left when the workers are forked
        answer, self._thread, self._answer = self._answer, None, None
        if answer.status in (OK, CONFLICT):
            self._delay_s = 0.0
        else:
            self._wait_longer(now)
        return answer

    def _wait_longer(self, now: float) -> None:
        self._delay_s = min(5.0, max(0.2, 2 * self._delay_s))
        self._not_before = now + self._delay_s * (0.5 + os.urandom(1)[0] / 512)

    def _run(self, message: str, body: dict[str, Any]) -> None:
        answer = Answer(message, 0, {})
        for path in self._paths:
            with suppress(Exception):  # any failure means that there is no answer
                answer = post(path, message, body)
                break
        self._answer = answer
        with suppress(BlockingIOError):  # awake already
            self._wake()
