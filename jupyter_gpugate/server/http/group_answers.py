"""The answers of the user API about groups, as in `answers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jupyter_gpugate.core.explaining.rows import ByResource, EpisodeCount, WaitReason
from jupyter_gpugate.core.reports import EndName, Phase, Status
from jupyter_gpugate.runs.orders import Cancelled
from jupyter_gpugate.runs.record import COMMAND, PARAMETERS


@dataclass(frozen=True)
class GroupRow:
    """One run of a group."""

    run_id: str
    name: str
    parameters: Mapping[str, str] = field(metadata={"description": PARAMETERS})
    command: str = field(metadata={"description": COMMAND})
    status: Status
    phase: Phase | Literal["ending"] | None
    end: EndName | None
    exit_reason: str
    exit_detail: str
    exit_code: int | None
    oom_evidence: str | None
    error: str | None = field(metadata={"description": "The exception that it raised, in a line."})
    attempt: int
    reasons: tuple[WaitReason, ...]
    position: int | None
    eta_s: float | None
    charges: ByResource
    held: ByResource
    peaks: ByResource
    episodes: EpisodeCount
    submitted: float
    ended: float | None
    duration_s: float | None = field(
        metadata={"description": "Of the last attempt, once the run has ended."}
    )
    started_s: float | None = field(metadata={"description": "While it is active."})
    last_line: str = field(metadata={"description": "The last line of its output."})
    directory: str


@dataclass(frozen=True)
class GroupAnswer:
    """The runs of a group, in the order of their submits, and the state of all together."""

    group: str
    name: str
    status: Status = field(
        metadata={"description": "`queued` if none has started, `ended` if all have ended."}
    )
    size: int | None = field(
        metadata={"description": "How many runs the group is to have, if its submitter has said so"}
    )
    at_most: int | None
    counts: Mapping[str, int] = field(
        metadata={"description": "The number of runs by end, or by status if they have not ended."}
    )
    detached: bool
    cancel_requested: bool
    runs: tuple[GroupRow, ...]


@dataclass(frozen=True)
class GroupCancelAnswer:
    """The stop of all unfinished runs of a group."""

    group: str
    runs: Mapping[str, Cancelled]
    refused: Mapping[str, str] = field(
        metadata={"description": "The runs that could not be stopped, and why."}
    )
