"""Widgets, shown as text that follows their state."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .displays import clear_output, show
from .events import Events

#: The form of a display that a page shows if it has the widget's model.
WIDGET = "application/vnd.jupyter.widget-view+json"
_PACE_S = 0.2  # between two updates of the texts


class WidgetTexts:
    """Shows widgets as text that follows their state, because the page does not have their models.

    A model is kept in the process that made it, which is this one; the notebook's page asks the
    notebook's kernel for it.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._shown: dict[str, Any] = {}  # the widget of each display that follows one
        self._texts: dict[str, str] = {}
        self._displays_of: Any = weakref.WeakKeyDictionary()  # by each part of a widget
        self._changed: set[str] = set()
        self._awake = threading.Event()
        self._lock = threading.RLock()
        self._thread: Optional[threading.Thread] = None

    def show(
        self,
        data: Mapping[str, Any],
        metadata: Optional[Mapping[str, Any]] = None,
        transient: Optional[Mapping[str, Any]] = None,
        **how: bool,
    ) -> None:
        """Send a display; the view of a widget is replaced by its text."""
        name = (transient or {}).get("display_id")
        self._shown.pop(str(name), None)  # it shows something else now
        if WIDGET not in data:
            show(self._events, data, metadata, transient, **how)
            return
        rest = {kind: form for kind, form in data.items() if kind != WIDGET}
        widget = _widget(data[WIDGET])
        if widget is None or set(rest) - {"text/plain"}:
            plain = rest or {"text/plain": "[a widget of the run]"}
            show(self._events, plain, metadata, transient, **how)
            return
        name = str(name or f"gpugate-widget-{os.getpid()}-{len(self._texts)}")
        with self._lock:
            text = self._follow(name, widget) or rest.get("text/plain") or ""
            self._texts[name] = text
            show(self._events, {"text/plain": text}, None, {"display_id": name}, **how)

    def clear(self, *, wait: bool) -> None:
        """Clear the page, and stop following its widgets.

        The contents of an `Output` widget are on the page like everything else, so that clearing
        the widget must leave the page alone.
        """
        if not _is_in_output_widget():
            self._shown.clear()
            clear_output(self._events, wait=wait)

    def catch_up(self) -> None:
        """Update the displays of the widgets that have changed."""
        with self._lock:
            changed, self._changed = self._changed, set()
            for name in sorted(changed & set(self._shown)):
                widget = self._shown.get(name)
                text = "" if widget is None else self._follow(name, widget)
                if text != self._texts[name]:
                    self._texts[name] = text
                    place = {"display_id": name}
                    show(self._events, {"text/plain": text}, None, place, update=True)

    def _follow(self, name: str, widget: Any) -> str:
        self._shown[name] = widget
        for part in _parts(widget):
            if part not in self._displays_of:
                self._displays_of[part] = set()
                part.observe(self._note)
            self._displays_of[part].add(name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpugate-widgets", daemon=True)
            self._thread.start()
        return text_of(widget)

    def _note(self, change: Any) -> None:
        self._changed |= self._displays_of.get(change["owner"], set())
        self._awake.set()

    def _run(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            with contextlib.suppress(Exception):  # widgets may be of any class
                self.catch_up()
            time.sleep(_PACE_S)


def _widget(view: Any) -> Any:
    """Return the widget of this process that a view belongs to, or None."""
    return _widgets_here().get(view.get("model_id") if isinstance(view, Mapping) else None)


def _widgets_here() -> Mapping[Any, Any]:
    """Return the widgets of this process by the id of their model."""
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    known = getattr(module, "_instances", None)
    if known is None:  # ipywidgets 7
        known = getattr(getattr(module, "Widget", None), "widgets", None)
    return known or {}


def _is_in_output_widget() -> bool:
    """Return whether the cell is in the ``with`` block of an `Output` widget."""
    module: Any = sys.modules.get("ipywidgets.widgets.widget_output")
    output = getattr(module, "Output", None)
    known = _widgets_here().values()
    return output is not None and any(
        isinstance(widget, output) and widget.msg_id for widget in list(known)
    )


def _parts(widget: Any) -> Iterator[Any]:
    """Yield a widget and all widgets in it."""
    waiting, seen = [widget], set()
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += getattr(part, "children", ())


def text_of(widget: Any) -> str:
    """Write a widget as one or more lines: bars as bars, labels and values as text."""
    import html

    layout = getattr(widget, "layout", None)
    hidden = {getattr(layout, "visibility", None), getattr(layout, "display", None)}
    if getattr(widget, "comm", None) is None or hidden & {"hidden", "none"}:
        return ""
    kinds = {kind.__name__ for kind in type(widget).__mro__}
    if hasattr(widget, "children"):
        parts = filter(None, map(text_of, widget.children))
        return (" " if "HBox" in kinds else "\n").join(parts)
    if "Output" in kinds:
        return "".join(map(_text_of_output, widget.outputs)).rstrip("\n")
    value = getattr(widget, "value", None)
    if kinds & {"FloatProgress", "IntProgress"}:
        is_narrow = getattr(layout, "width", None) == "20px"  # as where no end is known
        value = _bar(widget, 2 if is_narrow else 20)
    elif kinds & {"HTML", "HTMLMath", "Label"}:
        value = html.unescape(re.sub(r"<[^>]*>", "", str(value))).replace("\u2007", " ").strip()
    elif isinstance(value, (bytes, bytearray, memoryview)):
        value = None
    words = (getattr(widget, "description", None), value)
    return " ".join(str(word) for word in words if word not in (None, ""))


def _text_of_output(output: Mapping[str, Any]) -> str:
    """Return the text of an output put into an `Output` widget without a `with` block."""
    return str(output.get("text") or f"{(output.get('data') or {}).get('text/plain', '')}\n")


def _bar(widget: Any, width: int) -> str:
    span = widget.max - widget.min
    share = min(1.0, max(0.0, (widget.value - widget.min) / span)) if span else 1.0
    full = int(share * width)
    return f"|{'█' * full}{' ' * (width - full)}|"
