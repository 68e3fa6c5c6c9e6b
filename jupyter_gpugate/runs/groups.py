"""Groups of runs, and runs that start only after others: checked at submit, and at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_gpugate.core.endings import IN_VAIN
from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.runs.life import ENDED
from jupyter_gpugate.runs.record import Record, Records, Refused, RunRow

#: Fields that all runs of a group have in common.
SHARED = ("at_most", "group_size")
#: Until a run whose end the gate knows has been recorded as ended here as well.
RECORDED_S = 20.0


class Groups:
    """The groups of one user's runs."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._asking: dict[str, Mapping[str, Any]] = {}  # bodies of submits under way

    def members(self, group: str) -> list[RunRow]:
        """Return the runs of a group, oldest first; `Refused` (404) if there are none."""
        rows = self._rows(group)
        if not rows:
            raise Refused(404, "not_found", f"there is no group {group}", group=group)
        return rows

    def begin(self, run_id: str, body: Mapping[str, Any]) -> None:
        """Refuse a run that contradicts its group; else count its submit until `finish`."""
        self._refuse_wrong(body)
        self._asking[run_id] = body

    def finish(self, run_id: str) -> None:
        """Forget a submit: its run is among the records, or was refused."""
        self._asking.pop(run_id, None)

    def awaited(self, body: Mapping[str, Any]) -> list[str]:
        """Return the unfinished runs that a run starts after.

        Raises `Refused` where one is unknown, or has ended without completing.
        """
        found: dict[str, None] = {}
        for word in body.get("after") or ():
            for row in self._meant(word, str(body.get("group") or "")):
                if row.status != ENDED:
                    _refuse_elsewhere(row)
                    found[row.run_id] = None
                elif row.end != RunEnd.COMPLETED.value:
                    problem = f"after: {_in_vain(row)}: submit that one again first"
                    raise Refused(409, "state", problem, field="after", run_id=row.run_id)
        return list(found)

    async def problem_of(self, record: Record) -> str:
        """Return why a granted run must not start: one that it starts after did not complete.

        The gate hears of an end before it is recorded here; raises `asyncio.TimeoutError` if it
        never is.
        """
        for run_id in record.request.after:
            first = self._records.get(run_id)
            if first is None:
                return f"after: {run_id} was removed"
            if first.status != ENDED:
                await asyncio.wait_for(first.end.wait(), RECORDED_S)
            row = first.row()
            if row.end != RunEnd.COMPLETED.value:
                return f"after: {_in_vain(row)}"
        return ""

    def _meant(self, word: str, group: str) -> Sequence[RunRow]:
        if word == group:
            problem = f"after: {word} is the group of the run itself"
            raise Refused(400, "bad_request", problem, field="after", value=word)
        members = self._rows(word)
        record = None if members else self._records.get(word)
        if record is None and not members:
            problem = f"after: there is no run and no group {word}"
            raise Refused(400, "bad_request", problem, field="after", value=word)
        return members if record is None else [record.row()]

    def _refuse_wrong(self, body: Mapping[str, Any]) -> None:
        group = body.get("group")
        mate = self._mate(group) if group else None
        for name in SHARED if mate is not None else ():
            given, known = body.get(name), (mate or {}).get(name)
            if given != known:
                problem = f"{name}: the group {group} has {_in_words(known)}: use the same value"
                raise Refused(400, "bad_request", problem, field=name, value=known)

    def _mate(self, group: str) -> Mapping[str, Any] | None:
        """Return the spec, or the body, of another run of a group."""
        for body in self._asking.values():
            if body.get("group") == group:
                return body
        with suppress(IndexError):
            record = self._records.get(self._rows(group)[0].run_id)
            return record.spec if record else None
        return None

    def _rows(self, group: str) -> list[RunRow]:
        return self._records.in_group(group)


def _refuse_elsewhere(row: RunRow) -> None:
    if row.machine:
        where = f"{row.run_id} belongs to another machine, {row.machine}"
        problem = f"after: {where}: submit this run when it has ended"
        raise Refused(409, "elsewhere", problem, field="after", run_id=row.run_id)


def _in_vain(row: RunRow) -> str:
    how = IN_VAIN.get(RunEnd(row.end), "ended") if row.end else "ended"
    return f"{row.run_id} {how}"


def _in_words(value: Any) -> str:
    return "none" if value is None else str(value)
