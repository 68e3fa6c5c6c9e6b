"""Shows the displays and prints of a run in the notebook, in order.

Until its first display a run's output is on its card.  From then on the card keeps what came before
it, and displays and printed text follow below the card, each in a slot: a display that is updated
in place.  A run that clears its output clears its slots; the card stays.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Optional

from jupyter_gpugate.client.printed import Part, read_part
from jupyter_gpugate.client.results import attempt_folder
from jupyter_gpugate.faces import card, words

#: The least time between two looks at the files of an unchanged run.
_PACE_S: Final = 0.25
#: How much is read before it is shown, and of how much printed text the end is shown: less while it
#: still grows, as all of it is sent each time.
_BATCH: Final = 8 << 20
_TEXT_MOST: Final = 64 << 10
_LIVE_MOST: Final = 16 << 10
#: The view of a widget, whose model is in the run's process and not in this kernel.
_VIEW: Final = "application/vnd.jupyter.widget-view+json"
_BLANK: Final[Mapping[str, str]] = {"text/plain": ""}


class _Slot:
    """One place below the card, and its content."""

    def __init__(self, name: str, worker: Optional[int]) -> None:
        self.name = name
        self.worker = worker  # None: printed text
        self.content: Optional[Mapping[str, Any]] = None  # None: what is on the page stays
        self.is_blank = True
        self.is_on_page = False

    def put(self, data: Mapping[str, Any], metadata: Optional[Mapping[str, Any]] = None) -> None:
        self.content = {"data": data, "metadata": metadata or {}}
        self.is_blank = data is _BLANK


class Replay:
    """Follows the files of one run.

    ``updates`` says whether the front end can renew a display, ``scripted`` whether the script of
    the run's card keeps growing text up to date: then it is not rewritten under the reader's hand.
    """

    def __init__(self, publisher: Any, *, updates: bool = True, scripted: bool = False) -> None:
        self._publisher = publisher
        self._scripted = scripted
        self._updates = updates
        self._path = Path()
        self._file: Optional[BinaryIO] = None
        self._looked_at = 0.0
        self._slots: list[_Slot] = []
        self._begin()

    def _begin(self) -> None:
        """Start reading an attempt; slots of an earlier one stay on the page."""
        self.close()
        self._read_to = self._seen = self._next = 0
        self._of_display: dict[tuple[object, object], list[_Slot]] = {}
        self._clearing: set[object] = set()  # what is cleared as soon as anything comes
        self._cleared_at = 0  # where in the output on the card the last clear of it stands
        self._has_missed = False
        self._until: Optional[int] = None  # where the output on the card ends
        self._text_from = 0
        self._text: Optional[_Slot] = None
        self._text_shown: Mapping[str, str] = {}
        self._log: tuple[object, ...] = ()  # as it was when its end was shown

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def on_card(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state as the card shows it: without the output that is below the card."""
        if self._until is None:
            return dict(state)
        part = read_part(self._path / "output.log", 0, self._until, _TEXT_MOST)
        return {**state, "output_tail": self._said(part), "output_until": self._until}

    def catch_up(self, state: Mapping[str, Any], *, patient: bool = False) -> bool:
        """Show new output; return whether the card must show another part of it.

        ``patient``: no changes are expected, so read only now and then.
        """
        folder = attempt_folder(state)
        now = time.monotonic()
        if folder is None or (patient and now - self._looked_at < _PACE_S):
            return False
        self._looked_at = now
        before = self._until
        if folder != self._path:
            self._clear(None)
            self._begin()
            self._path = folder
        for event in self._new_events(folder / "display.jsonl"):
            self._take(event)
        if self._until is not None:
            self._show_text(state)
        self._flush()
        return self._until != before

    # -- the files ------------------------------------------------------------------------------

    def _new_events(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            if self._file is None or not _is_same(self._file, path):
                if self._file is not None:
                    self._file.close()
                self._file, self._read_to = path.open("rb"), 0
        except FileNotFoundError:
            return
        self._file.seek(self._read_to)
        batch = 0
        for line in self._file:
            if not line.endswith(b"\n"):  # it is still being written
                return
            self._read_to += len(line)
            batch += len(line)
            event = _decoded(line)
            if event is not None and self._is_new(event):
                yield event
            if batch > _BATCH:
                self._flush()
                batch = 0

    def _is_new(self, event: Mapping[str, Any]) -> bool:
        """Return whether a line is new; a rewritten file is read again."""
        number = event.get("n")
        if not isinstance(number, int):
            return True
        is_new = number > self._seen
        self._seen = max(self._seen, number)
        return is_new

    # -- the page -------------------------------------------------------------------------------

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, worker, at = event.get("event"), event.get("worker", 0), event.get("at")
        if kind == "gone":
            self._has_missed = True
            missing = f"up to {event.get('count')} earlier displays were too fast to be shown"
            self._slot(worker).put({"text/plain": f"[{missing}]"})
        elif kind == "display" and not self._updates:
            if not event.get("clear"):
                self._publish(_content(event), update=bool(event.get("update")))
        elif kind == "display" and event.get("clear"):
            if self._until is not None:
                self._end_text(at)
            elif isinstance(at, int):
                self._cleared_at = at
            target = None if event.get("alone") else worker
            self._clearing.add(target)
            if not event.get("wait"):
                self._clear(target)
        elif kind == "display":
            self._display(event, worker, at)

    def _display(self, event: Mapping[str, Any], worker: object, at: object) -> None:
        name = (event.get("transient") or {}).get("display_id")
        shown = self._of_display.get((worker, name), [])
        if event.get("update") and (shown or not self._has_missed):
            for slot in shown:
                slot.put(**_content(event))
            return
        self._end_text(at)
        for target in self._clearing & {None, worker}:
            self._clear(target)
        slot = self._slot(worker)
        slot.put(**_content(event))
        if name is not None:
            self._of_display.setdefault((worker, name), []).append(slot)

    def _slot(self, worker: Any) -> _Slot:
        """Return the next place to fill, which may be on the page already."""
        while self._next < len(self._slots):
            slot = self._slots[self._next]
            self._next += 1
            if slot.is_blank:
                slot.worker = worker
                return slot
        self._slots.append(_Slot(f"gpugate-{id(self)}-{len(self._slots)}", worker))
        self._next = len(self._slots)
        return self._slots[-1]

    def _clear(self, worker: object) -> None:
        """Remove what one worker displayed; for None everything, including printed text."""
        self._clearing.discard(worker)
        for slot in self._slots:
            if worker is None or slot.worker == worker:
                slot.put(_BLANK)
        if worker is None:
            self._of_display.clear()
            self._text = None
            self._until = None if self._until is None else 0
        else:
            self._of_display = {k: v for k, v in self._of_display.items() if k[0] != worker}
        self._next = 0

    # -- printed text ---------------------------------------------------------------------------

    def _end_text(self, at: object) -> None:
        """Let the text that is being shown end at a byte; the next text begins there."""
        if not isinstance(at, int):
            return
        if self._until is None:
            part = read_part(self._path / "output.log", 0, at, _TEXT_MOST)
            self._until = at if card.output(part.text) else 0
            if card.output(
                read_part(self._path / "output.log", self._cleared_at, at, _TEXT_MOST).text
            ):
                self._clearing.discard(None)  # the text on the card came after the clear
        else:
            part = read_part(self._path / "output.log", self._text_from, at, _TEXT_MOST)
            self._put_text(self._said(part), grows=False)
        self._text, self._text_shown, self._text_from, self._log = None, {}, at, ()

    def _show_text(self, state: Mapping[str, Any]) -> None:
        """Show the text behind the last display, as far as it has come."""
        path = self._path / "output.log"
        is_over = state.get("status") == "ended"
        try:
            found = path.stat()
        except FileNotFoundError:
            return
        log = (found.st_ino, found.st_size, found.st_mtime_ns, is_over)
        if log != self._log and (is_over or not (self._scripted and self._text)):
            self._log = log
            most = _TEXT_MOST if is_over else _LIVE_MOST
            part = read_part(path, self._text_from, None, most)
            text = self._said(part)
            if is_over:  # the cell raises its traceback
                text = card.without_traceback({**state, "output_tail": text})["output_tail"]
            self._put_text(text, grows=not is_over)

    def _put_text(self, text: str, *, grows: bool) -> None:
        shown = card.output(text, self._run_id() if grows else "", self._text_from)
        if shown == self._text_shown or not (shown or self._text):
            return
        self._text_shown = shown
        if self._text is None:
            if None in self._clearing:
                self._clear(None)
            self._text = self._slot(None)
        self._text.put(shown or _BLANK)

    def _run_id(self) -> str:
        return self._path.parents[1].name

    def _said(self, part: Part) -> str:
        """Return the text of a part, with a line that replaces the missing beginning."""
        everything = words.whole_output(self._run_id())
        return f"[earlier lines: {everything}]\n{part.text}" if part.is_cut else part.text

    # -- the front end --------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send changes since the last time to the page."""
        for slot in self._slots:
            content, slot.content = slot.content, None
            if content is None or (slot.is_blank and not slot.is_on_page):
                continue
            self._publish(content, update=slot.is_on_page, name=slot.name)
            slot.is_on_page = True

    def _publish(self, content: Mapping[str, Any], *, update: bool, name: str = "") -> None:
        transient = {"display_id": name} if name else {}
        self._publisher.publish(**content, transient=transient, update=update)


def _is_same(file: BinaryIO, path: Path) -> bool:
    """Tell whether an open file is still the one at a path."""
    return os.path.samestat(os.fstat(file.fileno()), path.stat())


def _decoded(line: bytes) -> Optional[dict[str, Any]]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _content(event: Mapping[str, Any]) -> dict[str, Any]:
    data = dict(event.get("data") or {})
    is_widget = data.pop(_VIEW, None) is not None
    if not data:
        data = {"text/plain": "[a widget of the run]" if is_widget else ""}
    return {"data": data, "metadata": event.get("metadata") or {}}
