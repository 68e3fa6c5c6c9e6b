"""Lists of runs, and one run whole, as text for terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Optional

from jupyter_gpugate.faces import card, columns, screen, words
from jupyter_gpugate.faces.tables import NAMED
from jupyter_gpugate.faces.words import Json

_LABEL_WIDTH: Final = 12
_STATE_CHARS: Final = 40
#: Lines of output that are shown of a whole run.
_OUTPUT_LINES: Final = 10
_DAY_S: Final = 86400


def table(
    rows: Sequence[Json], live: Mapping[str, Json], now: float, width: Optional[int] = None
) -> str:
    """List runs; ``live`` has the current state of those that have not ended, by their ids."""
    shown = [{**row, **live.get(str(row["run_id"]), {})} for row in rows]
    head = ["run", "state", "submitted", "took", "peak", NAMED]
    cells = [head, *(_row(row, now) for row in shown)]
    return "\n".join(columns.aligned([[words.visible(c) for c in row] for row in cells], width))


def whole(run: Json, attempts: Sequence[Json], now: float, width: Optional[int] = None) -> str:
    """Describe one run: its state and its reason, its need, its attempts, and its files."""
    title = f"{words.visible(card.title(run))} · {run.get('run_id')}"
    lines = [title] if width is None else columns.wrapped(title, width)
    for label, text in _whole_rows(run, attempts, now):
        lines += columns.labelled(label, words.visible(text), _LABEL_WIDTH, width)
    output = screen.text_lines(str(run.get("output_tail") or ""))
    if output:
        cut = len(output) > _OUTPUT_LINES
        last = f"the last {_OUTPUT_LINES} lines; all of it: " if cut else ""
        lines += columns.labelled(
            "output", f"{last}jupyter gpugate logs {run.get('run_id')}", _LABEL_WIDTH, width
        )
    return "\n".join([*lines, *(f"    | {line}" for line in output[-_OUTPUT_LINES:])])


def moment(when: float, now: float) -> str:
    """Format a wall-clock time as local time, with its day unless that is today."""
    then, today = time.localtime(when), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M:%S", then)
    if 0 <= now - when < 180 * _DAY_S:
        return time.strftime("%b %d %H:%M", then)
    return time.strftime("%Y-%m-%d", then)


def peaks(run: Json) -> str:
    """Format the peaks of a run: RAM, and the sum over its devices."""
    found: Json = run.get("peaks") or {}
    vram = sum(peak for name, peak in found.items() if name != "ram")
    parts = [f"RAM {words.mb(found['ram'])}"] if "ram" in found else []
    return ", ".join([*parts, *([f"VRAM {words.mb(vram)}"] if vram else [])])


def _row(run: Json, now: float) -> list[str]:
    return [
        str(run["run_id"]),
        _state(run),
        moment(run["submitted"], now),
        _took(run),
        peaks(run),
        words.named(run),
    ]


def _state(run: Json) -> str:
    if run.get("status") != "ended":
        return words.standing(run).replace(" in the queue", "")
    end, why = run.get("end"), str(run.get("reason") or "")
    told = {"end": end, "exit_reason": why if end == "completed" else ""}
    kind = words.ended(told).partition(":")[0]
    reason = why if end == "failed" else ""
    return columns.cut(f"{kind} ({reason.replace('_', ' ')})" if reason else kind, _STATE_CHARS)


def _took(run: Json) -> str:
    if run.get("duration_s") is not None:
        return words.span(run["duration_s"])
    return f"{words.span(run['started_s'])} so far" if run.get("started_s") is not None else ""


def _whole_rows(run: Json, attempts: Sequence[Json], now: float) -> Iterator[tuple[str, str]]:
    if run.get("parameters"):
        yield "parameters", words.parameters(run)
    if run.get("command"):
        yield "command", str(run["command"])
    if run.get("group"):
        yield "group", f"{run['group']}: `jupyter gpugate show {run['group']}` shows all its runs"
    if run.get("repeats"):
        yield "repeats", str(run["repeats"])
    listed = ("peak", "attempt") if attempts else ()
    yield from ((row.label, row.text) for row in card.rows(run) if row.label not in listed)
    yield "submitted", moment(run["submitted"], now)
    if run.get("ended"):
        yield "ended", moment(run["ended"], now)
    devices = run.get("devices") or ()
    for number, attempt in enumerate(attempts):
        yield "" if number else "attempts", _attempt(attempt, devices)
    yield "files", str(run.get("directory"))


def _attempt(attempt: Json, devices: Sequence[Json]) -> str:
    ended = {"end": attempt.get("outcome"), "exit_reason": attempt.get("reason")}
    state = words.ended(ended) if attempt.get("outcome") else "under way"
    if attempt.get("duration_s") is not None:
        state += f" after {words.span(attempt['duration_s'])}"
    charges: Json = attempt.get("charges") or {}
    held: Json = attempt.get("peaks") or {}
    peaks_ = ", ".join(_peak(name, held, charges, devices) for name in {**charges, **held})
    reserved = " reserved" if charges else ""
    return f"{attempt['attempt']}: {state}; peak {peaks_ or 'unknown'}{reserved}"


def _peak(name: str, held: Json, charges: Json, devices: Sequence[Json]) -> str:
    where = words.resource(name, devices)
    if name not in charges:
        return f"{where} {words.mb(held[name])}"
    return f"{where} {words.part(held.get(name), charges[name])}"
