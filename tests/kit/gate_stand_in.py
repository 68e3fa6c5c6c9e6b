"""A gate that is only a table of answers: the user API on a unix socket, for the clients' tests.

It answers by the documented contract and decides nothing: a test says how each run goes on.
"""

from __future__ import annotations

import json
import socketserver
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

API = "/gpugate/api/v1"
#: No test waits longer for anything.
PATIENCE_S = 60.0

State = dict[str, Any]


class Asked(NamedTuple):
    """One request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


class GateStandIn:
    """The table and the socket."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path
        self.asked: list[Asked] = []
        self.answered: list[Asked] = []
        self.runs: dict[str, State] = {}
        self.outputs: dict[str, str] = {}
        self.answers: dict[str, Any] = {"/queue": {}, "/machine": {}, "/estimate": {}}
        #: Called with the body of each submit; returns changes to the new run's state.
        self.on_submit: Callable[[Any], State] = lambda _body: {}
        #: Called with the run id of each cancel; returns the changes that it makes.
        self.on_cancel: Callable[[str], State] = lambda _run_id: {
            "status": "ended",
            "end": "cancelled",
        }
        #: (status, body) to give instead of an answer, by method and path.
        self.refusals: dict[tuple[str, str], tuple[int, Any]] = {}
        self._changed = threading.Condition()
        self._closing = False
        socket_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._server = _Server(str(socket_path), _Handler)
        self._server.gate = self
        socket_path.chmod(0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def put(self, run_id: str, **changes: Any) -> None:
        """Change a run's state; whoever waits for it is answered."""
        with self._changed:
            state = self.runs.setdefault(run_id, {"run_id": run_id, "status": "queued"})
            state.update(changes, etag=uuid.uuid4().hex)
            self._changed.notify_all()

    def wait_for(self, happened: Callable[[], Any]) -> Any:
        """Wait until a condition on this gate holds; fail when it never does."""
        with self._changed:
            assert self._changed.wait_for(happened, PATIENCE_S), "it never happened"
            return happened()

    def bodies(self, path: str) -> list[Any]:
        """Return the bodies of the posts to a path."""
        return [a.body for a in self.asked if a.method == "POST" and a.path == path]

    def polls(self, run_id: str) -> int:
        """Count the looks at a run that have arrived."""
        return sum(a.method == "GET" and a.path == f"/runs/{run_id}" for a in self.asked)

    def close(self) -> None:
        """Stop answering; requests in flight are cut off."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.socket_path.unlink(missing_ok=True)

    # -- what the handler asks ----------------------------------------------------------------

    def answer(self, asked: Asked) -> tuple[int, Any]:
        with self._changed:
            self.asked.append(asked)
            self._changed.notify_all()
        answer = self._answer_to(asked)
        self.answered.append(asked)
        return answer

    def _answer_to(self, asked: Asked) -> tuple[int, Any]:
        refusal = self.refusals.get((asked.method, asked.path))
        if refusal is not None:
            return refusal
        if (asked.method, asked.path) == ("GET", "/runs"):
            return 200, {"runs": self._listed(asked.query), "next_cursor": None}
        if asked.path == "/runs":
            return self._submitted(asked.body)
        if asked.path.startswith("/runs/"):
            return self._about_run(asked)
        return 200, self.answers[asked.path]

    def _submitted(self, body: Any) -> tuple[int, Any]:
        known = {s.get("key"): run_id for run_id, s in self.runs.items()}
        key = body.get("idempotency_key")
        if key in known:
            return 200, {"run_id": known[key], "status": "queued"}
        run_id = f"20261129-143600-{uuid.uuid4().hex[:5]}"
        self.put(run_id, name=body["name"], key=key, **self.on_submit(body))
        return 202, {"run_id": run_id, "status": "queued"}

    def _listed(self, query: dict[str, str]) -> list[State]:
        def is_asked_for(state: State) -> bool:
            status = "ended" if state["status"] == "ended" else "unfinished"
            return (
                query.get("status") in {None, status, state["status"], state.get("end")}
                and query.get("name") in {None, state.get("name")}
                and query.get("run") in {None, state.get("name"), state["run_id"]}
            )

        rows = [{"name": "", **state} for state in self.runs.values()]
        return [row for row in rows[::-1] if is_asked_for(row)][: int(query["limit"])]

    def _about_run(self, asked: Asked) -> tuple[int, Any]:
        _, _, run_id, *rest = asked.path.split("/")
        if run_id not in self.runs:
            return 404, {"error": "not_found", "message": f"there is no run {run_id}", "detail": {}}
        if asked.method != "GET":
            return 200, self._ordered(run_id, rest or ["delete"])
        if rest == ["attempts"]:
            return 200, {"attempts": []}
        if rest == ["output"]:
            return 200, self._output(run_id, int(asked.query.get("from", 0)))
        return self._state(run_id, asked.query)

    def _ordered(self, run_id: str, order: list[str]) -> dict[str, Any]:
        if order == ["delete"]:
            del self.runs[run_id]
            return {"deleted": True, "left": None}
        if order == ["detach"]:
            self.put(run_id, detached=True)
            return {"detached": True}
        self.put(run_id, **self.on_cancel(run_id))
        stopped = {"means": "term", "ms": 12, "survivors": []}
        return {"cancelled": True, "end": "cancelled", **stopped}

    def _output(self, run_id: str, start: int) -> dict[str, Any]:
        text = self.outputs.get(run_id, "")[start:]
        ended = self.runs[run_id]["status"] == "ended"
        return {"from": start, "next": start + len(text), "text": text, "ended": ended}

    def _state(self, run_id: str, query: dict[str, str]) -> tuple[int, Any]:
        def news() -> bool:
            return self._closing or self.runs[run_id]["etag"] != query.get("etag")

        with self._changed:
            self._changed.wait_for(news, float(query.get("wait", 0)))
            if self._closing:
                return 0, None
            state = dict(self.runs[run_id])
        return (304, state) if state["etag"] == query.get("etag") else (200, state)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = True
    request_queue_size = 64
    gate: GateStandIn


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = unquote(parts.path.removeprefix(API))
        status, answer = self.server.gate.answer(Asked(self.command, path, query, body))
        if status:
            self._send(status, answer)

    def _send(self, status: int, answer: Any) -> None:
        payload = b"" if status == 304 else json.dumps(answer).encode()
        try:
            self.send_response(status)
            if isinstance(answer, dict) and "etag" in answer:
                self.send_header("ETag", answer["etag"])
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)
        except BrokenPipeError:
            return


@contextmanager
def gate_at(socket_path: Path) -> Iterator[GateStandIn]:
    """Serve at a path for as long as the block lasts."""
    gate = GateStandIn(socket_path)
    try:
        yield gate
    finally:
        gate.close()
