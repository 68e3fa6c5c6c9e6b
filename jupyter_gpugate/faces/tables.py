"""The queue and an estimate as text and HTML tables, for notebooks and terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, Optional

from jupyter_gpugate.core.run_spec import MOST_WORKERS
from jupyter_gpugate.faces import columns, words
from jupyter_gpugate.faces.words import Json

Table = Sequence[Sequence[str]]

NAMED: Final = "name and parameters"
_OWNER: Final = "owner"
_MOST_CHARS: Final = 500
_CELL: Final = "text-align:left;vertical-align:top;padding:0 14px 0 0"


def queue(snapshot: Json, width: Optional[int] = None) -> dict[str, str]:
    """Both forms of a snapshot, by MIME type; the text fits into a width where there is one."""
    return bundle(list(queue_parts(snapshot)), width)


def estimate(answer: Json, width: Optional[int] = None) -> dict[str, str]:
    """Both forms of an estimate, by MIME type."""
    return bundle(list(estimate_parts(answer)), width)


def cancelled(run_id: str, answer: Json) -> str:
    """Describe the result of a cancel in one sentence."""
    if not answer.get("cancelled"):
        return f"{run_id} had {answer.get('end') or 'ended'} before it could be cancelled"
    if answer.get("means") == "withdrawn":
        return f"{run_id} is cancelled: it had not started"
    how = words.stopped_by(answer)
    left = words.pids(answer.get("survivors") or ())
    is_service = answer.get("end") == "completed"
    done = f"is stopped: {how}" if is_service else f"is cancelled: stopped {how}"
    return f"{run_id} {done}" + (f"; still running: {left}" if left else "")


def locked(answer: Json) -> str:
    """Describe the result of a lock in one sentence."""
    names = [f"{run['run_id']} ({run['name']})" for run in answer.get("at_work") or ()]
    return (
        f"{_locked(answer, 'locked')} is locked: for {words.span(answer.get('for_s') or 0)}, or "
        "until this kernel ends, no run of yours starts there; other users are not affected; "
        "%gpu_release unlocks it"
        + "".join(f"; {other} is unlocked" for other in answer.get("opened") or ())
        + (f". Still running there: {', '.join(names)}" if names else "")
    )


def unlocked(answer: Json) -> str:
    """Describe the result of a release in one sentence."""
    what = _locked(answer, "unlocked")
    if answer.get("was_locked", True):
        return f"{what} is no longer locked"
    return f"{what} was not locked"


def _locked(answer: Json, field: str) -> str:
    resource = answer.get(field)
    named = "the machine" if resource == "machine" else str(resource)
    return str(answer.get("name") or named)


def queue_parts(snapshot: Json) -> Iterator[tuple[str, Table]]:
    """Headings with their tables; a table's first row names its columns."""
    devices = snapshot.get("devices") or ()
    head = ["", "free", "usable", "used", "runs", "notebooks", "others"]
    now = snapshot.get("now")
    if snapshot.get("owner"):
        yield f"the gate of {snapshot['owner']}", []
    for line in words.locks(snapshot, awake_time() if now is None else now):
        yield line, []
    yield "memory", [head, *_memory(snapshot)]
    running = snapshot.get("running") or ()
    if running:
        head = ["run", NAMED, _OWNER, "state", "episodes", "used of reserved"]
        rows = [head, *(_running(row, devices) for row in running)]
        yield "running", _without_one_owner(rows, snapshot, running)
    queued = snapshot.get("queued") or ()
    if queued:
        head = ["", "run", NAMED, _OWNER, "waited", "waits because"]
        rows = [head, *map(_queued, queued)]
        yield "waiting", _without_one_owner(rows, snapshot, queued)
    others = snapshot.get("other_machines") or ()
    if others:
        head = ["run", NAMED, "machine", "state when last read"]
        rows = [[r["run_id"], words.named(r), r["machine"], r["status"]] for r in others]
        yield "on other machines", [head, *rows]
    if not running and not queued:
        yield "no run is active and none is waiting", []
    lingering = [row for row in snapshot.get("lingering") or () if row.get("held_bytes")]
    if lingering:
        releasing = [_lingering(row, devices) for row in lingering]
        yield "ended, memory still being released", [["run", "memory"], *releasing]
    external = [row for row in snapshot.get("external") or () if row.get("held_bytes")]
    if external:
        largest = sorted(external, key=lambda row: -row["held_bytes"])[:10]
        head = ["used", "of", "pid", "user", "command"]
        yield (
            "used by others (largest first)",
            [
                head,
                *(_external(row, devices) for row in largest),
            ],
        )
    for trouble in _troubles(snapshot):
        yield trouble, []


def estimate_parts(answer: Json) -> Iterator[tuple[str, Table]]:
    """Show a run's need, the origin of each number, and whether it would start now."""
    rows = [[words.term(term)] for term in answer.get("terms") or ()]
    yield str(answer.get("name") or "estimate"), rows or [["no run of this name was measured yet"]]
    totals: Json = answer.get("total_bytes") or {}
    sums = [f"{words.resource(name)} {_total(total)}" for name, total in totals.items()]
    if sums:
        yield f"total: {'; '.join(sums)}", []
    level = answer.get("level_parameters") or ()
    if level:
        yield f"no effect on the memory needed: {', '.join(level)}", []
    if answer.get("max_workers"):
        yield _workers(answer["max_workers"]), []
    if answer.get("would_start") is not None:
        reasons = answer.get("reasons") or ()
        because = f": {words.why(reasons[0])}" if reasons else ""
        yield "it would start now" if answer["would_start"] else f"it would wait{because}", []


def text(parts: Sequence[tuple[str, Table]], width: Optional[int] = None) -> str:
    """Headings and aligned columns, broken into lines that fit into a width where there is one."""
    return "\n".join(line for heading, table in parts for line in _text(heading, table, width))


def _text(heading: str, table: Table, width: Optional[int]) -> Iterator[str]:
    heading = _one_line(heading)
    yield from [heading] if width is None else columns.wrapped(heading, width)
    yield from columns.aligned([[_one_line(cell) for cell in row] for row in table], width)


def html(parts: Sequence[tuple[str, Table]]) -> str:
    """Headings and tables; every word is escaped."""
    return "".join(
        f'<div style="margin-top:6px"><b>{escape(_short(heading))}</b></div>'
        + (html_table(table) if table else "")
        for heading, table in parts
    )


def bundle(parts: Sequence[tuple[str, Table]], width: Optional[int] = None) -> dict[str, str]:
    """Both forms of headings with their tables, by MIME type."""
    return {"text/plain": text(parts, width), "text/html": html(parts)}


def _workers(most: int) -> str:
    if most >= MOST_WORKERS:
        return f"{MOST_WORKERS} workers, the maximum of a run, fit now"
    return f"up to {most} workers fit now" if most > 1 else "1 worker fits now"


def awake_time() -> float:
    """Read the gate's clock, which is the same for every process of this machine."""
    return time.monotonic()


def _memory(snapshot: Json) -> Iterator[list[str]]:
    free: Json = snapshot.get("free_bytes") or {}
    room: Json = snapshot.get("room_bytes") or {}
    attribution: Json = snapshot.get("attribution") or {}
    shares = {**(attribution.get("resources") or {}), **(attribution.get("devices") or {})}
    names = ["ram", *(str(device["uuid"]) for device in snapshot.get("devices") or ())]
    for name in names:
        share: Json = shares.get(name) or {}
        yield [
            words.resource(name, snapshot.get("devices") or ()),
            words.mb(free.get(name)),
            words.mb(room.get(name)),
            words.mb(share.get("used_total")),
            words.mb(sum((share.get("runs") or {}).values())),
            words.mb(sum((share.get("kernels") or {}).values())),
            words.mb(share.get("external")),
        ]


def _running(row: Json, devices: Sequence[Json]) -> list[str]:
    held: Json = row.get("held") or {}
    memory = [
        f"{words.resource(name, devices)}: {words.part(held.get(name), charge)}"
        for name, charge in (row.get("charges") or {}).items()
    ]
    episodes: Json = row.get("episodes") or {}
    return [
        str(row.get("run_id", "")),
        *_of_run(row),
        words.standing({"status": "active", **row}),
        f"{episodes['done']:,} of {episodes['of']:,}" if episodes.get("of") else "",
        ", ".join(memory),
    ]


def _of_run(row: Json) -> list[str]:
    return [words.named(row), str(row.get("owner", ""))]


def _without_one_owner(table: Table, snapshot: Json, rows: Sequence[Json]) -> Table:
    """Leave the owners out where all runs are of the gate's own user."""
    if any(row.get("owner") != snapshot.get("owner") for row in rows):
        return table
    kept = [number for number, name in enumerate(table[0]) if name != _OWNER]
    return [[row[number] for number in kept] for row in table]


def _queued(row: Json) -> list[str]:
    reasons = row.get("reasons") or ()
    return [
        str(row.get("position", "")),
        str(row.get("run_id", "")),
        *_of_run(row),
        words.span(row["waited_s"]) if row.get("waited_s") is not None else "",
        words.why(reasons[0]) if reasons else "not evaluated yet",
    ]


def _lingering(row: Json, devices: Sequence[Json]) -> list[str]:
    where = words.resource(str(row.get("resource", "")), devices)
    return [str(row.get("run_id", "")), f"{where} {words.mb(row.get('held_bytes'))}"]


#: Rows without a process.
_NOTES: Final = {
    "unlisted": "system memory, or processes that are not visible here",
    "shared_memory": "shared memory and files in memory (/dev/shm, tmpfs)",
    "huge_pages": "memory reserved for huge pages",
}


def _external(row: Json, devices: Sequence[Json]) -> list[str]:
    nobody = not row.get("pid")
    note = str(row.get("note") or "")
    what = row.get("command") or _NOTES.get(note, note)
    return [
        words.mb(row.get("held_bytes")),
        words.resource(str(row.get("resource", "")), devices),
        "" if nobody else str(row["pid"]),
        str(row.get("user") or ""),
        str(what),
    ]


def _troubles(snapshot: Json) -> Iterator[str]:
    if snapshot.get("journal_fault"):
        yield f"the journal cannot be written: {snapshot['journal_fault']}"
    if snapshot.get("sample_fault"):
        yield f"the newest measurement cannot be used: {snapshot['sample_fault']}"
    if snapshot.get("draining"):
        yield f"this gate starts no new runs: {snapshot['draining']}"
    yield from snapshot.get("ignored_settings") or ()
    for device in snapshot.get("devices") or ():
        if device.get("message"):
            yield str(device["message"])
    for reader in snapshot.get("readers") or ():
        fault: Json = reader.get("fault") or {}
        if fault:
            yield f"the {reader.get('name')} reader: {fault.get('text') or fault.get('code')}"


def _total(total: object) -> str:
    return words.mb(total) if isinstance(total, (int, float)) else "unknown"


def _cell(text: str) -> str:
    text = _short(text)
    style = f"{_CELL};white-space:nowrap" if len(text) <= columns.SHORT else _CELL
    return f'<td style="{style}">{escape(text)}</td>'


def _one_line(cell: str) -> str:
    return words.visible(_short(cell))


def _short(text: str) -> str:
    # Commands and faults come from elsewhere, and may be of any length.
    return words.shortened(text, _MOST_CHARS)


def html_table(table: Table) -> str:
    """Return a table for a page; every word is escaped."""
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table)
    return f"<table>{rows}</table>"
