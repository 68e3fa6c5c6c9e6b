"""The card of a group of runs: one table with a row for each run, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final, Optional

from jupyter_gpugate.faces import columns, screen, tables, words
from jupyter_gpugate.faces.words import Json

#: States and ends in the order in which a summary counts them, in words.
_COUNTED: Final = {
    "active": "active",
    "queued": "waiting",
    "completed": "completed",
    "failed": "failed",
    "oom": "out of memory",
    "expired": "expired",
    "rejected": "rejected",
    "lost": "lost",
    "cancelled": "cancelled",
}
_HINT: Final = " did not complete; why: "
#: Kinds of memory.
_KINDS: Final = ("RAM", "VRAM")
#: Ends after which nobody asks why.
_PLAIN_ENDS: Final = ("completed", "cancelled")
_RESULT_CHARS: Final = 100
_VALUE_CHARS: Final = 24
#: Lines of output of a run that did not complete.
_OUTPUT_LINES: Final = 12
#: A table of this many rows is shown whole; a longer one scrolls.
_SCROLLS: Final = "max-height:32em;overflow:auto"


def bundle(group: Json, note: str = "") -> dict[str, str]:
    """Both forms by MIME type, for a display."""
    return {"text/plain": text(group, note), "text/html": html(group, note)}


def title(group: Json) -> str:
    """Return the name of a group's runs and the state of all together, in one line."""
    return f"{_named(group)} · {summary(group)}"


def _named(group: Json) -> str:
    """Return the name of the runs, with the parameters that all of them have in common."""
    runs: Sequence[Json] = group.get("runs") or [{}]
    differing = set(differing_parameters(runs))
    parameters = (runs[0].get("parameters") or {}).items()
    shared = {"parameters": {k: v for k, v in parameters if k not in differing}}
    return f"{group.get('name', '?')} {words.shortened(words.parameters(shared), 120)}".rstrip()


def summary(group: Json) -> str:
    """Count the runs by state: "12 runs: 1 active, 10 completed, 1 failed"."""
    counts: Json = group.get("counts") or {}
    total = sum(counts.values())
    if not total:
        return "being submitted"
    parts = [f"{counts[key]:,} {word}" for key, word in _COUNTED.items() if counts.get(key)]
    runs = "1 run" if total == 1 else f"{total:,} runs"
    size = group.get("size")
    missing = f"; {total:,} of {size:,} were submitted" if size and total < size else ""
    return f"{runs}: {', '.join(parts)}{missing}"


def text(group: Json, note: str = "", width: Optional[int] = None) -> str:
    """Render the table for a terminal, a log or a saved notebook."""
    lines = [f"{words.visible(title(group))} · {group.get('group')}"]
    table = [[words.visible(cell) for cell in row] for row in rows(group)]
    lines += columns.aligned(table, width)
    lines += [f"  {line}" for line in remarks(group)]
    lines += [f"  {line}" for line in _commands(group)]
    if note:
        lines.append(f"  {note}")
    return "\n".join(lines)


def explained(group: Json, states: Mapping[str, Json], width: Optional[int] = None) -> str:
    """Render the table and, of each run that did not complete, how it ended and its last output.

    ``states`` are those runs by id, as far as they are known.
    """
    lines = [_without_hint(text(group, width=width))]
    for row in unsuccessful(group):
        run_id = str(row.get("run_id"))
        state = states.get(run_id) or row
        retried = words.retried(state)
        lines += ["", f"{setting(row)} · {words.visible(words.ended(state))}"]
        lines += [f"  {words.visible(retried)}"] if retried else []
        tail = screen.text_lines(str(state.get("output_tail") or ""))[-_OUTPUT_LINES:]
        lines += [f"    | {line}" for line in tail]
        lines.append(f"  {words.whole_output(run_id)}, or `jupyter gpugate logs {run_id}`")
    return "\n".join(lines)


def _without_hint(text_: str) -> str:
    """Leave out how to see why some runs did not complete, where that follows."""
    return "\n".join(line for line in text_.splitlines() if _HINT not in line)


def cancelled(answer: Json) -> str:
    """Describe the result of a cancel of a group in one sentence."""
    stopped = [run_id for run_id, one in (answer.get("runs") or {}).items() if one["cancelled"]]
    refused = [f"{run_id}: {why}" for run_id, why in (answer.get("refused") or {}).items()]
    group = answer.get("group")
    if not stopped and not refused:
        return f"no run of {group} is waiting or active"
    runs = "1 run" if len(stopped) == 1 else f"{len(stopped):,} runs"
    return "; ".join([f"{runs} of {group} cancelled", *refused])


def html(group: Json, note: str = "", *, commands: bool = True) -> str:
    """Render the table for a page: no script, readable when its style is taken away.

    ``commands`` says how to stop the runs from elsewhere, for a page that has no buttons.
    """
    parts = [
        f"<div><b>{escape(_named(group))}</b> · {escape(summary(group))} ",
        f'<code style="float:right;opacity:.7">{escape(str(group.get("group")))}</code></div>',
        f'<div style="{_SCROLLS}">{tables.html_table(rows(group))}</div>',
        *(f"<div>{escape(line)}</div>" for line in remarks(group)),
        *(f"<div>{escape(line)}</div>" for line in (_commands(group) if commands else ())),
        f'<div style="margin-top:6px"><b>{escape(note)}</b></div>' if note else "",
    ]
    return "".join(parts)


def rows(group: Json) -> list[list[str]]:
    """Return the table; its first row names the columns."""
    runs: Sequence[Json] = group.get("runs") or ()
    if not runs:
        return []
    names = differing_parameters(runs)
    kinds = [kind for kind in _KINDS if any(kind in _memory(run) for run in runs)]
    several = any(((run.get("episodes") or {}).get("of") or 1) > 1 for run in runs)
    memory = [f"{kind}, peak of reserved" for kind in kinds]
    head = ["run", *names, "state", *(["episodes"] if several else []), *memory, "result"]
    return [head, *(_row(run, names, kinds, several=several) for run in runs)]


def differing_parameters(runs: Sequence[Json]) -> list[str]:
    """Return the names of the parameters in which these runs differ."""
    values: dict[str, set[Optional[str]]] = {}
    for run in runs:
        for name in run.get("parameters") or {}:
            values.setdefault(name, {(one.get("parameters") or {}).get(name) for one in runs})
    return [name for name, found in values.items() if len(found) > 1]


def remarks(group: Json) -> Iterator[str]:
    """Yield how many runs are active at a time, and how to see why some did not complete."""
    if group.get("at_most") and group.get("status") != "ended":
        yield f"at most {group['at_most']:,} at a time"
    failed = unsuccessful(group)
    if failed:
        yield (
            f"{len(failed):,}{_HINT}"
            f'jupyter_gpugate.get("{group.get("group")}").explain(), or in a terminal '
            f"`jupyter gpugate show {group.get('group')}`"
        )


def unsuccessful(group: Json) -> list[Json]:
    """Return the runs that ended without completing, except those that were cancelled."""
    ended = (run for run in group.get("runs") or () if run.get("end"))
    return [run for run in ended if run["end"] not in _PLAIN_ENDS]


def setting(run: Json) -> str:
    """Name a run of a group by its parameters, or by its id if it has none."""
    return words.parameters(run) or str(run.get("run_id"))


def outcome(run: Json) -> str:
    """Return what came of a run: its last line of output, or why it waits or did not complete."""
    if run.get("status") == "queued":
        reasons = run.get("reasons") or ()
        return words.why(reasons[0]) if reasons else "not evaluated yet"
    if run.get("end") and run["end"] != "completed":
        return str(run.get("error") or _why(run))
    return str(run.get("last_line") or "")


def _why(run: Json) -> str:
    reason = str(run.get("exit_detail") or run.get("exit_reason") or "").replace("_", " ")
    if run.get("oom_evidence") or run.get("end") in ("expired", "rejected"):
        return words.ended(run)
    return "" if reason in ("", run.get("end")) else reason


def _row(run: Json, names: Sequence[str], kinds: Sequence[str], *, several: bool) -> list[str]:
    parameters: Json = run.get("parameters") or {}
    episodes: Json = run.get("episodes") or {}
    done = f"{episodes.get('done', 0):,} of {episodes.get('of', 1):,}"
    memory = _memory(run)
    return [
        str(run.get("run_id")),
        *(columns.cut(str(parameters.get(name, "")), _VALUE_CHARS) for name in names),
        _state(run),
        *([done] if several else []),
        *(memory.get(kind, "") for kind in kinds),
        columns.cut(outcome(run), _RESULT_CHARS),
    ]


def _state(run: Json) -> str:
    if run.get("status") == "queued":
        return "waiting, tried before" if (run.get("attempt") or 0) > 0 else "waiting"
    if run.get("status") != "ended":
        return words.standing(run)
    state = _COUNTED.get(str(run.get("end")), str(run.get("end")))
    return f"{state}, attempt {run['attempt']}" if (run.get("attempt") or 0) > 1 else state


def _memory(run: Json) -> dict[str, str]:
    """Return the peak of what was reserved, of RAM and of the memory of all devices."""
    peaks, charges = run.get("peaks") or {}, run.get("charges") or {}
    found: dict[str, str] = {}
    for kind in _KINDS:
        names = [name for name in {**charges, **peaks} if (name == "ram") == (kind == "RAM")]
        peak = sum(peaks.get(name, 0) for name in names)
        charge = sum(charges.get(name, 0) for name in names)
        if names:
            found[kind] = words.of(peak, charge) if charge else words.mb(peak)
    return found


def _commands(group: Json) -> Iterator[str]:
    if group.get("status") != "ended":
        name = group.get("group")
        yield f"to stop all: %gpu_cancel {name}, or in a terminal `jupyter gpugate cancel {name}`"
