"""Output, displays and reports of a run, on their way into the files of its attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from .attempt import Attempt
from .attempt_files import JsonLines, Messages
from .displays import DISPLAY_CAP, DISPLAY_LINES, Displays
from .events import EVENT_CAP
from .inbox import Inbox, pull
from .output import CLEAR, Mark, OutputLog
from .workers import Worker


class Transcript:
    """Reads the workers' output and events; their prints and displays keep their order."""

    def __init__(self, attempt: Attempt, inbox: Inbox, want_reading: Callable[[], None]) -> None:
        self.has_printed = False
        self.episodes: set[int] = set()  # that have ended
        self.resumed = 0  # episodes that earlier attempts have kept
        self.is_of_one_worker = attempt.launch["workers"] == 1
        self._inbox = inbox
        self._want_reading = want_reading
        self._output = OutputLog(attempt.file("output.log"))
        self._episodes = JsonLines(attempt.file("episodes.jsonl"), durable=True)
        displays = attempt.file("display.jsonl")
        self._displays = Displays(displays, alone=self.is_of_one_worker)
        self._messages = Messages(attempt.file("messages.jsonl"))

    def listen(self, worker: Worker) -> None:
        """Read the output and the events of a worker from now on."""
        self._inbox.add(worker.output, partial(self.read_output, worker))
        self._inbox.add(worker.events, partial(self.read_events, worker))

    def note(self, text: str) -> None:
        """Add a line of the supervisor's own to the output."""
        self._output.write(f"[gpugate: {text}]\n".encode(errors="replace"))

    def warn(self, text: str) -> None:
        """Add a warning of the supervisor's own."""
        self._messages.remark(text)

    def write(self) -> None:
        """Bring the lines that wait for the disk to the disk."""
        for records in (self._episodes, self._displays, self._messages):
            records.write()

    def close(self, workers: Iterable[Worker]) -> None:
        """Take in what is left, and report what was not kept."""
        for worker in workers:
            if self._inbox.has(worker.output):
                self.read_output(worker)
            for text, _ in worker.marks.cut(b"", ended=True):
                self._output.write(worker.lines.feed(text, ended=True))
        self._messages.close()
        for remark in self._left_out(workers):
            self.warn(remark)

    # -- output

    def read_output(self, worker: Worker) -> None:
        data, ended = pull(worker.output)
        self.has_printed = self.has_printed or bool(data)
        for text, mark in worker.marks.cut(data, ended=ended):
            if worker.is_to_clear and (text or (mark and not mark.clear)):
                self._output.write(CLEAR)
                worker.is_to_clear = False
            self._output.write(worker.lines.feed(text, ended=ended or mark is not None))
            if mark is not None:
                self._place(worker, mark)
        if ended:
            self._inbox.close(worker.output)

    def _place(self, worker: Worker, mark: Mark) -> None:
        """Record the position of a mark; a clear by the only worker also clears printed text."""
        if len(worker.places) < DISPLAY_LINES:
            worker.places[mark.number] = self._output.end
        if self.is_of_one_worker and mark.clear == "now":
            self._output.write(CLEAR)
        elif self.is_of_one_worker and mark.clear:
            worker.is_to_clear = True

    # -- events

    def read_last_events(self, worker: Worker) -> None:
        """Read the events of a worker that has ended."""
        if self._inbox.has(worker.events):
            self.read_events(worker)

    def read_events(self, worker: Worker) -> None:
        events, ended = worker.take_events()
        for line, event in events:
            self._take(worker, line, event)
        self.write()
        if ended:
            self._inbox.close(worker.events)

    def _take(self, worker: Worker, line: bytes, event: dict[str, Any]) -> None:
        kind = event["event"]
        worker.take(event)
        if kind == "episode" and isinstance(event.get("index"), int):
            self.episodes.add(event["index"])
            self._episodes.add(line)
            self._want_reading()
        elif kind == "resumed" and isinstance(event.get("episodes"), int):
            self.resumed = event["episodes"]
        elif kind == "result":
            self._want_reading()
        elif kind == "display":
            self._displays.add(line, event, worker.index, self._place_of(worker, event))
        elif kind in ("error", "warning"):
            self._messages.add(event)

    def _place_of(self, worker: Worker, event: dict[str, Any]) -> int | None:
        """Return where in the output a display belongs: its mark was written before it."""
        mark = event.get("mark")
        if not isinstance(mark, int):
            return None
        if mark not in worker.places and self._inbox.has(worker.output):
            self.read_output(worker)
        return worker.places.pop(mark, self._output.end)

    def _left_out(self, workers: Iterable[Worker]) -> Iterator[str]:
        """Yield warnings of displays and messages that were not kept."""
        if self._displays.gone:
            yield (
                f"{self._displays.gone:,} displays are no longer on record, which keeps the newest "
                f"{DISPLAY_CAP >> 20} MB of them, {DISPLAY_LINES:,} at most"
            )
        too_long = sum(worker.event_lines.dropped for worker in workers)
        if too_long:
            yield (
                f"{too_long:,} displays or messages are not shown; each was larger than "
                f"{EVENT_CAP >> 20} MB"
            )
