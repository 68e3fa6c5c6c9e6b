"""Finished pages for the scripts of cards and panels: the same words as everywhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jupyter_gpugate.core.reports import Status
from jupyter_gpugate.faces import card, tables
from jupyter_gpugate.runs import reading
from jupyter_gpugate.runs.life import ENDED
from jupyter_gpugate.server.http import shapes
from jupyter_gpugate.server.http.answers import CardAnswer, CardRest, PanelAnswer
from jupyter_gpugate.server.http.api import ApiHandler
from jupyter_gpugate.server.http.compose import queue_answer, run_answer
from jupyter_gpugate.server.http.contract import call
from jupyter_gpugate.server.http.encode import as_json
from jupyter_gpugate.server.http.polls import essence_of
from jupyter_gpugate.server.http.run_answers import RunAnswer
from jupyter_gpugate.server.http.wire import CardQuery, PollQuery


class CardHandler(ApiHandler):
    """The card of one run, and its available orders."""

    path = "/runs/{run_id}/card"

    @call(shapes.CardAnswer, query=CardQuery)
    async def get(self, run_id: str, asked: CardQuery) -> None:
        """A run's card as a finished page, and its available orders."""

        async def make() -> tuple[Any, Any]:
            run = await run_answer(self.gate, self.records, run_id)
            record = self.records.known(run_id)
            waited_for = self.launcher.waited_for.has(record)
            rest = None
            # Without the cell that shows the rest below its card, the card shows all.
            if asked.until is not None and waited_for:
                run = replace(run, output_tail=reading.output_tail(record, asked.until))
                if asked.rest is not None:
                    output = reading.output_from(record, asked.rest)
                    rest = CardRest(asked.rest, card.rest_html(as_json(run), output))
            answer = CardAnswer(
                run_id=run_id,
                status=run.status,
                html=card.html(as_json(run), commands=False),
                rest=rest,
                orders=_orders(run, waited_for=waited_for),
            )
            return answer, answer

        def stamp() -> tuple[Any, ...]:
            return self.stamp_of(run_id)

        await self.polled(asked, make, (self.path, run_id, asked.until, asked.rest), stamp)


class PanelHandler(ApiHandler):
    """The snapshot as a table, and its runs that can be stopped."""

    path = "/panel"

    @call(shapes.PanelAnswer, query=PollQuery)
    async def get(self, asked: PollQuery) -> None:
        """The snapshot as a finished page."""

        async def make() -> tuple[Any, Any]:
            snapshot = await queue_answer(self.gate, self.records, self.caller.name)
            queued: dict[str, Status] = {row.run_id: "queued" for row in snapshot.queued}
            active: dict[str, Status] = {row.run_id: "active" for row in snapshot.running}
            page = tables.queue(as_json(snapshot))["text/html"]
            return PanelAnswer(page, active | queued), essence_of(snapshot)

        await self.polled(asked, make, self.path)


def _orders(run: RunAnswer, *, waited_for: bool) -> tuple[str, ...]:
    if run.status == ENDED or run.cancel_requested:
        return ()
    return ("detach", "cancel") if waited_for else ("cancel",)
