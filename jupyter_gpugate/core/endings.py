"""Why a run is stopped and how it ended, as values; and the texts of the wire that say the same.

Heartbeats, reports and the journal carry a reason as one text: a word for programs, a word and a
sentence (``max_wait: ...``), or a sentence.  Only this module takes such a text apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Optional

from jupyter_gpugate.core.reports import RunEnd

#: The reason of a heartbeat, with the processes that SIGKILL has not ended yet.
_STOP = re.compile(r"(?P<reason>.*?)(?: ?\(kill_pending: (?P<pids>[0-9, ]*)\))?", re.DOTALL)
#: A word for programs; a sentence may name anything, such as a path.
_WORD = re.compile(r"[a-z_]+|exit \d+|signal \d+")


class StopKind(str, Enum):
    """Why the processes of a run are stopped."""

    CANCELLED = "cancelled"
    EVICTED = "evicted"
    FENCED = "fenced"  # another attempt, or none, holds the lease
    TERMINATED = "terminated"  # by a signal that names no reason
    KILLED = "killed"  # with its supervisor, which left no reason
    REMOVED = "removed"  # the run has removed its directory, and the reason with it
    ENDED = "ended"  # nobody asked: the run has ended, failed or reached its time limit


#: The end of a run that had to complete first, in words.
IN_VAIN: Final[Mapping[RunEnd, str]] = {
    RunEnd.FAILED: "failed",
    RunEnd.CANCELLED: "was cancelled",
    RunEnd.EXPIRED: "expired in the queue",
    RunEnd.REJECTED: "was rejected",
    RunEnd.OOM: "ran out of memory",
    RunEnd.LOST: "was lost",
}
#: The party that asks for each kind of stop.
_ASKED_BY = {
    StopKind.CANCELLED: "owner",
    StopKind.EVICTED: "gate",
    StopKind.FENCED: "gate",
    StopKind.TERMINATED: "signal",
    StopKind.KILLED: "signal",
    StopKind.REMOVED: "run",
    StopKind.ENDED: "run",
}


@dataclass(frozen=True)
class Stop:
    """A stop of a run's processes."""

    kind: StopKind
    by: str  # "owner", "gate", "signal" or "run"
    detail: str = ""

    @classmethod
    def of(cls, kind: StopKind, detail: str = "") -> Stop:
        """Make the stop of the party that asks for this kind."""
        return cls(kind, _ASKED_BY[kind], detail)

    @property
    def is_cancel(self) -> bool:
        return self.kind is StopKind.CANCELLED

    @property
    def is_unexplained(self) -> bool:
        """Whether the one who asked for the stop is not known by it."""
        return self.kind in {StopKind.TERMINATED, StopKind.KILLED, StopKind.REMOVED}

    @property
    def reason(self) -> str:
        """The text of the wire."""
        return self.detail if self.kind is StopKind.ENDED else self.kind.value


def read_stop(text: str) -> tuple[Optional[Stop], tuple[int, ...]]:
    """Read a heartbeat's reason: the stop, and the processes that SIGKILL has not ended yet."""
    found = _STOP.fullmatch(text)
    reason, pids = (found["reason"], found["pids"]) if found else (text, None)
    kinds = {kind.value: kind for kind in StopKind if kind is not StopKind.ENDED}
    stop = Stop.of(kinds[reason]) if reason in kinds else Stop.of(StopKind.ENDED, reason)
    survivors = tuple(int(pid) for pid in (pids or "").replace(",", " ").split())
    return stop if reason else None, survivors


def write_stop(stop: Stop, survivors: tuple[int, ...]) -> str:
    """Write a stop as a heartbeat's reason."""
    pending = f"(kill_pending: {', '.join(map(str, survivors))})" if survivors else ""
    return f"{stop.reason} {pending}".strip()


@dataclass(frozen=True)
class End:
    """The end of a run, with the cause as a word for programs and the rest for people."""

    kind: RunEnd
    cause: str = ""  # "time_limit", "exit 3", "max_wait", ...; "" where there is only a sentence
    detail: str = ""

    @classmethod
    def of(cls, kind: RunEnd, reason: str) -> End:
        """Read an end's reason as it is on the wire, in the journal and on the disk."""
        return cls(kind, cause_of(reason), detail_of(reason))

    @property
    def reason(self) -> str:
        """The text of the wire."""
        return ": ".join(filter(None, (self.cause, self.detail)))


def cause_of(reason: str) -> str:
    """Return a reason's word for programs; "" for a sentence alone, which may name anything."""
    word = reason.partition(": ")[0]
    return word if _WORD.fullmatch(word) else ""


def detail_of(reason: str) -> str:
    """Return a reason without its word for programs."""
    return reason.partition(": ")[2] if cause_of(reason) else reason
