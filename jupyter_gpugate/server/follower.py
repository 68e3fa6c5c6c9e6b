"""Follows the runs of a server's user in any process that hosts the gate, and reports changes.

One task follows the gate's transitions by long polls.  When another process takes the gate over,
no transition is reported twice and no end is missed: unfinished runs are then requested one by one.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from jupyter_gpugate.core.codec import JsonObject
from jupyter_gpugate.core.endings import cause_of
from jupyter_gpugate.gate.port import Standing
from jupyter_gpugate.places import API_PATH
from jupyter_gpugate.runs.lease_client import FIRST_PAUSE_S, LONGEST_PAUSE_S, UnixClient
from jupyter_gpugate.runs.life import ENDED
from jupyter_gpugate.server.feed import WAY, StatusChange

#: One question lasts so long where nothing happens.
WAIT_S = 25.0
#: The gate may be starting, and answers when it has.
ANSWER_S = WAIT_S + 30.0

Told = Callable[[StatusChange], None]
#: A site's own function; it gets the run as the API answers it.
Hook = Callable[[JsonObject], Any]


class TransitionFollower:
    """Follows the transitions of all runs of a user."""

    def __init__(
        self,
        client: UnixClient,
        *,
        told: Told,
        heard: Callable[[int], None],
        ended: Hook | None,
        log: logging.Logger,
    ) -> None:
        self._client = client
        self._told = told
        self._heard = heard
        self._ended = ended
        self._log = log
        self._epoch = ""
        self._last = 0
        self._standings: dict[str, Standing] | None = (
            None  # of unfinished runs; None: never reported
        )
        self._hooks: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> int:
        """Return the number of unfinished runs, as last reported."""
        return len(self._standings or ())

    def counts(self) -> dict[str, int]:
        """Return the number of unfinished runs by status."""
        standings = (self._standings or {}).values()
        statuses = [one.status for one in standings]
        return {status: statuses.count(status) for status in ("queued", "active")}

    def begin_at(self, epoch: str, standings: Mapping[str, Standing]) -> None:
        """Follow a gate of this process from its first transition on."""
        self._epoch, self._standings = epoch, dict(standings)

    async def follow(self) -> None:
        """Poll the gate, with growing pauses if it does not answer."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                await self._hear(await self._asked("/transitions", self._question(), ANSWER_S))
                pause = FIRST_PAUSE_S
            except (OSError, ValueError, LookupError) as error:
                self._log.debug("the gate's transitions cannot be followed: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause = min(2 * pause, LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Stop waiting for hooks."""
        for hook in self._hooks:
            hook.cancel()
        await asyncio.gather(*self._hooks, return_exceptions=True)

    # -- hearing --------------------------------------------------------------------------------

    def _question(self) -> Mapping[str, str | float]:
        return {"epoch": self._epoch, "after": self._last, "wait": WAIT_S}

    async def _asked(
        self, path: str, query: Mapping[str, str | float] | None = None, timeout_s: float = 20.0
    ) -> JsonObject:
        target = API_PATH + path + (f"?{urlencode(query)}" if query else "")
        response = await self._client.fetch(target, request_timeout=timeout_s)
        if response.code == HTTPStatus.NOT_FOUND:
            raise LookupError(path)
        if response.code != HTTPStatus.OK:
            raise ConnectionError(f"status {response.code}")
        answer: JsonObject = json.loads(response.body)
        return answer

    async def _hear(self, answer: JsonObject) -> None:
        if answer["gap"]:
            found = {r: _standing_of(row) for r, row in answer["unfinished"].items()}
            await self._catch_up(found)
        for row in answer["transitions"]:
            self._tell(_change_of(row))
        self._epoch, self._last = answer["epoch"], answer["last"]
        self._heard(self.live)

    async def _catch_up(self, found: dict[str, Standing]) -> None:
        """Report all states after a gap: another gate, or too long an interruption."""
        before = self._standings
        if before is None:
            self._standings = found
            return
        for run_id, standing in found.items():
            if before.get(run_id) != standing:
                self._tell(_change_of({**vars(standing), "run_id": run_id}))
        for run_id in before.keys() - found.keys():
            await self._look_after(run_id)

    async def _look_after(self, run_id: str) -> None:
        """Report a run that was unfinished and is no longer listed."""
        try:
            run = await self._asked(f"/runs/{run_id}")
        except LookupError:
            run = {"status": ""}
        if run["status"] == ENDED:
            self._tell(_change_of({**run, "reason": cause_of(run["exit_reason"])}))
        elif self._standings is not None and not run["status"]:
            self._standings.pop(run_id, None)

    # -- telling --------------------------------------------------------------------------------

    def _tell(self, change: StatusChange) -> None:
        if self._standings is None:
            self._standings = {}
        run_id = change.run_id
        if change.status == ENDED:
            self._standings.pop(run_id, None)
        else:
            standing = Standing(change.name, change.status, change.phase, change.attempt)
            if _is_behind(standing, self._standings.get(run_id)):
                return
            self._standings[run_id] = standing
        try:
            self._told(change)
        except Exception:  # noqa: BLE001 - who listens badly must not end the listening of others
            self._log.exception("%s: its transition could not be emitted", run_id)
        if change.status == ENDED and self._ended is not None:
            hook = asyncio.ensure_future(self._call_hook(self._ended, run_id))
            self._hooks.add(hook)
            hook.add_done_callback(self._hooks.discard)

    async def _call_hook(self, hook: Hook, run_id: str) -> None:
        """Call it with the run's answer: in a thread, unless it is a coroutine function."""
        with suppress(asyncio.CancelledError):
            try:
                run = await self._asked(f"/runs/{run_id}")
                if inspect.iscoroutinefunction(hook):
                    await hook(run)
                else:
                    await asyncio.to_thread(hook, run)
            except Exception:  # noqa: BLE001 - a site's own code
                self._log.exception("run_ended_hook failed for %s", run_id)


def _is_behind(now: Standing, known: Standing | None) -> bool:
    """Return whether a run was further already: a new gate restores starts, not heartbeats."""
    if known is None or now.attempt != known.attempt or now.phase is None or known.phase is None:
        return False
    return WAY.index(now.phase) <= WAY.index(known.phase)


def _change_of(row: JsonObject) -> StatusChange:
    """Read a change of a run from a transition, or from another answer about it."""
    return StatusChange(
        at=row.get("at", time.time()),
        name=row["name"],
        status=row["status"],
        phase=row["phase"],
        attempt=row["attempt"],
        run_id=row["run_id"],
        end=row.get("end"),
        reason=row.get("reason", ""),
    )


def _standing_of(row: JsonObject) -> Standing:
    return Standing(row["name"], row["status"], row["phase"], row["attempt"])
