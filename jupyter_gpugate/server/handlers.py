"""The user API on the user's own socket: the run side's records beside what the gate says now."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tornado.web import RequestHandler

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.model import ProcessKey
from jupyter_gpugate.core.protocol import API_PATH, to_json
from jupyter_gpugate.core.snapshot import inputs_of
from jupyter_gpugate.core.state import MACHINE
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.runs.record import ACTIVE, ENDED, QUEUED, Refused
from jupyter_gpugate.server.answers import (
    essence_of,
    estimate_answer,
    machine_answer,
    run_answer,
)
from jupyter_gpugate.server.api import ApiHandler
from jupyter_gpugate.server.wire import (
    BODY_LIMIT_BYTES,
    ENVIRONMENT_LIMIT_BYTES,
    DrainBody,
    LockBody,
    RunBody,
)

if TYPE_CHECKING:
    from jupyter_gpugate.server.host import Host

PAGE = 100


class RunsHandler(ApiHandler):
    """Submit, and history."""

    query = ("status", "name", "limit", "cursor", "sort")

    async def post(self) -> None:
        data = self.data()
        self._check_sizes(data)
        body: RunBody = self.validated(RunBody, data)
        run_id, new = await self.launcher.submit(body.model_dump(mode="json", by_alias=True))
        self.set_status(202 if new else 200)
        status = "queued" if new else run_answer(self.gate, self.launcher, run_id)["status"]
        self.finish({"run_id": run_id, "status": status})

    def _check_sizes(self, data: Any) -> None:
        environment = data.get("environment") if isinstance(data, dict) else None
        of_environment = len(json.dumps(environment)) if environment else 0
        rest = len(self.request.body) - of_environment
        for field, what, size, limit in (
            ("environment", "the environment", of_environment, ENVIRONMENT_LIMIT_BYTES),
            ("body", "the body without its environment", rest, BODY_LIMIT_BYTES),
        ):
            if size > limit:
                problem = f"{what} is over {limit >> 10} KiB: stage large inputs as files"
                raise Refused(413, "too_large", problem, field=field, size=size, limit=limit)

    def get(self) -> None:
        status = self.choice("status", ("", QUEUED, ACTIVE, ENDED))
        sort = self.choice("sort", ("newest", "oldest"))
        limit = self.whole("limit", PAGE, 1, 1000)
        name = self.get_query_argument("name", "")
        cursor = self.get_query_argument("cursor", "")
        rows = self.launcher.rows()  # newest first
        if sort == "oldest":
            rows = rows[::-1]
        if cursor:
            ids = [row["run_id"] for row in rows]
            if cursor not in ids:
                problem = f"cursor: there is no run {cursor} to go on from"
                raise Refused(400, "bad_request", problem, field="cursor", value=cursor)
            rows = rows[ids.index(cursor) + 1 :]
        rows = [r for r in rows if status in ("", r["status"]) and name in ("", r["name"])]
        page = rows[:limit]
        following = page[-1]["run_id"] if len(rows) > limit else None
        self.finish({"runs": page, "next_cursor": following})


class RunHandler(ApiHandler):
    """One run."""

    query = ("wait", "etag")

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

    query = ("from",)

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

    query = ("wait", "etag", "inputs")

    async def get(self) -> None:
        with_inputs = self.flag("inputs")

        def make() -> tuple[Any, Any]:
            answer = dict(self.gate.snapshot())
            if with_inputs:
                gate = self.gate
                answer["inputs"] = inputs_of(gate.decided_state, gate.sample, gate.decided_at)
                answer["decisions"] = to_json(gate.decisions.grants)
            return answer, essence_of(answer)

        await self.polled(make)


class EstimateHandler(ApiHandler):
    """What a run would need; nothing is started, loaded or reserved."""

    query = ("name", "workers", "gpus", "episodes")

    def get(self) -> None:
        """By name: the newest run of that name, with other workers or devices if asked."""
        name = self.get_query_argument("name")
        newest = self.launcher.newest(name)
        if newest is None:
            raise Refused(404, "not_found", f"no run is called {name} yet", name=name)
        request = newest.request
        workers = self.whole("workers", request.setting.workers, 1, 64)
        episodes = self.whole("episodes", request.setting.episodes, 1, 10_000_000)
        gpus = self.whole("gpus", request.gpus, 0, 64)
        request = replace(
            request,
            family=replace(request.family, gpus=gpus),
            setting=replace(request.setting, workers=workers, episodes=episodes),
        )
        self.finish(json.dumps(estimate_answer(self.gate, request)))

    async def post(self) -> None:
        data = self.data()
        body = self.validated(RunBody, data)
        request = await self.launcher.request_of(body.model_dump(mode="json", by_alias=True))
        self.finish(json.dumps(estimate_answer(self.gate, request)))


class MachineHandler(ApiHandler):
    """Devices, readers, settings: what can be measured and enforced here."""

    query = ("forget",)

    def get(self) -> None:
        self.finish(json.dumps(machine_answer(self.gate)))

    async def delete(self) -> None:
        """Forget a device that was taken out of the machine for good, and is missing since."""
        uuid = device_named(self.gate, self.get_query_argument("forget"), "forget")
        if self.gate.sample.device(uuid) is not None:
            raise Refused(409, "state", f"{uuid} is there: only a missing device is forgotten")
        await self.gate.record(ev.DeviceForgotten(self.gate.now(), uuid))
        self.finish({"forgotten": uuid})


class LockHandler(ApiHandler):
    """A device, or the whole machine, for interactive use."""

    query = ("resource",)

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
        return MACHINE if name in ("", MACHINE) else device_named(self.gate, name, "resource")


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

    query = ("name",)

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


def device_named(gate: GateLoop, name: str, field: str) -> str:
    """A device's UUID, by itself, its beginning, or the device's index."""
    inventory = gate.state.inventory
    for uuid, device in inventory.items():
        if name in (uuid, str(device.index)):
            return uuid
    matches = [uuid for uuid in inventory if name and uuid.startswith(name)]
    if len(matches) != 1:
        raise Refused(400, "bad_request", f"{field}: no device {name!r} here", field=field)
    return matches[0]


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
