"""Handlers of the calls about groups of runs: show, stop, detach."""

from __future__ import annotations

from typing import Any

from jupyter_gpugate.faces import groups
from jupyter_gpugate.runs.life import ENDED
from jupyter_gpugate.server.http import shapes
from jupyter_gpugate.server.http.answers import GroupCardAnswer
from jupyter_gpugate.server.http.api import ApiHandler
from jupyter_gpugate.server.http.contract import call
from jupyter_gpugate.server.http.encode import as_json
from jupyter_gpugate.server.http.group_answers import GroupAnswer, GroupCancelAnswer
from jupyter_gpugate.server.http.groups import group_answer, group_stamp
from jupyter_gpugate.server.http.polls import essence_of
from jupyter_gpugate.server.http.run_answers import DetachAnswer
from jupyter_gpugate.server.http.wire import PollQuery


class GroupHandler(ApiHandler):
    """One group."""

    path = "/groups/{group_id}"

    @call(shapes.GroupAnswer, query=PollQuery)
    async def get(self, group_id: str, asked: PollQuery) -> None:
        """The runs of a group with their current state."""

        async def make() -> tuple[Any, Any]:
            answer = await self._made(group_id)
            return answer, essence_of(answer)

        await self.polled(asked, make, (self.path, group_id), lambda: self._stamp(group_id))

    async def _made(self, group_id: str) -> GroupAnswer:
        return await group_answer(self.gate, self.launcher.inventory, group_id)

    def _stamp(self, group_id: str) -> tuple[Any, ...]:
        return group_stamp(self.launcher.inventory, group_id)


class GroupCardHandler(GroupHandler):
    """The card of one group, and its available orders."""

    path = "/groups/{group_id}/card"

    @call(shapes.GroupCardAnswer, query=PollQuery)
    async def get(self, group_id: str, asked: PollQuery) -> None:
        """A group's table as a finished page, and its available orders."""

        async def make() -> tuple[Any, Any]:
            group = await self._made(group_id)
            page = groups.html(as_json(group), commands=False)
            answer = GroupCardAnswer(group_id, group.status, page, self._orders(group))
            return answer, answer

        await self.polled(asked, make, (self.path, group_id), lambda: self._stamp(group_id))

    def _orders(self, group: GroupAnswer) -> tuple[str, ...]:
        if group.status == ENDED or group.cancel_requested:
            return ()
        waited_for = self.launcher.waited_for
        records = [self.records.known(row.run_id) for row in group.runs if row.status != ENDED]
        return ("detach", "cancel") if any(map(waited_for.has, records)) else ("cancel",)


class GroupCancelHandler(ApiHandler):
    """The stop of one group."""

    path = "/groups/{group_id}/cancel"

    @call(shapes.GroupCancelAnswer)
    async def post(self, group_id: str) -> None:
        """Stop every unfinished run of a group, and wait until none of their processes is left."""
        await self.launcher.inventory.whole.wait()
        members = self.launcher.inventory.groups.members(group_id)
        run_ids = [row.run_id for row in members if row.status != ENDED]
        stopped, refused = await self.launcher.orders.cancel_these(run_ids)
        self.answer(GroupCancelAnswer(group_id, stopped, refused))


class GroupDetachHandler(ApiHandler):
    """The detachment of one group from its notebook."""

    path = "/groups/{group_id}/detach"

    @call(shapes.DetachAnswer)
    async def post(self, group_id: str) -> None:
        """Detach every unfinished run of a group."""
        await self.launcher.inventory.whole.wait()
        members = self.launcher.inventory.groups.members(group_id)
        await self.launcher.orders.detach_these([r.run_id for r in members if r.status != ENDED])
        self.answer(DetachAnswer(detached=True))
