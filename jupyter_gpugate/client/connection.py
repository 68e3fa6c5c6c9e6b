"""Asks the user's own gate over its unix socket: plain HTTP and JSON, standard library only."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Optional
from urllib.parse import quote, urlencode

from jupyter_gpugate.client import discovery
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.places import API_PATH

#: A long poll is answered after this many seconds at the latest.
POLL_S: Final = 25.0
_ANSWER_S: Final = 30.0
#: A cancel is answered when nothing of the run is left: after its grace, or later.
_STOPPING_S: Final = 60.0
#: Runs per page of a list.
_PAGE: Final = 500
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
_PATIENCE_S: Final = 60.0
#: Prefer an early answer to the result: reading sources may take a while.
_SOON: Final = {"Prefer": "respond-async"}
_DOING: Final = {"reading": "reading your sources", "asking": "waiting for the gate"}
#: Error codes of a gate that will soon accept submits again.
_PASSING: Final = frozenset({"starting", "stopping"})


class Answer(NamedTuple):
    """The gate's answer; ``body`` is None if nothing has changed (304)."""

    body: Optional[dict[str, Any]]
    etag: Optional[str]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float, closed: Callable[[], bool]) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s
        self._closed = closed

    def connect(self) -> None:
        self.sock = discovery.dial(self._path, self._timeout_s)
        # Seen here or by close() itself: one of the two always comes second.
        if self._closed():
            raise GateUnreachable("this client is closed")


class Client:
    """One user's gate.  A connection per request, so any thread may ask; `close` ends them all."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path
        self._lock = threading.Lock()
        self._in_flight: set[_UnixConnection] = set()
        self._closed = threading.Event()

    def submit(
        self,
        body: Mapping[str, Any],
        give_up: Callable[[], bool] = lambda: False,
        report: Callable[[str], None] = lambda _status: None,
    ) -> dict[str, Any]:
        """Queue a run; repeating it with the same ``idempotency_key`` queues nothing twice.

        ``report`` is called with the progress, such as "reading", until it is queued.  A gate that
        does not answer is asked again for a minute, unless ``give_up`` returns true.
        """
        status, since = "", time.monotonic()
        while True:
            try:
                answer = self._ask_again("POST", "/runs", body, give_up, _SOON)
            except GateUnreachable as error:
                if error.status or not status:
                    raise
                doing, seconds = _DOING.get(status, status), time.monotonic() - since
                raise GateUnreachable(f"still {doing} ({seconds:.0f} s): {error}") from None
            if answer.get("run_id"):
                return answer
            if status != answer.get("status"):
                status, since = str(answer.get("status")), time.monotonic()
                report(status)
            if self._closed.wait(_FIRST_PAUSE_S):
                raise GateUnreachable("this client is closed")

    def run(self, run_id: str, *, wait_s: float = 0.0, etag: Optional[str] = None) -> Answer:
        """Return a run's state; with ``wait_s`` only once it differs from ``etag``."""
        query = {"wait": f"{wait_s:g}", "etag": etag or ""} if wait_s else {}
        return self.ask("GET", f"/runs/{quote(run_id, safe='')}", query=query, extra_s=wait_s)

    def output(self, run_id: str, start: int = 0) -> dict[str, Any]:
        """Return ``{"from", "next", "text", "ended"}``: the output from byte ``start`` on."""
        return self._body("GET", f"/runs/{quote(run_id, safe='')}/output", query={"from": start})

    def cancel(self, run_id: str) -> dict[str, Any]:
        """Stop a run for certain; the answer says by what means and in how many ms."""
        path = f"/runs/{quote(run_id, safe='')}/cancel"
        return self._body("POST", path, body={}, extra_s=_STOPPING_S)

    def detach(self, run_id: str) -> dict[str, Any]:
        """Detach a run: it outlives the process that submitted it."""
        return self._body("POST", f"/runs/{quote(run_id, safe='')}/detach", body={})

    def group(self, group: str, *, wait_s: float = 0.0, etag: Optional[str] = None) -> Answer:
        """Return a group's state; with ``wait_s`` only once it differs from ``etag``."""
        query = {"wait": f"{wait_s:g}", "etag": etag or ""} if wait_s else {}
        return self.ask("GET", f"/groups/{quote(group, safe='')}", query=query, extra_s=wait_s)

    def cancel_group(self, group: str) -> dict[str, Any]:
        """Stop all runs of a group for certain."""
        path = f"/groups/{quote(group, safe='')}/cancel"
        return self._body("POST", path, body={}, extra_s=_STOPPING_S)

    def detach_group(self, group: str) -> dict[str, Any]:
        """Detach all runs of a group."""
        return self._body("POST", f"/groups/{quote(group, safe='')}/detach", body={})

    def delete(self, run_id: str) -> dict[str, Any]:
        """Remove an ended run and its directory."""
        return self._body("DELETE", f"/runs/{quote(run_id, safe='')}")

    def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """Return the attempts of a run, in order; a gate of an older version reports none."""
        try:
            answer = self._body("GET", f"/runs/{quote(run_id, safe='')}/attempts")
        except GateError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return []
        return list(answer["attempts"])

    def runs(self, most: Optional[int] = None, **asked: str) -> list[dict[str, Any]]:
        """Return the newest runs, at most ``most`` of them; ``asked`` may have name or status."""
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = dict(asked)
        while most is None or len(found) < most:
            query["limit"] = _PAGE if most is None else min(_PAGE, most - len(found))
            page = self._body("GET", "/runs", query=query)
            found += page["runs"]
            if not page.get("next_cursor"):
                break
            query["cursor"] = page["next_cursor"]
        return found

    def queue(self) -> dict[str, Any]:
        """Return the snapshot: who runs, who waits and why, whose the memory is."""
        return self._body("GET", "/queue")

    def estimate(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the estimate of a run of this name (and workers, gpus, ...); starts nothing."""
        return self._body("GET", "/estimate", query=question)

    def lock(
        self,
        resource: str,
        seconds: float,
        kernel: Mapping[str, Any],
        visible: Optional[str] = None,
    ) -> dict[str, Any]:
        """Keep a device ("": the machine) free of new runs, until ``kernel`` ends at the latest.

        ``visible`` is the mask of the devices that this process sees, if it has one.
        """
        body: dict[str, Any] = {"resource": resource, "seconds": seconds, "kernel": kernel}
        if visible is not None:
            body["visible"] = visible
        return self._body("POST", "/lock", body=body)

    def unlock(self, resource: str) -> dict[str, Any]:
        """Give a lock back."""
        return self._body("DELETE", "/lock", query={"resource": resource} if resource else None)

    def machine(self) -> dict[str, Any]:
        """Return everything that can be measured and enforced on this machine."""
        return self._body("GET", "/machine")

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Optional[Mapping[str, Any]] = None,
        query: Optional[Mapping[str, Any]] = None,
        extra_s: float = 0.0,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Answer:
        """Send one request.

        Raises `GateUnreachable` where it may be repeated (no answer, or 5xx), `GateError` where
        the gate refused it.
        """
        target = API_PATH + path + (f"?{urlencode(query)}" if query else "")
        connection = _UnixConnection(self.socket_path, _ANSWER_S + extra_s, self.is_closed)
        sent = {"Content-Type": "application/json", **(headers or {})}
        self._register(connection)
        try:
            connection.request(method, target, _encoded(body), sent)
            response = connection.getresponse()
            return _answer(response.status, response.read(), response.getheader("ETag"))
        except socket.timeout:
            raise GateUnreachable(
                f"the gate on {self.socket_path} has not answered for "
                f"{_ANSWER_S + extra_s:.0f} s: it, or the machine, is busy"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise GateUnreachable(
                f"the gate on {self.socket_path} does not answer: {error or 'closed'}"
            ) from None
        finally:
            self._forget(connection)

    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """End every request in flight, in any thread, and refuse further ones."""
        with self._lock:
            self._closed.set()
            for connection in self._in_flight:
                _hang_up(connection)

    def _body(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        return self.ask(method, path, **request).body or {}

    def _ask_again(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        give_up: Callable[[], bool],
        headers: Mapping[str, str],
    ) -> dict[str, Any]:
        pauses = Pauses()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._body(method, path, body=body, headers=headers)
            except GateUnreachable as error:
                # A gate that answers 503 has said why; silence and a change of host pass.
                final = bool(error.status) and error.code not in _PASSING
                if final or give_up() or time.monotonic() > deadline:
                    raise
                if self._closed.wait(pauses.next()):
                    raise

    def _register(self, connection: _UnixConnection) -> None:
        with self._lock:
            if self.is_closed():
                raise GateUnreachable("this client is closed")
            self._in_flight.add(connection)

    def _forget(self, connection: _UnixConnection) -> None:
        with self._lock:
            self._in_flight.discard(connection)
            connection.close()


class Pauses:
    """Seconds to wait between repetitions: 0.2, doubling, at most 5."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S

    def next(self) -> float:
        pause_s, self._pause_s = self._pause_s, min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        return pause_s


def connect(*, start: bool = True, give_up: Callable[[], bool] = lambda: False) -> Client:
    """Return a client of this user's gate; with ``start``, start one where there is none.

    Raises `GateError` where the gate is not this user's own or does not start.
    """
    path = discovery.find()
    if path is None and start:
        path = discovery.start_gate(give_up)
    if path is None:
        raise GateUnreachable(
            "no gate is running for this user: open a Jupyter server with jupyter_gpugate, or "
            "run `jupyter gpugate serve --user`"
        )
    return Client(path)


def _encoded(body: Optional[Mapping[str, Any]]) -> Optional[bytes]:
    return None if body is None else json.dumps(body).encode()


def _hang_up(connection: _UnixConnection) -> None:
    # shutdown() wakes a thread that waits in recv(); close() alone would leave it there.
    line: Optional[socket.socket] = connection.sock
    if line is not None:
        try:
            line.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def _answer(status: int, payload: bytes, etag: Optional[str]) -> Answer:
    if status == http.client.NOT_MODIFIED:
        return Answer(None, etag)
    try:
        body = json.loads(payload) if payload else {}
    except ValueError:
        body = {}
    if status < http.client.BAD_REQUEST and isinstance(body, dict):
        return Answer(body, etag)
    raise _refusal(status, body if isinstance(body, dict) else {})


def _refusal(status: int, body: Mapping[str, Any]) -> GateError:
    message = str(body.get("message") or f"the gate answered with status {status}")
    code = str(body.get("error") or status)
    if status >= http.client.INTERNAL_SERVER_ERROR:
        return GateUnreachable(message, code=code, status=status)
    return GateError(message, code=code, status=status, detail=body.get("detail") or {})
