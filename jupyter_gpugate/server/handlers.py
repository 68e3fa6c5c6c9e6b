"""The user API on the user's own socket: the run side's records beside what the gate says now."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from tornado.web import HTTPError, RequestHandler

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.model import ProcessKey
from jupyter_gpugate.core.protocol import API_PATH, to_json
from jupyter_gpugate.core.snapshot import inputs_of
from jupyter_gpugate.core.state import MACHINE
from jupyter_gpugate.gate.clock import boot_time
from jupyter_gpugate.gate.journal import JournalError
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.socket import peer_uid
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.server.answers import estimate_answer, machine_answer, run_answer
from jupyter_gpugate.server.wire import (
    BODY_LIMIT_BYTES,
    DrainBody,
    LockBody,
    RunBody,
    problem_of,
)

if TYPE_CHECKING:
    from jupyter_gpugate.server.host import Host

LONGEST_POLL_S = 60.0
#: A gate that takes up what is on the disk is waited for so long.
STARTING_S = 20.0
PAGE = 100


class ApiHandler(RequestHandler):
    """JSON in, JSON out; an error says what is wrong and where."""

    def initialize(self, host: Host) -> None:
        self.host = host

    @property
    def gate(self) -> GateLoop:
        if self.host.gate is None:
            raise HTTPError(503, "the gate is starting")
        return self.host.gate

    @property
    def launcher(self) -> Launcher:
        if self.host.launcher is None:
            raise HTTPError(503, "the gate is starting")
        return self.host.launcher

    async def prepare(self) -> None:
        self.host.touched_at = boot_time()
        if peer_uid(self) not in (os.getuid(), 0):
            raise HTTPError(403, "this socket belongs to another user")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.host.led.wait(), STARTING_S)

    def fail(self, status: int, error: str, message: str, /, **detail: Any) -> None:
        self.set_status(status)
        self.finish(json.dumps({"error": error, "message": message, "detail": detail}, default=str))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, Refused):
            if error.retry_after:
                self.set_header("Retry-After", error.retry_after)
            self.fail(error.status, error.error, str(error), **error.detail)
        elif isinstance(error, JournalError):
            self.fail(503, "journal", f"the gate cannot write its journal: {error}")
        else:
            words = {400: "bad_request", 403: "forbidden", 404: "not_found", 405: "bad_method"}
            message = getattr(error, "log_message", None) or self._reason
            self.fail(status_code, words.get(status_code, "internal"), str(message))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (Refused, JournalError)):
            super().log_exception(typ, value, tb)

    def data(self) -> Any:
        """The body as JSON data."""
        try:
            return json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise Refused(400, "bad_request", "the body is not JSON", field="body") from None

    def validated(self, kind: type[BaseModel], data: Any) -> Any:
        """The body as a model, or a refusal that names the field, the value and what is allowed."""
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            field, problem, value = problem_of(error)
            shown = repr(value)[:100]
            raise Refused(
                400, "bad_request", f"{field}: {problem}", field=field, value=shown
            ) from None

    def flag(self, name: str) -> bool:
        return self.get_query_argument(name, "") not in ("", "0", "false")

    def number(self, name: str, default: float, most: float) -> float:
        """A number of the query, within 0 and ``most``."""
        text = self.get_query_argument(name, "") or str(default)
        try:
            value = float(text)
        except ValueError:
            raise Refused(
                400, "bad_request", f"{name}: {text!r} is no number", field=name
            ) from None
        if not 0 <= value <= most:
            raise Refused(400, "bad_request", f"{name}: must be from 0 to {most:g}", field=name)
        return value

    async def polled(self, make: Any) -> None:
        """Answer with an ETag; with ``wait`` only once it differs from the caller's."""
        known = self.get_query_argument("etag", "") or self.request.headers.get("If-None-Match", "")
        deadline = boot_time() + self.number("wait", 0, LONGEST_POLL_S)
        while True:
            version = self.gate.version
            answer, essence = make()
            etag = tag_of(essence)
            left = deadline - boot_time()
            if etag != known or left <= 0:
                break
            await self.gate.changed(version, left)
        self.set_header("ETag", etag)
        self.set_header("Content-Type", "application/json")
        if etag == known:
            self.set_status(304)
            self.finish()
        else:
            self.finish(json.dumps(answer))


def tag_of(essence: Any) -> str:
    """An ETag of whatever counts as the answer's content."""
    digest = hashlib.blake2b(json.dumps(essence, sort_keys=True).encode(), digest_size=12)
    return f'"{digest.hexdigest()}"'


class RunsHandler(ApiHandler):
    """Submit, and history."""

    async def post(self) -> None:
        data = self.data()
        environment = data.get("environment") if isinstance(data, dict) else None
        rest = len(self.request.body) - len(json.dumps(environment) if environment else "")
        if rest > BODY_LIMIT_BYTES:
            raise Refused(
                413,
                "too_large",
                f"the body is over {BODY_LIMIT_BYTES // 1024} KiB: stage large inputs as files",
                size=rest,
                limit=BODY_LIMIT_BYTES,
            )
        body: RunBody = self.validated(RunBody, data)
        run_id, new = await self.launcher.submit(body.model_dump(mode="json", by_alias=True))
        self.set_status(202 if new else 200)
        status = "queued" if new else run_answer(self.gate, self.launcher, run_id)["status"]
        self.finish({"run_id": run_id, "status": status})

    def get(self) -> None:
        status = self.get_query_argument("status", "")
        name = self.get_query_argument("name", "")
        limit = int(self.number("limit", PAGE, 1000))
        cursor = self.get_query_argument("cursor", "")
        rows = self.launcher.rows()  # newest first
        if self.get_query_argument("sort", "newest") == "oldest":
            rows = rows[::-1]
        if cursor:
            ids = [row["run_id"] for row in rows]
            rows = rows[ids.index(cursor) + 1 :] if cursor in ids else []
        rows = [r for r in rows if status in ("", r["status"]) and name in ("", r["name"])]
        page = rows[:limit]
        following = page[-1]["run_id"] if len(rows) > limit else None
        self.finish({"runs": page, "next_cursor": following})


class RunHandler(ApiHandler):
    """One run."""

    async def get(self, run_id: str) -> None:
        def make() -> tuple[Any, Any]:
            answer = run_answer(self.gate, self.launcher, run_id)
            essence = {k: v for k, v in answer.items() if k not in ("waited_s", "started_s")}
            return answer, essence

        await self.polled(make)

    async def delete(self, run_id: str) -> None:
        await self.launcher.delete(run_id)
        self.finish({"deleted": True})


class OutputHandler(ApiHandler):
    """A run's output from a byte on."""

    async def get(self, run_id: str) -> None:
        start = int(self.number("from", 0, float(1 << 60)))
        self.finish(await self.launcher.output(run_id, start))


class CancelHandler(ApiHandler):
    """Stop a run for certain."""

    async def post(self, run_id: str) -> None:
        self.finish(await self.launcher.cancel(run_id))


class EpisodesHandler(ApiHandler):
    """A run's finished episodes, attempt by attempt."""

    async def get(self, run_id: str) -> None:
        self.finish({"episodes": await self.launcher.episodes(run_id)})


class ExportHandler(ApiHandler):
    """Everything on record about one run, but for its environment and values."""

    async def get(self, run_id: str) -> None:
        answer = await self.launcher.export(run_id)
        answer["story"] = await self.gate.story(run_id)
        self.finish(json.dumps(answer))


class StoryHandler(ApiHandler):
    """What happened to one run at the gate, from its request to its end."""

    async def get(self, run_id: str) -> None:
        self.launcher.known(run_id)
        self.finish({"story": await self.gate.story(run_id)})


class QueueHandler(ApiHandler):
    """The snapshot."""

    async def get(self) -> None:
        with_inputs = self.flag("inputs")

        def make() -> tuple[Any, Any]:
            answer = dict(self.gate.snapshot())
            if with_inputs:
                gate = self.gate
                answer["inputs"] = inputs_of(gate.decided_state, gate.sample, gate.decided_at)
                answer["decisions"] = to_json(gate.decisions.grants)
            return answer, [answer["tick"]]

        await self.polled(make)


class EstimateHandler(ApiHandler):
    """What a run would need; nothing is started, loaded or reserved."""

    def get(self) -> None:
        """By name: the newest run of that name, with other workers or devices if asked."""
        name = self.get_query_argument("name")
        newest = self.launcher.newest(name)
        if newest is None:
            raise Refused(404, "not_found", f"no run is called {name} yet", name=name)
        request = newest.request
        workers = int(self.number("workers", request.setting.workers, 64))
        episodes = int(self.number("episodes", request.setting.episodes, 10_000_000))
        gpus = int(self.number("gpus", request.gpus, 64))
        request = replace(
            request,
            family=replace(request.family, gpus=gpus),
            setting=replace(request.setting, workers=max(1, workers), episodes=max(1, episodes)),
        )
        self.finish(json.dumps(estimate_answer(self.gate, request)))

    async def post(self) -> None:
        data = self.data()
        body = self.validated(RunBody, data)
        request = await self.launcher.request_of(body.model_dump(mode="json", by_alias=True))
        self.finish(json.dumps(estimate_answer(self.gate, request)))


class MachineHandler(ApiHandler):
    """Devices, readers, settings: what can be measured and enforced here."""

    def get(self) -> None:
        self.finish(json.dumps(machine_answer(self.gate)))


class LockHandler(ApiHandler):
    """A device, or the whole machine, for interactive use."""

    async def post(self) -> None:
        body: LockBody = self.validated(LockBody, self.data())
        resource = self._resource(body.resource)
        now = self.gate.now()
        held = self.gate.state.locks.get(resource)
        if held is not None and held.owner != self.host.owner:
            raise Refused(409, "state", f"{resource} is locked by {held.owner}")
        kernel = ProcessKey(body.kernel.pid, body.kernel.start_ticks) if body.kernel else None
        for other in self.gate.state.locks.values():
            if other.owner == self.host.owner and other.resource != resource:
                await self.gate.record(ev.Unlocked(now, other.resource))
        event = ev.Locked(now, resource, self.host.owner, now + body.seconds, kernel)
        await self.gate.record(event)
        self.finish({"locked": resource, "for_s": body.seconds})

    async def delete(self) -> None:
        resource = self._resource(self.get_query_argument("resource", ""))
        await self.gate.record(ev.Unlocked(self.gate.now(), resource))
        self.finish({"unlocked": resource})

    def _resource(self, name: str) -> str:
        """A device by UUID, its beginning, or index; the machine where nothing is named."""
        if name in ("", MACHINE):
            return MACHINE
        for uuid, device in self.gate.state.inventory.items():
            if name == str(device.index) or uuid == name:
                return uuid
        matches = [u for u in self.gate.state.inventory if u.startswith(name)]
        if len(matches) != 1:
            raise Refused(
                400, "bad_request", f"resource: no device {name!r} here", field="resource"
            )
        return matches[0]


class DrainHandler(ApiHandler):
    """The machine takes no new runs."""

    async def post(self) -> None:
        body: DrainBody = self.validated(DrainBody, self.data())
        await self.gate.record(ev.DrainChanged(self.gate.now(), draining=True, reason=body.reason))
        self.finish({"draining": True})

    async def delete(self) -> None:
        await self.gate.record(ev.DrainChanged(self.gate.now(), draining=False))
        self.finish({"draining": False})


class CalibrationsHandler(ApiHandler):
    """What was learned, and forgetting it."""

    def get(self) -> None:
        owner = self.host.owner
        names = [n for o, n in self.gate.state.calibration.names if o == owner]
        tracks = {
            name: [to_json(t) for t in self.gate.state.calibration.tracks(owner, name)]
            for name in names
        }
        self.finish(json.dumps({"calibrations": tracks}))

    async def delete(self) -> None:
        name = self.get_query_argument("name")
        await self.gate.record(ev.CalibrationForgotten(self.gate.now(), self.host.owner, name))
        self.finish({"forgotten": name})


class NothingHere(ApiHandler):
    """Any other path."""

    async def prepare(self) -> None:
        self.fail(404, "not_found", f"there is nothing at {self.request.path}")


def api_routes(host: Host) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """The routes of the user API."""
    run = r"/runs/([A-Za-z0-9._-]{1,64})"
    handlers: list[tuple[str, type[RequestHandler]]] = [
        ("/runs", RunsHandler),
        (run, RunHandler),
        (f"{run}/output", OutputHandler),
        (f"{run}/cancel", CancelHandler),
        (f"{run}/episodes", EpisodesHandler),
        (f"{run}/export", ExportHandler),
        (f"{run}/story", StoryHandler),
        ("/queue", QueueHandler),
        ("/estimate", EstimateHandler),
        ("/machine", MachineHandler),
        ("/lock", LockHandler),
        ("/drain", DrainHandler),
        ("/calibrations", CalibrationsHandler),
        ("/.*", NothingHere),
    ]
    shared = {"host": host}
    return [(API_PATH + path, handler, shared) for path, handler in handlers]
