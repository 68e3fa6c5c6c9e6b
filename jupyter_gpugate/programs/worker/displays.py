"""Displays and clears, sent to the supervisor."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any, Optional

from .events import Events

#: Bytes of one display; no front end shows more.
DISPLAY_MOST = 24 << 20


def show(
    events: Events,
    data: Mapping[str, Any],
    metadata: Optional[Mapping[str, Any]] = None,
    transient: Optional[Mapping[str, Any]] = None,
    *,
    update: bool = False,
    result: bool = False,
) -> None:
    """Send a display, after all output printed before it."""
    _flush()
    fitting = _fitting(data, events)
    name = (transient or {}).get("display_id")
    # The transient part comes first: the supervisor does not read the data of a large display.
    fields = {
        "transient": {} if name is None else {"display_id": str(name)},
        "data": fitting,
        "metadata": metadata or {},
    }
    if update:  # has no place of its own
        events.send("display", update=True, result=result, **fields)
    else:
        events.show(update=False, result=result, **fields)


def clear_output(events: Events, *, wait: bool) -> None:
    """Send a clear of everything displayed and printed before it."""
    _flush()
    events.show("wait" if wait else "now", clear=True, wait=wait)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _fitting(data: Mapping[str, Any], events: Events) -> Mapping[str, Any]:
    """Drop the forms of a display that are too large, with a warning."""
    sizes = {kind: _size(form) for kind, form in data.items()}
    kept: dict[str, Any] = {}
    for kind in sorted(data, key=sizes.__getitem__):
        if sum(map(sizes.__getitem__, kept)) + sizes[kind] <= DISPLAY_MOST:
            kept[kind] = data[kind]
    if len(kept) == len(data):
        return data
    left_out = sum(sizes.values()) - sum(map(sizes.__getitem__, kept))
    problem = (
        f"a display of {left_out >> 20:,} MB is not shown: {DISPLAY_MOST >> 20} MB is the most"
    )
    events.warn(problem)
    return {"text/plain": f"[{problem}]"}


def _size(form: Any) -> int:
    """Estimate the bytes that a form of a display takes in an event."""
    if isinstance(form, str):
        return len(form) if form.isascii() else 6 * len(form)
    if isinstance(form, (bytes, bytearray)):
        return len(form) * 4 // 3
    if isinstance(form, Mapping):
        return sum(len(str(key)) + _size(value) for key, value in form.items())
    if isinstance(form, (list, tuple)):
        return sum(map(_size, form))
    return 20
