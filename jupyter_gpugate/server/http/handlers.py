"""The user API on the user's own socket: the run side's records beside what the gate says now."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from dataclasses import replace
from typing import Any

from tornado.web import RequestHandler

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.explaining.snapshot import inputs_of
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.server.http import shapes
from jupyter_gpugate.server.http.answers import (
    essence_of,
    estimate_answer,
    machine_answer,
    queue_answer,
)
from jupyter_gpugate.server.http.api import ApiHandler
from jupyter_gpugate.server.http.contract import call
from jupyter_gpugate.server.http.devices import (
    at_work,
    closes,
    device_named,
    present,
    refuse_another,
    refuse_closed_otherwise,
    refuse_hidden,
    resource_named,
    words_for,
)
from jupyter_gpugate.server.http.openapi import RUN_ID, document
from jupyter_gpugate.server.http.pages import CardHandler, PanelHandler
from jupyter_gpugate.server.http.run_handlers import (
    CancelHandler,
    DetachHandler,
    EpisodesHandler,
    ExportHandler,
    OutputHandler,
    RunHandler,
    RunsHandler,
    StoryHandler,
)
from jupyter_gpugate.server.http.services import Services
from jupyter_gpugate.server.http.wire import (
    DrainBody,
    EstimateQuery,
    ForgetQuery,
    LockBody,
    NameQuery,
    QueueQuery,
    ResourceQuery,
    RunBody,
    SamplesQuery,
    TransitionsQuery,
)


class QueueHandler(ApiHandler):
    """The snapshot."""

    path = "/queue"

    @call(shapes.QueueAnswer, query=QueueQuery)
    async def get(self, asked: QueueQuery) -> None:
        """What runs, what waits and why, and whose the memory is."""

        def make() -> tuple[Any, Any]:
            answer = queue_answer(self.gate, self.launcher, self.services.owner)
            if asked.inputs:
                gate = self.gate
                answer["inputs"] = inputs_of(gate.decided_state, gate.sample, gate.decided_at)
                answer["decisions"] = to_json(gate.decisions.grants)
            return answer, essence_of(answer)

        await self.polled(asked, make, (self.path, asked.inputs))


class EstimateHandler(ApiHandler):
    """What a run would need; nothing is started, loaded or reserved."""

    path = "/estimate"

    @call(shapes.EstimateAnswer, query=EstimateQuery, errors=(404,))
    async def get(self, asked: EstimateQuery) -> None:
        """What the newest run of a name would need, with other workers or devices if asked."""
        await self.launcher.history()
        newest = self.launcher.newest(asked.name)
        if newest is None:
            problem = f"no run is called {asked.name} yet"
            raise Refused(404, "not_found", problem, name=asked.name)
        request = newest.request
        gpus = request.gpus if asked.gpus is None else asked.gpus
        setting = replace(
            request.setting,
            workers=asked.workers or request.setting.workers,
            episodes=asked.episodes or request.setting.episodes,
        )
        request = replace(request, family=replace(request.family, gpus=gpus), setting=setting)
        self.finish(json.dumps(estimate_answer(self.gate, request)))

    @call(shapes.EstimateAnswer, body=RunBody)
    async def post(self, body: RunBody) -> None:
        """What a run with this body would need."""
        request = await self.launcher.request_of(body.model_dump(mode="json", by_alias=True))
        self.finish(json.dumps(estimate_answer(self.gate, request)))


class MachineHandler(ApiHandler):
    """Devices, readers, settings: what can be measured and enforced here."""

    path = "/machine"

    @call(shapes.MachineAnswer)
    def get(self) -> None:
        """What can be measured and enforced here."""
        self.finish(json.dumps(machine_answer(self.gate, self.launcher)))

    @call(shapes.ForgottenAnswer, query=ForgetQuery, errors=(409,))
    async def delete(self, asked: ForgetQuery) -> None:
        """Forget a device that was taken out of the machine for good, and is missing since."""
        uuid = device_named(self.gate, asked.forget, "forget")
        if self.gate.sample.device(uuid) is not None:
            raise Refused(409, "state", f"{uuid} is there: only a missing device is forgotten")
        await self.gate.record(ev.DeviceForgotten(self.gate.now(), uuid))
        self.finish({"forgotten": uuid})


class LockHandler(ApiHandler):
    """A lock for interactive use of a device or the machine: no run of this gate starts there."""

    path = "/lock"

    @call(shapes.LockAnswer, body=LockBody, errors=(409,))
    async def post(self, body: LockBody) -> None:
        """Keep this user's runs off a device, or all of them, while it is used by hand."""
        gate, owner = self.gate, self.services.owner
        resource = resource_named(gate, body.resource, present(gate))
        closed = closes(gate, resource)
        refuse_hidden(gate.state, resource, closed, body.visible)
        refuse_another(gate.state, resource, closed, owner)
        kernel = ProcessKey(body.kernel.pid, body.kernel.start_ticks) if body.kernel else None
        now = gate.now()
        opened = [r for r, lock in gate.state.locks.items() if lock.owner == owner]
        opened = [other for other in opened if other != resource]
        for other in opened:
            await gate.record(ev.Unlocked(now, other))
        await gate.record(ev.Locked(now, resource, owner, now + body.seconds, kernel))
        self.finish(
            {
                "locked": resource,
                "for_s": body.seconds,
                "name": words_for(gate.state, resource),
                "closes": sorted(closed),
                "opened": [words_for(gate.state, other) for other in opened],
                "at_work": at_work(gate.state, closed),
            }
        )

    @call(shapes.UnlockAnswer, query=ResourceQuery, errors=(409,))
    async def delete(self, asked: ResourceQuery) -> None:
        """Release a lock; without a resource, every lock of this user."""
        gate = self.gate
        own = [r for r, lock in gate.state.locks.items() if lock.owner == self.services.owner]
        if asked.resource or not own:
            resource = resource_named(gate, asked.resource, gate.state.locks or present(gate))
        else:
            resource = own[0]
        refuse_closed_otherwise(gate.state, resource)
        was_locked = resource in gate.state.locks
        await gate.record(ev.Unlocked(gate.now(), resource))
        name = words_for(gate.state, resource)
        self.finish({"unlocked": resource, "name": name, "was_locked": was_locked})


class DrainHandler(ApiHandler):
    """No new run of this gate starts."""

    path = "/drain"

    @call(shapes.DrainAnswer, body=DrainBody)
    async def post(self, body: DrainBody) -> None:
        """Start no new run of this gate; active runs go on to their end, or are stopped now."""
        await self.gate.record(ev.DrainChanged(self.gate.now(), draining=True, reason=body.reason))
        told: dict[str, Any] = {"draining": True}
        if body.stop_runs:
            # Nothing is granted any more: these are all that live.
            told |= await self._stop(list(self.gate.state.leases))
        self.finish(told)

    async def _stop(self, run_ids: list[str]) -> dict[str, Any]:
        stops = [self.launcher.cancel(run_id) for run_id in run_ids]
        ends = dict(zip(run_ids, await asyncio.gather(*stops, return_exceptions=True), strict=True))
        failed = {r: str(end) for r, end in ends.items() if isinstance(end, BaseException)}
        return {"stopped": [r for r in ends if r not in failed], "not_stopped": failed}

    @call(shapes.DrainAnswer)
    async def delete(self) -> None:
        """Take runs again."""
        await self.gate.record(ev.DrainChanged(self.gate.now(), draining=False))
        self.finish({"draining": False})


class CalibrationsHandler(ApiHandler):
    """What was learned, and forgetting it."""

    path = "/calibrations"

    @call(shapes.CalibrationsAnswer)
    def get(self) -> None:
        """What was learned, by the names of runs."""
        owner = self.services.owner
        names = [n for o, n in self.gate.state.calibration.names if o == owner]
        tracks = {
            name: [to_json(t) for t in self.gate.state.calibration.tracks(owner, name)]
            for name in names
        }
        self.finish(json.dumps({"calibrations": tracks}))

    @call(shapes.ForgottenAnswer, query=NameQuery)
    async def delete(self, asked: NameQuery) -> None:
        """Forget what belongs to a name."""
        forgotten = ev.CalibrationForgotten(self.gate.now(), self.services.owner, asked.name)
        await self.gate.record(forgotten)
        self.finish({"forgotten": asked.name})


class TransitionsHandler(ApiHandler):
    """What happens to runs, as it happens."""

    path = "/transitions"
    keeps_awake = False  # servers follow it for as long as they live

    @call(shapes.TransitionsAnswer, query=TransitionsQuery)
    async def get(self, asked: TransitionsQuery) -> None:
        """The transitions of runs since an answer before, as soon as there are any."""
        self.finish(await self.feed.since(asked.epoch, asked.after, asked.wait))


class SamplesHandler(ApiHandler):
    """What was read off the machine lately."""

    path = "/samples"

    @call(shapes.SamplesAnswer, query=SamplesQuery)
    def get(self, asked: SamplesQuery) -> None:
        """The last 600 readings, or those since an answer before."""
        self.finish(self.history.since(asked.since))


class OpenApiHandler(ApiHandler):
    """What this API takes and gives."""

    path = "/openapi.json"

    @call(shapes.OpenApiAnswer)
    def get(self) -> None:
        """The OpenAPI document of this API."""
        self.finish(described())


class NothingHere(ApiHandler):
    """Any other path."""

    async def prepare(self) -> None:
        self.fail(404, "not_found", f"there is nothing at {self.request.path}")


HANDLERS: tuple[type[ApiHandler], ...] = (
    RunsHandler,
    RunHandler,
    OutputHandler,
    CancelHandler,
    DetachHandler,
    EpisodesHandler,
    ExportHandler,
    StoryHandler,
    QueueHandler,
    EstimateHandler,
    MachineHandler,
    LockHandler,
    DrainHandler,
    CalibrationsHandler,
    TransitionsHandler,
    SamplesHandler,
    CardHandler,
    PanelHandler,
    OpenApiHandler,
)


@functools.cache
def described() -> str:
    """The OpenAPI document, made once."""
    return json.dumps(document(HANDLERS))


def api_routes(services: Services) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """The routes of the user API."""
    shared = {"services": services}
    routes: list[tuple[str, type[RequestHandler], dict[str, Any]]] = [
        (API_PATH + re.escape(handler.path).replace(r"\{run_id\}", f"({RUN_ID})"), handler, shared)
        for handler in HANDLERS
    ]
    return [*routes, (f"{API_PATH}/.*", NothingHere, shared)]
