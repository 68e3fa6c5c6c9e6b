"""The card of one run, as text and as HTML, made from its state in the API.

Pure functions.  The name and the output of a run are always escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

from jupyter_gpugate.faces import screen, words
from jupyter_gpugate.faces.words import Json

#: Lines of output in the text form; the HTML form scrolls through all that the gate keeps at hand.
TEXT_LINES: Final = 20
_TEXT_CHARS: Final = 8 * 1024
#: The longest row, which may quote the run, and the most rows of one kind.
_ROW_CHARS: Final = 1000
_MOST_WARNINGS: Final = 50
_PARAMETERS_CHARS: Final = 120
_LABEL_WIDTH: Final = 10
_MEMORY_LABEL: Final = "memory"
_TRACEBACK: Final = "Traceback (most recent call last):"
#: Python's lines between a traceback and the one that it led to.
_CHAINED: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)

_BOX = (
    "border:1px solid var(--jp-border-color2,#8886);border-left:4px solid {accent};"
    "border-radius:3px;padding:6px 12px;max-width:60em;font-size:13px;line-height:1.5"
)
_ACCENTS: Final = {"queued": "#96700a", "active": "#2a5db0"}
_GOOD, _BAD = "#2a7d2a", "#c33"
_CELL = "text-align:left;vertical-align:top;padding:0 12px 0 0;border:none;background:none"
#: The reversed column makes a page show the end of a long output first, without a script.
_OUTPUT = (
    "display:flex;flex-direction:column-reverse;max-height:20em;overflow:auto;margin:6px 0 0;"
    "padding:6px;background:#8882"
)
#: Pages let a `pre` scroll by itself, from its beginning: here the box around it does that.
_LINES = (
    "flex:none;overflow:visible;margin:0;padding:0;white-space:pre;background:none;font-size:12px;"
    "line-height:1.35"
)


class Row(NamedTuple):
    """A labelled line of a card; ``share`` (0..1) draws a bar in HTML."""

    label: str
    text: str
    share: float = -1.0


def bundle(run: Json, note: str = "") -> dict[str, str]:
    """Both forms by MIME type, for a display."""
    return {"text/plain": text(run, note), "text/html": html(run, note)}


def title(run: Json) -> str:
    """Return the run's name and state on one line."""
    return f"{_named(run)} · {words.shortened(words.standing(run), _ROW_CHARS)}"


def _named(run: Json) -> str:
    """Return the name of a run, with its parameters where it has some."""
    parameters = words.shortened(words.parameters(run), _PARAMETERS_CHARS)
    return f"{run.get('name', '?')} {parameters}".rstrip()


def text(run: Json, note: str = "") -> str:
    """Render the card for a terminal, a log or a saved notebook."""
    run_id = run.get("run_id") or ""
    lines = [" · ".join(part for part in (words.visible(title(run)), str(run_id)) if part)]
    lines += [f"  {row.label:<{_LABEL_WIDTH}}{words.visible(row.text)}" for row in rows(run)]
    shown = screen.text_lines(str(run.get("output_tail") or "")[-_TEXT_CHARS:])
    if len(shown) > TEXT_LINES:
        everything = words.whole_output(str(run.get("run_id", "?")))
        lines.append(f"  output    (the last {TEXT_LINES} lines; all of it: {everything})")
    elif shown:
        lines.append("  output")
    lines += [f"    | {line}" for line in shown[-TEXT_LINES:]]
    if note:
        lines.append(f"  {note}")
    return "\n".join(lines)


def html(run: Json, note: str = "", *, commands: bool = True) -> str:
    """Render the card for a page: no script, readable when its style is taken away.

    ``commands`` says how to stop the run from elsewhere, for a page that has no buttons.
    """
    status = str(run.get("status"))
    accent = _ACCENTS.get(status, _GOOD if run.get("end") == "completed" else _BAD)
    shown = rows(run) if commands else _state_rows(run)
    body = "".join(_row_html(row) for row in shown)
    output = screen.html(str(run.get("output_tail") or ""))
    standing = words.shortened(words.standing(run), _ROW_CHARS)
    parts = [
        f'<div style="{_BOX.format(accent=accent)}">',
        f"<div><b>{escape(_named(run))}</b> · {escape(standing)} ",
        f"{_id_html(run)}</div>",
        f'<table style="border:none;margin:2px 0 0">{body}</table>',
        _output_html(output) if output else "",
        f'<div style="margin-top:6px"><b>{escape(note)}</b></div>' if note else "",
        "</div>",
    ]
    return "".join(parts)


def _id_html(run: Json) -> str:
    """The run's id; nothing before the gate has given it one."""
    run_id = escape(str(run.get("run_id") or ""))
    return f'<code style="float:right;opacity:.7">{run_id}</code>' if run_id else ""


def _output_html(output: str) -> str:
    lines = f'<pre style="{_LINES}">{output}</pre>'
    return f'<div class="gpugate-output" style="{_OUTPUT}">{lines}</div>'


def output(text_: str, run_id: str = "", start: int = 0) -> dict[str, str]:
    """Return both forms of output that is shown outside its card; nothing where none is visible.

    The script of the run's card keeps the newest up to date by its first byte, ``start``.
    """
    page = screen.html(text_)
    if not page.strip():
        return {}
    plain = "\n".join(screen.text_lines(text_[-_TEXT_CHARS:]))
    place = f'data-run="{escape(run_id, quote=True)}" data-from="{start}"' if run_id else ""
    return {"text/plain": plain, "text/html": f"<div {place}>{_output_html(page)}</div>"}


def rest_html(run: Json, text_: str) -> str:
    """Return output for the place that `output` made."""
    state = {**run, "output_tail": text_}
    shown = without_traceback(state) if run.get("status") == "ended" else state
    return _output_html(screen.html(str(shown["output_tail"])))


def without_traceback(run: Json) -> Json:
    """Return the state with its error's traceback off the output, for where that is raised too."""
    error: Json = run.get("error") or {}
    output = str(run.get("output_tail") or "")
    last = f"{error.get('ename')}: {error.get('evalue')}" if error.get("evalue") else ""
    last = last or str(error.get("ename") or "")
    if not error.get("traceback") or not last or not output.rstrip().endswith(last.rstrip()):
        return run
    start = _traceback_start(output)
    return run if start < 0 else {**run, "output_tail": output[:start]}


def _traceback_start(output: str) -> int:
    """Return the start of the last traceback, with those that led to it; -1 if there is none."""
    start = len(output)
    while True:
        start = output.rfind(_TRACEBACK, 0, start)
        if start < 0:
            return -1
        if not output[:start].rstrip().endswith(_CHAINED):
            return start


def rows(run: Json) -> list[Row]:
    """Return the rows of a card in this state of the run, the most important first."""
    nothing_to_stop = run.get("status") == "ended" or not run.get("run_id")
    return [*_state_rows(run), *(() if nothing_to_stop else _command_rows(run))]


def _state_rows(run: Json) -> list[Row]:
    by_status = {"queued": _queued_rows, "active": _active_rows, "ended": _ended_rows}
    chosen = by_status.get(str(run.get("status")), _queued_rows)
    estimates = _estimate_rows(run, ended=run.get("status") == "ended")
    all_rows = [*chosen(run), *estimates, *_warning_rows(run)]
    return [row._replace(text=words.shortened(row.text, _ROW_CHARS)) for row in all_rows]


def _warning_rows(run: Json) -> Iterator[Row]:
    warnings = run.get("warnings") or ()
    for warning in warnings[:_MOST_WARNINGS]:
        yield Row("warning", str(warning))
    if len(warnings) > _MOST_WARNINGS:
        yield Row("warning", f"and {len(warnings) - _MOST_WARNINGS:,} more")


def _queued_rows(run: Json) -> Iterator[Row]:
    reasons = run.get("reasons") or ()
    if reasons:
        yield Row("waits", words.why(reasons[0]))
    yield from (Row("hint", str(advice)) for advice in run.get("advice") or ())
    yield from _mask_rows(run)
    if run.get("eta_s") is not None:
        yield Row("starts", f"in about {words.span(run['eta_s'])} at the earliest")
    if words.retried(run):
        yield from _retry_rows(run)
    elif (run.get("attempt") or 0) > 0:
        yield Row("attempt", f"{run['attempt']} ended without completing; the run starts again")


def _retry_rows(run: Json) -> Iterator[Row]:
    sentence = words.retried(run)
    if sentence:
        yield Row("retry", sentence)


def _active_rows(run: Json) -> Iterator[Row]:
    devices = run.get("devices") or ()
    if run.get("phase") != "ending":  # there is nothing more to be read of it
        yield from _service_rows(run)
        yield from _episode_rows(run)
        yield from _memory_rows(run)
    cap = _cap(run)
    if cap:
        yield Row("limit", cap)
    if run.get("basis"):
        yield Row("reserved", words.admitted(run["basis"], devices))
    if devices:
        names = [f"{words.device_name(d)} ({d.get('model', '?')})" for d in devices]
        yield Row("runs on", ", ".join(names))
    yield from _mask_rows(run)
    if (run.get("attempt") or 1) > 1:
        yield Row("attempt", str(run["attempt"]))
    yield from _retry_rows(run)


def _service_rows(run: Json) -> Iterator[Row]:
    """Say what the loading of a service means for others."""
    loads = run.get("service") and not run.get("ready") and run.get("phase") != "stopping"
    if loads and run.get("devices"):
        yield Row("service", "loading: no other run starts on its GPU until it is ready")


def _mask_rows(run: Json) -> Iterator[Row]:
    if run.get("visible"):
        yield Row("GPUs", f"restricted: {run['visible']}")


def _ended_rows(run: Json) -> Iterator[Row]:
    error = run.get("error") or {}
    if error.get("ename"):
        yield Row("error", f"{error['ename']}: {error.get('evalue', '')}")
    yield from _retry_rows(run)
    yield from _episode_rows(run)
    devices = run.get("devices") or ()
    charges: Json = run.get("charges") or {}
    for name, peak in (run.get("peaks") or {}).items():
        reserved = f"{words.of(peak, charges[name])} reserved" if name in charges else ""
        yield Row("peak", f"{words.resource(name, devices)}: {reserved or words.mb(peak)}")
    yield from (Row("hint", advice) for advice in words.advice(run))
    if run.get("basis"):
        yield Row("reserved", words.admitted(run["basis"], devices))
    kill: Json = run.get("kill") or {}
    if kill:
        yield Row("stopped", _stopped(kill))


def _episode_rows(run: Json) -> Iterator[Row]:
    episodes: Json = run.get("episodes") or {}
    done, of = episodes.get("done"), episodes.get("of")
    if done is not None and of and (of > 1 or done > 1):
        yield Row("episodes", f"{done:,} of {of:,}", min(1.0, done / of))


def _memory_rows(run: Json) -> Iterator[Row]:
    held: Json = run.get("held") or {}
    devices = run.get("devices") or ()
    for name, charge in (run.get("charges") or {}).items():
        has = held.get(name)
        where = words.resource(name, devices)
        if has is None:
            yield Row(_MEMORY_LABEL, f"{where}: not measured yet, {words.mb(charge)} reserved")
        else:
            share = min(1.0, has / charge) if charge else 0.0
            used = f"{where}: {words.of(has, charge)} reserved"
            yield Row(_MEMORY_LABEL, used, share)


def _cap(run: Json) -> str:
    devices = run.get("devices") or ()
    caps: Json = run.get("caps") or {}
    enforcement = str(run.get("enforcement") or "none")
    sizes = ", ".join(f"{words.resource(n, devices)} {words.mb(c)}" for n, c in caps.items())
    if not sizes:
        return ""
    effect = {
        "enforced": "enforced: exceeding it fails only this run",
        "advised": "passed to the framework, not enforced",
    }.get(enforcement, "not enforced")
    return f"{sizes} ({effect})"


def _estimate_rows(run: Json, *, ended: bool) -> Iterator[Row]:
    """Return each number with its origin; of an ended run, without the unknown ones."""
    label = "estimate"
    for term in (run.get("estimate") or {}).get("terms") or ():
        if not ended or term.get("need_bytes") is not None:
            yield Row(label, words.term(term))
            label = ""


def _command_rows(run: Json) -> Iterator[Row]:
    run_id = run.get("run_id", "?")
    yield Row("to stop", f"%gpu_cancel {run_id}")
    yield Row("", f"jupyter gpugate cancel {run_id}")


def _stopped(kill: Json) -> str:
    survivors = words.pids(kill.get("survivors") or ())
    left = f"; still running: {survivors}" if survivors else ""
    return f"{words.stopped_by(kill)}{left}"


def _row_html(row: Row) -> str:
    bar = ""
    if row.share >= 0:
        bar = (
            '<div style="height:4px;width:16em;margin-bottom:3px;background:#8883">'
            f'<div style="height:4px;width:{100 * row.share:.0f}%;background:#2a5db0"></div></div>'
        )
    return (
        f'<tr style="background:none"><td style="{_CELL};opacity:.7">{escape(row.label)}</td>'
        f'<td style="{_CELL}">{escape(row.text)}{bar}</td></tr>'
    )
