"""The run side's records of its runs in memory; the run directories have the same content."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jupyter_gpugate.core.explaining.rows import ByResource
from jupyter_gpugate.core.reports import EndName, Status
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.runs import lifecycle
from jupyter_gpugate.runs.life import ENDED, Action, Event, Life

#: The number of whole records in memory before older ended ones are released.
AT_HAND = 512
#: Records of released runs that are kept for further questions.
LOADED = 32
#: What lists show of a run is kept at hand for every run, and is bounded.
MOST_PARAMETERS = 32
VALUE_CHARS = 80
COMMAND_CHARS = 400
PARAMETERS = "Names and values; a very long value is cut."
GROUP = "The group that it was submitted in, if any."
COMMAND = "The command line of a program; a very long one is cut. Empty for a cell."

A = TypeVar("A")


class Refused(Exception):
    """A refused request with its reason; becomes one HTTP answer."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        /,
        *,
        retry_after: str | None = None,
        **detail: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.detail = detail
        self.retry_after = retry_after


@dataclass(frozen=True)
class RunRow:
    """One run in a list of runs."""

    run_id: str
    name: str
    parameters: Mapping[str, str] = field(metadata={"description": PARAMETERS})
    command: str = field(metadata={"description": COMMAND})
    group: str | None = field(metadata={"description": GROUP})
    status: Status
    end: EndName | None
    reason: str
    submitted: float
    ended: float | None
    attempt: int
    duration_s: float | None = field(
        metadata={"description": "Of the last attempt, once the run has ended."}
    )
    peaks: ByResource | None
    machine: str | None = field(
        metadata={"description": "The other machine to which it belongs, if any."}
    )


@dataclass
class Record:
    """One run: its spec, its state, and the summary that was first on the disk."""

    run_id: str
    path: Path
    spec: Mapping[str, Any]
    first_summary: Mapping[str, Any]
    request: Request
    life: Life
    host: str = ""  # the name of the other machine that it belongs to
    problem: str = ""  # why it is known in part only, and cannot begin again
    end: asyncio.Event = field(default_factory=asyncio.Event)

    def apply(self, event: Event) -> tuple[Action, ...]:
        """Change the state; return the actions that follow."""
        self.life, actions = lifecycle.apply(self.life, event)
        if self.life.ended:
            self.end.set()
        return actions

    @property
    def status(self) -> str:
        return self.life.status

    @property
    def attempt(self) -> int:
        return self.life.attempts

    @property
    def summary(self) -> dict[str, Any]:
        """The run in JSON: as the disk had it, and all that has become of it."""
        now = {"status": self.status, "attempt": self.attempt}
        return {**self.first_summary, **self.life.facts, **now}

    @property
    def submitted(self) -> float:
        when: float = self.first_summary["submitted"]
        return when

    @property
    def attempt_path(self) -> Path:
        return self.path / "attempts" / str(self.attempt)

    def row(self) -> RunRow:
        """The run in a list of runs."""
        return row_of(self.run_id, {**self.summary, **listed_of(self.spec)._asdict()}, self.host)


class Listed(NamedTuple):
    """The parts of a spec that lists show."""

    name: str
    parameters: Mapping[str, str]
    command: str  # of a program
    group: str | None


def listed_of(spec: Mapping[str, Any]) -> Listed:
    """Return the parts of a spec that lists show, cut where they are very long."""
    parameters = list((spec.get("parameters") or {}).items())[:MOST_PARAMETERS]
    return Listed(
        spec["name"],
        {str(n): shortened(str(v), VALUE_CHARS) for n, v in parameters},
        shortened(shlex.join(map(str, spec.get("argv") or ())), COMMAND_CHARS),
        spec.get("group"),
    )


def shortened(text: str, most: int) -> str:
    """Cut a text to its beginning, with a mark."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def row_of(run_id: str, summary: Mapping[str, Any], host: str = "") -> RunRow:
    """A run in a list of runs, by its summary."""
    return RunRow(
        run_id=run_id,
        name=summary["name"],
        parameters=_of_kind(dict, summary.get("parameters")),
        command=_of_kind(str, summary.get("command")),
        group=_of_kind(str, summary.get("group")) or None,
        status=summary["status"],
        end=summary.get("end"),
        reason=summary.get("reason", ""),
        submitted=summary["submitted"],
        ended=summary.get("ended"),
        attempt=int(summary.get("attempt") or 0),
        duration_s=_duration_of(summary.get("outcome")),
        peaks=summary.get("peaks"),
        machine=host or None,
    )


def _of_kind(kind: type[A], value: Any) -> A:
    """Return a value of a summary that an earlier version, or another program, has written."""
    return value if isinstance(value, kind) else kind()


def _duration_of(outcome: Any) -> float | None:
    end = _of_kind(dict, _of_kind(dict, outcome).get("end"))
    duration = end.get("duration_s")
    return duration if isinstance(duration, (int, float)) else None


class Records:
    """The runs of one user; of most that have ended only their rows are kept at hand."""

    def __init__(self, load: Callable[[str], Record | None]) -> None:
        self._records: dict[str, Record] = {}
        self._past: dict[str, RunRow] = {}
        self._by_key: dict[str, str] = {}
        self._by_group: dict[str, dict[str, None]] = {}
        self._load = load  # a run that is not at hand, from the disk
        self._loaded: dict[str, Record] = {}  # those asked for last

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._records or run_id in self._past

    def __len__(self) -> int:
        return len(self._records) + len(self._past)

    def add(self, record: Record) -> None:
        """Take a run in, and the key it was submitted with."""
        self._records[record.run_id] = record
        self._past.pop(record.run_id, None)
        self._note_key(record.run_id, record.spec.get("idempotency_key"))
        self._note_group(record.run_id, record.spec.get("group"))
        if len(self._records) > AT_HAND:
            ended = [r for r in self if r.status == ENDED and r.life.stored]
            for old in ended[: len(ended) // 2]:
                self._past[old.run_id] = self._records.pop(old.run_id).row()

    def add_past(self, row: RunRow, key: object) -> None:
        """Take in a run that has ended, and of which the disk has the rest."""
        if row.run_id not in self._records:
            self._past[row.run_id] = row
            self._note_key(row.run_id, key)
            self._note_group(row.run_id, row.group)

    def remove(self, run_id: str) -> None:
        """Forget a run and its key."""
        self._records.pop(run_id, None)
        self._past.pop(run_id, None)
        self._loaded.pop(run_id, None)
        for key in [key for key, of in self._by_key.items() if of == run_id]:
            del self._by_key[key]
        for members in self._by_group.values():
            members.pop(run_id, None)

    def get(self, run_id: str) -> Record | None:
        record = self._records.get(run_id) or self._loaded.get(run_id)
        if record is None:
            record = self._load(run_id)
            if record is not None:
                self._loaded[run_id] = record
                while len(self._loaded) > LOADED:
                    del self._loaded[next(iter(self._loaded))]
        return record

    def known(self, run_id: str) -> Record:
        """Return the record of a run; `Refused` (404) if there is none."""
        record = self.get(run_id)
        if record is None:
            # A run is often asked for by its name, of which there may be many.
            named = [r.run_id for r in self.unfinished() if r.spec["name"] == run_id]
            meant = f"; it is the name of {', '.join(named)}" if named else ""
            raise Refused(404, "not_found", f"there is no run {run_id}{meant}", run_id=run_id)
        return record

    def own(self, run_id: str) -> Record:
        """Return the record of a run of this machine; `Refused` (409) for another machine's."""
        record = self.known(run_id)
        if record.host:
            raise Refused(
                409,
                "elsewhere",
                f"{run_id} belongs to another machine, {record.host}, and can be changed there "
                f"only; if that machine is gone for good, remove {record.path}",
                run_id=run_id,
                machine=record.host,
            )
        return record

    def with_key(self, key: str) -> Record | None:
        """The run that was submitted with a key."""
        run_id = self._by_key.get(key)
        return None if run_id is None else self.get(run_id)

    def in_group(self, group: str) -> list[RunRow]:
        """Return the runs of a group, oldest first."""
        at_hand = (self._records.get(run_id) for run_id in self._by_group.get(group, ()))
        past = (self._past.get(run_id) for run_id in self._by_group.get(group, ()))
        rows = [*(record.row() for record in at_hand if record), *filter(None, past)]
        return sorted(rows, key=lambda row: (row.submitted, row.run_id))

    def newest(self, name: str) -> Record | None:
        """The run of this name that was submitted last."""
        return next((self.get(r.run_id) for r in self.rows() if r.name == name), None)

    def rows(self) -> list[RunRow]:
        """All runs, newest first."""
        rows = [*self._past.values(), *(record.row() for record in self)]
        return sorted(rows, key=lambda row: (row.submitted, row.run_id), reverse=True)

    def unfinished(self) -> list[Record]:
        """Return the unfinished runs of this machine, in the order of submission."""
        found = [r for r in self if r.status != ENDED and not r.host]
        return sorted(found, key=lambda r: (r.submitted, r.run_id))

    def elsewhere(self) -> list[Record]:
        """Return the unfinished runs of other machines, as last read, oldest first."""
        found = [r for r in self if r.status != ENDED and r.host]
        return sorted(found, key=lambda r: (r.submitted, r.run_id))

    def past_ids(self) -> list[str]:
        """The runs of which only rows are at hand."""
        return list(self._past)

    def _note_key(self, run_id: str, key: object) -> None:
        if isinstance(key, str) and key:
            self._by_key[key] = run_id

    def _note_group(self, run_id: str, group: object) -> None:
        if isinstance(group, str) and group:
            self._by_group.setdefault(group, {})[run_id] = None
