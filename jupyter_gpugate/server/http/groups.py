"""Joins the records of a group's runs with their current state at the gate."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jupyter_gpugate.core.endings import detail_of
from jupyter_gpugate.core.explaining.rows import EpisodeCount, QueuedRow, RunningRow
from jupyter_gpugate.core.reports import Status
from jupyter_gpugate.core.run_spec import MOST_IN_GROUP
from jupyter_gpugate.faces import screen
from jupyter_gpugate.gate.port import Gate
from jupyter_gpugate.runs.inventory import Inventory
from jupyter_gpugate.runs.life import ACTIVE, ENDED, QUEUED
from jupyter_gpugate.runs.reading import output_end, stamp_of
from jupyter_gpugate.runs.record import Record, RunRow, shortened
from jupyter_gpugate.server.http.group_answers import GroupAnswer, GroupRow

LINE_CHARS = 200


async def group_answer(gate: Gate, inventory: Inventory, group: str) -> GroupAnswer:
    """Return a group: its runs, and what they are together."""
    await inventory.whole.wait()
    members = inventory.groups.members(group)
    records = [inventory.records.known(row.run_id) for row in members]
    snapshot = await gate.snapshot()
    queued = {row.run_id: row for row in snapshot.queued}
    running = {row.run_id: row for row in snapshot.running}
    rows = tuple(
        _row(row, record, queued.get(row.run_id), running.get(row.run_id))
        for row, record in zip(members, records, strict=True)
    )
    unfinished = [record for record in records if record.status != ENDED]
    spec = records[0].spec
    return GroupAnswer(
        group=group,
        name=members[0].name,
        status=_status(rows),
        size=spec.get("group_size"),
        at_most=spec.get("at_most"),
        counts=Counter(row.end or row.status for row in rows),
        detached=all(record.life.detached for record in unfinished or records),
        cancel_requested=bool(unfinished) and all(r.life.cancelled for r in unfinished),
        runs=rows,
    )


def group_stamp(inventory: Inventory, group: str) -> tuple[Any, ...]:
    """Return a stamp that changes whenever anything that is reported of a group changes."""
    if not inventory.whole.is_set():
        return ()
    rows = inventory.groups.members(group)
    live = [inventory.records.known(row.run_id) for row in rows if row.status != ENDED]
    return (len(rows), *map(stamp_of, live))


def _status(rows: Sequence[GroupRow]) -> Status:
    statuses = {row.status for row in rows}
    one = statuses.pop() if len(statuses) == 1 else ACTIVE
    return cast(Status, one)


def _row(
    row: RunRow, record: Record, queued: QueuedRow | None, running: RunningRow | None
) -> GroupRow:
    if record.status == ENDED:
        queued = running = None
    summary = record.summary
    end = (summary.get("outcome") or {}).get("end") or {}
    done = running.episodes.done if running else int(end.get("episodes_done") or 0)
    status: Status = QUEUED if queued else cast(Status, record.status)  # type: ignore[assignment]
    return GroupRow(
        run_id=row.run_id,
        name=row.name,
        parameters=row.parameters,
        command=row.command,
        status="active" if running else status,
        phase=running.phase if running else "ending" if status == ACTIVE else None,
        end=row.end,
        exit_reason=row.reason,
        exit_detail=detail_of(row.reason),
        exit_code=end.get("exit_code"),
        oom_evidence=end.get("oom_evidence") or None,
        error=_error(summary.get("error")),
        attempt=row.attempt,
        reasons=queued.reasons if queued else (),
        position=queued.position if queued else None,
        eta_s=queued.eta_s if queued else None,
        charges=running.charges if running else summary.get("charges") or {},
        held=running.held if running else {},
        peaks=running.peaks if running else row.peaks or {},
        episodes=EpisodeCount(done, record.spec["episodes"]),
        submitted=row.submitted,
        ended=row.ended,
        duration_s=row.duration_s,
        started_s=running.started_s if running else None,
        last_line=_last_line(record),
        directory=str(record.path),
    )


def _error(error: Mapping[str, Any] | None) -> str | None:
    if not error or not error.get("ename"):
        return None
    value = str(error.get("evalue") or "").strip().partition("\n")[0]
    return shortened(": ".join(filter(None, (str(error["ename"]), value))), LINE_CHARS)


def _last_line(record: Record) -> str:
    return _last_line_of(output_end(record))


@functools.lru_cache(MOST_IN_GROUP)  # all runs of a group are asked about in each tick
def _last_line_of(output: str) -> str:
    lines = [line.strip() for line in screen.text_lines(output)]
    return shortened(next((line for line in reversed(lines) if line), ""), LINE_CHARS)
