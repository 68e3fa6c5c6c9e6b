"""Whether a service is ready: its URL answers or, without a URL, the gate says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .clock import awake_time

ASK_S = 1.0  # between an answer and the next question
ANSWER_S = 5.0  # an answer that takes longer is none
STRANGER_S = 1.0  # the same before the service has started, while nothing else is done
HEAD_BYTES = 4096  # the first line of an answer lies within
WARN_S = 60.0  # a URL that has answered otherwise for so long is named in a warning
FINE = range(200, 300)
#: "localhost" is never looked up: a name server may call any machine so.
LOCALHOST = ("127.0.0.1", "::1")


class Readiness:
    """Asks the URL of a service until it answers 2xx, in a thread of its own each time."""

    def __init__(
        self, launch: dict[str, Any], wake: Callable[[], object], warn: Callable[[str], object]
    ) -> None:
        self.is_service = bool(launch.get("service"))
        self.is_ready = False
        self._url: str | None = launch.get("ready_url") if self.is_service else None
        self._wake, self._warn = wake, warn
        self._thread: threading.Thread | None = None
        self._status: int | None = None
        self._ask_at = 0.0
        self._answers_since: float | None = None  # with something other than 2xx

    def is_taken(self) -> bool:
        """Return whether the URL answers before the service has started: then it is another's."""
        if self._url is None:
            return False
        with suppress(Exception):  # as in `_run`
            return status_of(self._url, STRANGER_S) in FINE
        return False

    def look(self, now: float, *, gate_says_so: bool) -> bool:
        """Ask, or take the answer; return whether it has become ready just now."""
        was_ready = self.is_ready
        if self.is_service and not was_ready:
            self.is_ready = gate_says_so or self._is_answered(now)
            if not self.is_ready and self._url and self._thread is None and now >= self._ask_at:
                self._ask(self._url, now)
        return self.is_ready and not was_ready

    def _is_answered(self, now: float) -> bool:
        """Return whether a question has been answered with 2xx."""
        if self._thread is None or self._status is None:
            return False
        self._thread.join()
        status, self._thread, self._status = self._status, None, None
        self._ask_at = now + ASK_S
        if status in FINE:
            return True
        self._note(status, now)
        return False

    def _note(self, status: int, now: float) -> None:
        """Warn once of a URL that answers, but not as a service that is ready."""
        if status == 0:
            self._answers_since = None
        elif self._answers_since is None:
            self._answers_since = now
        elif now - self._answers_since >= WARN_S:
            self._answers_since = float("inf")
            self._warn(
                f"{self._url} has answered {status} for {WARN_S:.0f} s: until it answers 2xx, the"
                " service counts as loading and nothing else starts on its GPU"
            )

    def _ask(self, url: str, now: float) -> None:
        thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the run has used up every process there may be
            self._ask_at = now + ASK_S
            return
        self._thread = thread

    def _run(self, url: str) -> None:
        status = 0
        with suppress(Exception):  # any failure means that it is not ready
            status = status_of(url)
        self._status = status
        with suppress(BlockingIOError):  # awake already
            self._wake()


def status_of(url: str, patience_s: float = ANSWER_S) -> int:
    """Return the status of one GET; 0 without an answer.

    Written out because http.client costs 6 MB.
    """
    authority, slash, path = url.partition("://")[2].partition("/")
    authority, question, query = authority.partition("?")
    target = f"{slash or '/'}{path}" if not question else f"/?{query}{slash}{path}"
    host, _, port = authority.rpartition(":")
    host = host.strip("[]")
    for address in LOCALHOST if host.lower() == "localhost" else (host,):
        with suppress(OSError):
            return _status_at(address, int(port), authority, target, patience_s)
    return 0


def _status_at(address: str, port: int, authority: str, target: str, patience_s: float) -> int:
    until = awake_time() + patience_s
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    request = f"GET {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
    with socket.socket(family) as link:
        link.settimeout(patience_s)
        link.connect((address, port))
        link.sendall(request.encode())
        head = b""
        while b"\n" not in head and len(head) < HEAD_BYTES and awake_time() < until:
            chunk = link.recv(HEAD_BYTES)
            if not chunk:
                break
            head += chunk
    words = head.partition(b"\n")[0].split()
    is_answer = len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit()
    return int(words[1]) if is_answer else 0
