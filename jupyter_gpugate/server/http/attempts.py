"""The attempts of a run: the records on the disk, and the gate's measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_gpugate.gate.port import Gate, StoryEvent, Unrecorded
from jupyter_gpugate.runs import reading
from jupyter_gpugate.runs.record import Record
from jupyter_gpugate.server.http.run_answers import AttemptRow


async def attempt_rows(gate: Gate, record: Record) -> list[AttemptRow]:
    """Return the attempts of a run, in order, each with its charges and its peaks."""
    story: Sequence[StoryEvent] = ()
    with suppress(Unrecorded):  # the records on the disk do without
        story = await gate.story(record.run_id)
    live = (await gate.run(record.request, ())).running
    rows = []
    for found in await reading.attempts_of(record):
        newest = found.number == record.attempt
        measured: list[Mapping[str, int]] = [_measured(story, found.launch.get("fence"))]
        measured += [record.summary.get("peaks") or {}] if newest else []
        measured += [live.peaks] if live is not None and newest else []
        rows.append(_row(found, _greatest([found.reported_peaks, *measured])))
    return rows


def _row(found: reading.Attempt, peaks: Mapping[str, int]) -> AttemptRow:
    launch, end = found.launch, found.end
    return AttemptRow(
        attempt=found.number,
        outcome=end.get("outcome"),
        reason=str(end.get("reason") or ""),
        exit_code=end.get("exit_code"),
        duration_s=end.get("duration_s"),
        episodes_done=int(end.get("episodes_done") or 0),
        devices=launch.get("devices") or (),
        charges=launch.get("charges") or {},
        peaks=peaks,
        caps=launch.get("caps") or {},
        enforcement=launch.get("enforcement"),
        basis=launch.get("basis") or {},
        directory=str(found.path),
    )


def _measured(story: Iterable[Mapping[str, Any]], fence: object) -> dict[str, int]:
    """Return the peaks that the gate itself has measured of one attempt."""
    own = (e for e in story if e.get("event") == "measured" and e.get("fence") == fence)
    return _greatest(event.get("peaks") or {} for event in own)


def _greatest(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    greatest: dict[str, int] = {}
    for peaks in many:
        for name, value in peaks.items():
            greatest[name] = max(value, greatest.get(name, 0))
    return greatest
