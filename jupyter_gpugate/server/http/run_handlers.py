"""Handlers of the calls about runs: submit, list, show, stop, remove."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from jupyter_gpugate.runs import reading
from jupyter_gpugate.runs.life import ENDED
from jupyter_gpugate.runs.record import RunRow
from jupyter_gpugate.server.http import shapes
from jupyter_gpugate.server.http.api import ApiHandler
from jupyter_gpugate.server.http.attempts import attempt_rows
from jupyter_gpugate.server.http.compose import run_answer
from jupyter_gpugate.server.http.contract import call
from jupyter_gpugate.server.http.encode import encode, fields_of
from jupyter_gpugate.server.http.run_answers import (
    AttemptsAnswer,
    DeleteAnswer,
    DetachAnswer,
    EpisodesAnswer,
    ExportAnswer,
    RunsAnswer,
    StoryAnswer,
    SubmitAnswer,
)
from jupyter_gpugate.server.http.run_body import RunBody, submitted_fields
from jupyter_gpugate.server.http.wire import OutputQuery, PollQuery, RunsQuery

#: Clients that prefer an early answer get one after this time.
AT_ONCE_S = 0.5


class RunsHandler(ApiHandler):
    """All runs: submit one, list them."""

    path = "/runs"

    @call(shapes.SubmitAnswer, body=RunBody, statuses=(202, 200), errors=(409, 429))
    async def post(self, body: BaseModel) -> None:
        """Queue a run; nothing is executed before the answer."""
        fields = submitted_fields(body)
        if self._prefers_an_answer():
            self.set_header("Preference-Applied", "respond-async")
            submitted = await self.launcher.intake.submit_within(fields, AT_ONCE_S)
        else:
            submitted = await self.launcher.intake.submit(fields)
        if submitted is None:
            reads = self.launcher.intake.reads(fields.get("idempotency_key") or "")
            self.set_status(202)
            self.answer(SubmitAnswer(None, "reading" if reads else "asking", None))
            return
        run_id, new = submitted
        self.set_status(202 if new else 200)
        run = None if new else await run_answer(self.gate, self.records, run_id)
        repeats = self.records.known(run_id).spec.get("repeats") or None
        self.answer(SubmitAnswer(run_id, run.status if run else "queued", repeats))

    def _prefers_an_answer(self) -> bool:
        """Return whether the caller prefers an early answer to the result (RFC 7240)."""
        wishes = ",".join(self.request.headers.get_list("Prefer")).lower().split(",")
        return any(wish.partition(";")[0].strip() == "respond-async" for wish in wishes)

    @call(shapes.RunsAnswer, query=RunsQuery)
    async def get(self, asked: RunsQuery) -> None:
        """All runs, by pages that do not shift when runs are added or removed."""
        await self.launcher.inventory.whole.wait()
        rows = sorted(self.records.rows(), key=_place, reverse=asked.sort == "newest")
        if asked.cursor is not None:
            last = _place_of(asked.cursor)
            newest = asked.sort == "newest"
            rows = [r for r in rows if (_place(r) < last if newest else _place(r) > last)]
        rows = [row for row in rows if _is_asked_for(row, asked)]
        page = rows[: asked.limit]
        following = _cursor_at(page[-1]) if len(rows) > asked.limit else None
        self.answer(RunsAnswer(page, following))


def _is_asked_for(row: RunRow, asked: RunsQuery) -> bool:
    statuses = (row.status, row.end, "ended" if row.status == ENDED else "unfinished")
    return (
        asked.status in (None, *statuses)
        and asked.name in (None, row.name)
        and asked.group in (None, row.group)
        and (asked.run in (None, row.name) or _begins_or_ends(row.run_id, asked.run))
    )


def _begins_or_ends(run_id: str, part: str) -> bool:
    """Return whether an id begins like this, or has these five letters."""
    return run_id.startswith(part) or run_id.rpartition("-")[2] == part


def _place(row: RunRow) -> tuple[float, str]:
    """Return the sort key of a run, which never changes."""
    return row.submitted, row.run_id


def _cursor_at(row: RunRow) -> str:
    return f"{row.submitted:.9f}~{row.run_id}"


def _place_of(cursor: str) -> tuple[float, str]:
    submitted, _, run_id = cursor.partition("~")
    return float(submitted), run_id


class RunHandler(ApiHandler):
    """One run."""

    path = "/runs/{run_id}"

    @call(shapes.RunAnswer, query=PollQuery)
    async def get(self, run_id: str, asked: PollQuery) -> None:
        """One run: its record and its current state at the gate."""

        async def make() -> tuple[Any, Any]:
            answer = await run_answer(self.gate, self.records, run_id)
            fields = fields_of(answer).items()
            return answer, {k: v for k, v in fields if k not in ("waited_s", "started_s")}

        def stamp() -> tuple[Any, ...]:
            return self.stamp_of(run_id)

        await self.polled(asked, make, (self.path, run_id), stamp)

    @call(shapes.DeleteAnswer, errors=(409,))
    async def delete(self, run_id: str) -> None:
        """Remove an ended run and its directory."""
        left = await self.launcher.orders.delete(run_id)
        self.answer(DeleteAnswer(deleted=True, left=left or None))


class OutputHandler(ApiHandler):
    """A run's output from a byte on."""

    path = "/runs/{run_id}/output"

    @call(shapes.OutputAnswer, query=OutputQuery)
    async def get(self, run_id: str, asked: OutputQuery) -> None:
        """At most 64 KiB of the newest attempt's output."""
        self.answer(await reading.output_of(self.records.known(run_id), asked.start))


class CancelHandler(ApiHandler):
    """The stop of one run."""

    path = "/runs/{run_id}/cancel"

    @call(shapes.CancelAnswer, errors=(409,))
    async def post(self, run_id: str) -> None:
        """Stop a run, and wait until none of its processes is left."""
        self.answer(await self.launcher.orders.cancel(run_id))


class DetachHandler(ApiHandler):
    """The detachment of one run from its notebook."""

    path = "/runs/{run_id}/detach"

    @call(shapes.DetachAnswer, errors=(409,))
    async def post(self, run_id: str) -> None:
        """Detach a run: it goes on when the notebook that waits for it ends."""
        await self.launcher.orders.detach(run_id)
        self.answer(DetachAnswer(detached=True))


class AttemptsHandler(ApiHandler):
    """A run's attempts."""

    path = "/runs/{run_id}/attempts"

    @call(shapes.AttemptsAnswer)
    async def get(self, run_id: str) -> None:
        """Each attempt: its charges, its peaks, and how it ended."""
        record = self.records.known(run_id)
        self.answer(AttemptsAnswer(await attempt_rows(self.gate, record)))


class EpisodesHandler(ApiHandler):
    """A run's finished episodes, attempt by attempt."""

    path = "/runs/{run_id}/episodes"

    @call(shapes.EpisodesAnswer)
    async def get(self, run_id: str) -> None:
        """The values that episodes kept, and how they ended."""
        episodes, left_out = await reading.episodes_of(self.records.known(run_id))
        # There may be very many, and others wait for this loop.
        self.finish(await asyncio.to_thread(encode, EpisodesAnswer(episodes, left_out)))


class ExportHandler(ApiHandler):
    """Everything recorded about one run, except its environment and values."""

    path = "/runs/{run_id}/export"

    @call(shapes.ExportAnswer)
    async def get(self, run_id: str) -> None:
        """Specification, summary, episodes, the beginning of the output, and story."""
        exported = await reading.export_of(self.records.known(run_id))
        self.answer(ExportAnswer(**vars(exported), story=await self.gate.story(run_id)))


class StoryHandler(ApiHandler):
    """The events of one run at the gate, from its request to its end."""

    path = "/runs/{run_id}/story"

    @call(shapes.StoryAnswer)
    async def get(self, run_id: str) -> None:
        """The events of one run, with their wall times."""
        self.records.known(run_id)
        self.answer(StoryAnswer(await self.gate.story(run_id)))
