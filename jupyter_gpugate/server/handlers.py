"""The user API on the user's own socket: the run side's records beside what the gate says now."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tornado.web import RequestHandler

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.model import ProcessKey
from jupyter_gpugate.core.protocol import API_PATH, to_json
from jupyter_gpugate.core.snapshot import inputs_of
from jupyter_gpugate.core.state import MACHINE
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.server import shapes
from jupyter_gpugate.server.answers import (
    essence_of,
    estimate_answer,
    machine_answer,
)
from jupyter_gpugate.server.api import ApiHandler
from jupyter_gpugate.server.contract import call
from jupyter_gpugate.server.faces import CardHandler, PanelHandler
from jupyter_gpugate.server.openapi import RUN_ID, document
from jupyter_gpugate.server.run_handlers import (
    CancelHandler,
    DetachHandler,
    EpisodesHandler,
    ExportHandler,
    OutputHandler,
    RunHandler,
    RunsHandler,
    StoryHandler,
)
from jupyter_gpugate.server.wire import (
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

if TYPE_CHECKING:
    from jupyter_gpugate.server.host import Host


class QueueHandler(ApiHandler):
    """The snapshot."""

    path = "/queue"

    @call(shapes.QueueAnswer, query=QueueQuery)
    async def get(self, asked: QueueQuery) -> None:
        """What runs, what waits and why, and whose the memory is."""

        def make() -> tuple[Any, Any]:
            answer = dict(self.gate.snapshot())
            if asked.inputs:
                gate = self.gate
                answer["inputs"] = inputs_of(gate.decided_state, gate.sample, gate.decided_at)
                answer["decisions"] = to_json(gate.decisions.grants)
            return answer, essence_of(answer)

        await self.polled(asked, make)


class EstimateHandler(ApiHandler):
    """What a run would need; nothing is started, loaded or reserved."""

    path = "/estimate"

    @call(shapes.EstimateAnswer, query=EstimateQuery, errors=(404,))
    def get(self, asked: EstimateQuery) -> None:
        """What the newest run of a name would need, with other workers or devices if asked."""
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
        self.finish(json.dumps(machine_answer(self.gate)))

    @call(shapes.ForgottenAnswer, query=ForgetQuery, errors=(409,))
    async def delete(self, asked: ForgetQuery) -> None:
        """Forget a device that was taken out of the machine for good, and is missing since."""
        uuid = device_named(self.gate, asked.forget, "forget")
        if self.gate.sample.device(uuid) is not None:
            raise Refused(409, "state", f"{uuid} is there: only a missing device is forgotten")
        await self.gate.record(ev.DeviceForgotten(self.gate.now(), uuid))
        self.finish({"forgotten": uuid})


class LockHandler(ApiHandler):
    """A device, or the whole machine, for interactive use."""

    path = "/lock"

    @call(shapes.LockAnswer, body=LockBody, errors=(409,))
    async def post(self, body: LockBody) -> None:
        """Keep a device, or the whole machine, for interactive use."""
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

    @call(shapes.UnlockAnswer, query=ResourceQuery)
    async def delete(self, asked: ResourceQuery) -> None:
        """Give it back."""
        resource = self._resource(asked.resource)
        await self.gate.record(ev.Unlocked(self.gate.now(), resource))
        self.finish({"unlocked": resource})

    def _resource(self, name: str) -> str:
        return MACHINE if name in ("", MACHINE) else device_named(self.gate, name, "resource")


class DrainHandler(ApiHandler):
    """The machine takes no new runs."""

    path = "/drain"

    @call(shapes.DrainAnswer, body=DrainBody)
    async def post(self, body: DrainBody) -> None:
        """Take no new runs; what runs goes on to its end, or is stopped now."""
        await self.gate.record(ev.DrainChanged(self.gate.now(), draining=True, reason=body.reason))
        if body.stop_runs:
            # Nothing is granted any more: these are all that live.
            stops = [self.launcher.cancel(run_id) for run_id in self.gate.state.leases]
            await asyncio.gather(*stops, return_exceptions=True)
        self.finish({"draining": True})

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
        owner = self.host.owner
        names = [n for o, n in self.gate.state.calibration.names if o == owner]
        tracks = {
            name: [to_json(t) for t in self.gate.state.calibration.tracks(owner, name)]
            for name in names
        }
        self.finish(json.dumps({"calibrations": tracks}))

    @call(shapes.ForgottenAnswer, query=NameQuery)
    async def delete(self, asked: NameQuery) -> None:
        """Forget what belongs to a name."""
        forgotten = ev.CalibrationForgotten(self.gate.now(), self.host.owner, asked.name)
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


def api_routes(host: Host) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """The routes of the user API."""
    shared = {"host": host}
    routes: list[tuple[str, type[RequestHandler], dict[str, Any]]] = [
        (API_PATH + re.escape(handler.path).replace(r"\{run_id\}", f"({RUN_ID})"), handler, shared)
        for handler in HANDLERS
    ]
    return [*routes, (f"{API_PATH}/.*", NothingHere, shared)]
