"""Finished pages for the scripts of cards and panels: the same words as everywhere else."""

from __future__ import annotations

from typing import Any

from jupyter_gpugate.faces import card, tables
from jupyter_gpugate.runs.record import ENDED
from jupyter_gpugate.server.http import shapes
from jupyter_gpugate.server.http.answers import essence_of, queue_answer, run_answer
from jupyter_gpugate.server.http.api import ApiHandler
from jupyter_gpugate.server.http.contract import call
from jupyter_gpugate.server.http.wire import CardQuery, PollQuery


class CardHandler(ApiHandler):
    """The card of one run, and its available orders."""

    path = "/runs/{run_id}/card"

    @call(shapes.CardAnswer, query=CardQuery)
    async def get(self, run_id: str, asked: CardQuery) -> None:
        """A run's card as a finished page, and its available orders."""

        async def make() -> tuple[Any, Any]:
            run = await run_answer(self.gate, self.launcher, run_id)
            rest = None
            # Without the cell that shows the rest below its card, the card shows all.
            if asked.until is not None and self.launcher.is_waited_for(run_id):
                record = self.launcher.known(run_id)
                run["output_tail"] = self.launcher.output_tail(record, asked.until)
                if asked.rest is not None:
                    output = self.launcher.output_from(record, asked.rest)
                    rest = {"start": asked.rest, "html": card.rest_html(run, output)}
            answer = {
                "run_id": run_id,
                "status": run["status"],
                "html": card.html(run, commands=False),
                "rest": rest,
                "orders": _orders(run, waited_for=self.launcher.is_waited_for(run_id)),
            }
            return answer, answer

        def stamp() -> tuple[Any, ...]:
            return self.launcher.stamp(run_id)

        await self.polled(asked, make, (self.path, run_id, asked.until, asked.rest), stamp)


class PanelHandler(ApiHandler):
    """The snapshot as a table, and its runs that can be stopped."""

    path = "/panel"

    @call(shapes.PanelAnswer, query=PollQuery)
    async def get(self, asked: PollQuery) -> None:
        """The snapshot as a finished page."""

        async def make() -> tuple[Any, Any]:
            snapshot = await queue_answer(self.gate, self.launcher, self.caller.name)
            runs = {
                row["run_id"]: status
                for status, rows in (("active", "running"), ("queued", "queued"))
                for row in snapshot[rows]
            }
            answer = {"html": tables.queue(snapshot)["text/html"], "runs": runs}
            return answer, essence_of(snapshot)

        await self.polled(asked, make, self.path)


def _orders(run: dict[str, Any], *, waited_for: bool) -> list[str]:
    if run["status"] == ENDED or run["cancel_requested"]:
        return []
    return ["detach", "cancel"] if waited_for else ["cancel"]
