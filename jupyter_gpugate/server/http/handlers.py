"""Handlers of the user API on the user's own socket, except those about runs."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel
from tornado.web import RequestHandler

from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.gate.port import LockRequest
from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.runs.requests import device_names, relevant_parameters
from jupyter_gpugate.server.http import shapes
from jupyter_gpugate.server.http.answers import (
    CalibrationsAnswer,
    DrainAndStopAnswer,
    DrainAnswer,
    ForgottenAnswer,
)
from jupyter_gpugate.server.http.api import ApiHandler
from jupyter_gpugate.server.http.compose import machine_answer, queue_answer, with_values
from jupyter_gpugate.server.http.contract import call
from jupyter_gpugate.server.http.group_handlers import (
    GroupCancelHandler,
    GroupCardHandler,
    GroupDetachHandler,
    GroupHandler,
)
from jupyter_gpugate.server.http.openapi import ID, NAMED, document
from jupyter_gpugate.server.http.pages import CardHandler, PanelHandler
from jupyter_gpugate.server.http.polls import essence_of
from jupyter_gpugate.server.http.run_body import RunBody, submitted_fields
from jupyter_gpugate.server.http.run_handlers import (
    AttemptsHandler,
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
    SamplesQuery,
    TransitionsQuery,
)


class QueueHandler(ApiHandler):
    """The snapshot."""

    path = "/queue"

    @call(shapes.QueueAnswer, query=QueueQuery)
    async def get(self, asked: QueueQuery) -> None:
        """Active runs, waiting runs with their reasons, and the holders of memory."""

        async def make() -> tuple[Any, Any]:
            owner = self.caller.name
            answer = await queue_answer(self.gate, self.records, owner, inputs=asked.inputs)
            return answer, essence_of(answer)

        await self.polled(asked, make, (self.path, asked.inputs))


def _varied(request: Request, asked: EstimateQuery) -> Request:
    """Return the request of a run with other workers, episodes or devices."""
    setting = replace(
        request.setting,
        workers=asked.workers or request.setting.workers,
        episodes=asked.episodes or request.setting.episodes,
    )
    gpus = request.gpus if asked.gpus is None else asked.gpus
    if asked.device or asked.device_model:
        chosen = device_names(asked.device or "")
        request = replace(request, device=chosen, model=asked.device_model or "")
        gpus = gpus if asked.gpus is not None else max(1, gpus)
    return replace(request, family=replace(request.family, gpus=gpus), setting=setting)


class EstimateHandler(ApiHandler):
    """The need of a run; nothing is started, loaded or reserved."""

    path = "/estimate"

    @call(shapes.EstimateAnswer, query=EstimateQuery, errors=(404,))
    async def get(self, asked: EstimateQuery) -> None:
        """The need of the newest run of a name, with other workers or devices if asked."""
        await self.launcher.inventory.whole.wait()
        newest = self.records.newest(asked.name)
        if newest is None:
            problem = f"there is no run with the name {asked.name}"
            raise Refused(404, "not_found", problem, name=asked.name)
        forecast = await self.gate.estimate(_varied(newest.request, asked))
        self.answer(with_values(forecast, relevant_parameters(newest.spec)))

    @call(shapes.EstimateAnswer, body=RunBody)
    async def post(self, body: BaseModel) -> None:
        """The need of a run with this body."""
        given = await self.launcher.intake.whole(submitted_fields(body))
        forecast = await self.gate.estimate(await self.launcher.intake.request_of(given))
        self.answer(with_values(forecast, relevant_parameters(given)))


class MachineHandler(ApiHandler):
    """Devices, readers and settings of this machine."""

    path = "/machine"

    @call(shapes.MachineAnswer)
    async def get(self) -> None:
        """Return everything that can be measured and enforced here."""
        self.answer(await machine_answer(self.gate, self.launcher.inventory))

    @call(shapes.ForgottenAnswer, query=ForgetQuery, errors=(409,))
    async def delete(self, asked: ForgetQuery) -> None:
        """Forget a missing device that was removed from the machine for good."""
        self.answer(ForgottenAnswer(await self.gate.forget_device(asked.forget)))


class LockHandler(ApiHandler):
    """A lock for interactive use of a device or the machine: no run of this gate starts there."""

    path = "/lock"

    @call(shapes.LockAnswer, body=LockBody, errors=(409,))
    async def post(self, body: LockBody) -> None:
        """Keep this user's runs off a device, or off all devices, during work by hand."""
        kernel = ProcessKey(body.kernel.pid, body.kernel.start_ticks) if body.kernel else None
        wanted = LockRequest(body.resource, body.seconds, kernel, body.visible)
        self.answer(await self.gate.lock(wanted))

    @call(shapes.UnlockAnswer, query=ResourceQuery, errors=(409,))
    async def delete(self, asked: ResourceQuery) -> None:
        """Release a lock; without a resource, every lock of this user."""
        self.answer(await self.gate.unlock(asked.resource))


class DrainHandler(ApiHandler):
    """A drain: the gate starts no new runs."""

    path = "/drain"

    @call(shapes.DrainAnswer, body=DrainBody)
    async def post(self, body: DrainBody) -> None:
        """Start no new run of this gate; active runs go on to their end, or are stopped now."""
        active = await self.gate.drain(body.reason)
        self.answer(await self._stop(active) if body.stop_runs else DrainAnswer(draining=True))

    async def _stop(self, run_ids: Sequence[str]) -> DrainAndStopAnswer:
        stops = [self.launcher.orders.cancel(run_id) for run_id in run_ids]
        ends = dict(zip(run_ids, await asyncio.gather(*stops, return_exceptions=True), strict=True))
        failed = {r: str(end) for r, end in ends.items() if isinstance(end, BaseException)}
        stopped = tuple(r for r in ends if r not in failed)
        return DrainAndStopAnswer(draining=True, stopped=stopped, not_stopped=failed)

    @call(shapes.DrainAnswer)
    async def delete(self) -> None:
        """End the drain; waiting runs can start again."""
        await self.gate.end_drain()
        self.answer(DrainAnswer(draining=False))


class CalibrationsHandler(ApiHandler):
    """The observations of all runs, by name."""

    path = "/calibrations"

    @call(shapes.CalibrationsAnswer)
    async def get(self) -> None:
        """All observations, by the names of runs."""
        self.answer(CalibrationsAnswer(await self.gate.calibrations()))

    @call(shapes.ForgottenAnswer, query=NameQuery)
    async def delete(self, asked: NameQuery) -> None:
        """Forget the observations of a name."""
        await self.gate.forget_calibration(asked.name)
        self.answer(ForgottenAnswer(asked.name))


class TransitionsHandler(ApiHandler):
    """The transitions of runs, as they happen."""

    path = "/transitions"
    keeps_awake = False  # servers follow it for as long as they live

    @call(shapes.TransitionsAnswer, query=TransitionsQuery)
    async def get(self, asked: TransitionsQuery) -> None:
        """The transitions of runs since an earlier answer, as soon as there is one."""
        self.answer(await self.feed.since(asked.epoch, asked.after, asked.wait))


class SamplesHandler(ApiHandler):
    """The newest readings of the machine."""

    path = "/samples"

    @call(shapes.SamplesAnswer, query=SamplesQuery)
    async def get(self, asked: SamplesQuery) -> None:
        """The last 600 readings, or those since an earlier answer."""
        self.answer(await self.gate.samples(asked.since))


class OpenApiHandler(ApiHandler):
    """The description of this API."""

    path = "/openapi.json"

    @call(shapes.OpenApiAnswer)
    def get(self) -> None:
        """The OpenAPI document of this API."""
        self.finish(described())


class NothingHere(ApiHandler):
    """Any other path."""

    async def prepare(self) -> None:
        self.fail(404, "not_found", f"there is no path {self.request.path}")


HANDLERS: tuple[type[ApiHandler], ...] = (
    RunsHandler,
    RunHandler,
    OutputHandler,
    CancelHandler,
    DetachHandler,
    AttemptsHandler,
    EpisodesHandler,
    ExportHandler,
    StoryHandler,
    GroupHandler,
    GroupCardHandler,
    GroupCancelHandler,
    GroupDetachHandler,
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


def _pattern(path: str) -> str:
    pattern = re.escape(path)
    for name in NAMED:
        pattern = pattern.replace(rf"\{{{name}\}}", f"({ID})")
    return pattern


def api_routes(services: Services) -> list[tuple[str, type[RequestHandler], dict[str, object]]]:
    """The routes of the user API."""
    shared: dict[str, object] = {"services": services}
    routes: list[tuple[str, type[RequestHandler], dict[str, object]]] = [
        (API_PATH + _pattern(handler.path), handler, shared) for handler in HANDLERS
    ]
    return [*routes, (f"{API_PATH}/.*", NothingHere, shared)]
