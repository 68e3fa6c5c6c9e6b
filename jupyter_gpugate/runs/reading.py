"""Reads of one run: its output, its episodes, and everything on record about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_gpugate.runs import directory, output
from jupyter_gpugate.runs.folder import Stored
from jupyter_gpugate.runs.life import ENDED
from jupyter_gpugate.runs.record import Record


@dataclass(frozen=True)
class Output:
    """A piece of a run's output."""

    start: int = field(metadata={"alias": "from"})
    next: int
    text: str
    ended: bool
    attempt: int = field(metadata={"description": "The attempt whose output this is."})


@dataclass(frozen=True)
class Exported:
    """Everything recorded in a run's directory, except its environment and its values."""

    spec: Stored
    summary: Stored
    episodes: Sequence[Stored]
    episodes_left_out: int
    output: str


async def output_of(record: Record, start: int) -> Output:
    """Return the newest attempt's output from a byte on, at most 64 KiB of it."""
    attempt = record.attempt
    text, following = await asyncio.to_thread(output.read_output, record.attempt_path, start)
    ended = record.status == ENDED and not text
    return Output(start, following, text, ended, attempt)


def output_tail(record: Record, until: int | None = None) -> str:
    """Return the end of a live run's output, or of its part before a byte."""
    return output.output_tail(record.attempt_path, until) if record.attempt else ""


def output_end(record: Record) -> str:
    """Return the last few lines of the output."""
    if record.status == ENDED:
        return str(record.summary.get("output_tail", ""))[-output.LAST_BYTES :]
    return output.read_output(record.attempt_path, limit=output.LAST_BYTES)[0]


def output_from(record: Record, start: int) -> str:
    """Return the output from a byte on, or the end of it."""
    return output.output_from(record.attempt_path, start) if record.attempt else ""


def stamp_of(record: Record) -> tuple[Any, ...]:
    """Return a stamp that changes whenever the record or the output changes."""
    tail = output.output_stamp(record.attempt_path) if record.attempt else None
    return record.life, tail


async def episodes_of(record: Record) -> tuple[list[Stored], int]:
    """Return finished episodes of every attempt, and how many earlier ones are left out."""
    return await asyncio.to_thread(directory.read_episodes, record.path)


@dataclass(frozen=True)
class Attempt:
    """One attempt as its directory has it: its instructions, and its end, empty while it lives."""

    number: int
    path: Path
    launch: Mapping[str, Any]
    end: Mapping[str, Any]

    @property
    def reported_peaks(self) -> dict[str, int]:
        """Return the peaks that its supervisor has reported, per resource."""
        peaks = self.end.get("peaks") or {}
        ram = {"ram": peaks["ram_bytes"]} if peaks.get("ram_bytes") else {}
        return {**(peaks.get("vram_bytes") or {}), **ram}


async def attempts_of(record: Record) -> list[Attempt]:
    """Return the attempts of a run, in order."""
    return await asyncio.to_thread(_attempts, record.path)


def _attempts(path: Path) -> list[Attempt]:
    found = []
    for number in directory.attempts_of(path):
        place = path / "attempts" / str(number)
        launch = directory.launch_of(place) or {}
        found.append(Attempt(number, place, launch, directory.end_of(place)))
    return found


async def export_of(record: Record) -> Exported:
    """Return spec, summary, episodes and output."""
    beginning = await output_of(record, 0)
    episodes, left_out = await episodes_of(record)
    return Exported(dict(record.spec), record.summary, episodes, left_out, beginning.text)
