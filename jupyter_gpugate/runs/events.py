"""Reads an attempt's files of events, and the texts that a summary keeps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jupyter_gpugate.runs.folder import Stored, Torn, decoded, opened_attempt
from jupyter_gpugate.runs.output import output_tail

#: The most bytes of a file of events that are read.
EVENTS_LIMIT: Final = 128 << 20
#: The most characters that a summary keeps of one text, and of all texts of one kind.
TEXT_LIMIT: Final = 16 << 10
TEXTS_LIMIT: Final = 256 << 10
#: The most warnings that a summary keeps.
MOST_WARNINGS: Final = 100

_CHUNK: Final = 1 << 20


def read_events(attempt: Path, name: str, limit: int = EVENTS_LIMIT) -> tuple[list[Stored], int]:
    """Return the whole lines of an attempt's file of events, and how many earlier ones it has.

    Of a file that is larger than ``limit`` bytes the end is read, and the rest is only counted.
    """
    found: list[Stored] = []
    earlier = 0
    with contextlib.suppress(OSError, Torn), contextlib.ExitStack() as open_ones:
        folder = open_ones.enter_context(opened_attempt(attempt))
        file = open_ones.enter_context(os.fdopen(folder.open_file(name), "rb"))
        beyond = os.fstat(file.fileno()).st_size - limit
        if beyond > 0:
            while beyond > 0 and (skipped := file.read(min(beyond, _CHUNK))):
                earlier += skipped.count(b"\n")
                beyond -= len(skipped)
            earlier += file.readline().endswith(b"\n")  # its beginning was skipped
        for line in file:
            with contextlib.suppress(Torn):
                found.append(decoded(line))
    return found, earlier


def told_by_run(attempt: Path) -> Stored:
    """Return a run's own reports for its summary: error, warnings, end of the output."""
    # A supervisor of an earlier version keeps all events in one file.
    name = "messages.jsonl" if (attempt / "messages.jsonl").exists() else "display.jsonl"
    events, _ = read_events(attempt, name)
    errors = [event for event in events if event.get("event") == "error"]
    said = [str(event.get("text", "")) for event in events if event.get("event") == "warning"]
    warnings = list(dict.fromkeys(said))
    if len(warnings) > MOST_WARNINGS:
        more = len(warnings) - MOST_WARNINGS
        # The last ones are the supervisor's own, about what it could not keep.
        half = MOST_WARNINGS // 2
        warnings[half:-half] = [f"{more:,} more warnings are not shown"]
    return {
        "error": _error_of(errors[-1]) if errors else None,
        "warnings": _clipped(warnings),
        "output_tail": output_tail(attempt),
    }


def _error_of(event: Stored) -> Stored:
    """Return an error as the run reported it, shortened for a summary."""
    lines = event.get("traceback")
    kept = _clipped(lines[::-1])[::-1] if isinstance(lines, list) else lines and clip(lines)
    words = {name: clip(event[name]) if name in event else None for name in ("ename", "evalue")}
    return {**words, "traceback": kept}


def clip(text: object) -> str:
    """Return the beginning and the end of a text that is too long for a summary."""
    text = str(text)
    half = TEXT_LIMIT // 2
    return text if len(text) <= TEXT_LIMIT else f"{text[:half]} [...] {text[-half:]}"


def _clipped(texts: Sequence[object]) -> list[str]:
    """Return texts, each clipped, as many as fit into the limit together."""
    kept: list[str] = []
    size = 0
    for text in map(clip, texts):
        size += len(text) + 1
        if size > TEXTS_LIMIT:
            return [*kept, f"[{len(texts) - len(kept)} more]"]
        kept.append(text)
    return kept
