"""The answers of the user API about runs, as in `answers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.explaining.rows import ByResource, DeviceName, EpisodeCount, WaitReason
from jupyter_gpugate.core.reports import EndName, Phase, Status
from jupyter_gpugate.core.requests import Retry
from jupyter_gpugate.gate.port import StoryEvent
from jupyter_gpugate.runs.folder import Stored
from jupyter_gpugate.runs.reading import Exported
from jupyter_gpugate.runs.record import COMMAND, GROUP, PARAMETERS, RunRow


@dataclass(frozen=True)
class SubmitAnswer:
    """A run that was queued, or the earlier one with the same key.

    With `Prefer: respond-async` there may be no run yet: `reading` sources, or `asking` the gate.
    """

    run_id: str | None
    status: Status | Literal["reading", "asking"]
    repeats: str | None = field(
        metadata={"description": "The run whose source or command it repeats, if any."}
    )


@dataclass(frozen=True)
class RunsAnswer:
    """A page of runs."""

    runs: Sequence[RunRow]
    next_cursor: str | None


@dataclass(frozen=True)
class RunAnswer:
    """One run: its record and its current state at the gate."""

    run_id: str
    name: str
    parameters: Mapping[str, str] = field(metadata={"description": PARAMETERS})
    command: str = field(metadata={"description": COMMAND})
    group: str | None = field(metadata={"description": GROUP})
    workers: int
    gpus: int
    repeats: str | None = field(
        metadata={"description": "The run whose source or command it repeats, if any."}
    )
    status: Status
    phase: Phase | Literal["ending"] | None
    end: EndName | None
    exit_reason: str
    exit_cause: str = field(
        metadata={"description": "The word of exit_reason, such as time_limit; or empty."}
    )
    exit_detail: str = field(metadata={"description": "The rest of exit_reason."})
    exit_code: int | None
    oom_resource: str | None = field(
        metadata={"description": "The memory that ran out: vram, ram or shm."}
    )
    oom_evidence: str | None = field(
        metadata={"description": "The evidence, such as own_cap or device_full."}
    )
    attempt: int
    reasons: tuple[WaitReason, ...]
    estimate: Estimate | Stored | None
    charges: ByResource
    held: ByResource
    basis: Mapping[str, str]
    caps: ByResource
    enforcement: str | None
    devices: tuple[DeviceName, ...]
    directory: str
    output_tail: str
    error: Stored | None
    warnings: Sequence[Any]  # as the run's program has written them
    advice: Sequence[str] = field(
        metadata={"description": "What its author could change, such as an option, and why."}
    )
    peaks: ByResource
    kill: Stored | None
    position: int | None
    eta_s: float | None
    submitted: float
    ended: float | None
    cancel_requested: bool
    detached: bool
    service: bool
    ready: bool | None = field(
        metadata={"description": "Of a service: whether it is ready, or was when it ended."}
    )
    visible: str = field(
        metadata={"description": "What restricts its devices and what is left; else empty."}
    )
    machine: str | None = field(
        metadata={"description": "The other machine to which it belongs, if any."}
    )
    episodes: EpisodeCount
    retry: Retry | Stored | None = field(
        metadata={"description": "The attempt that ran out of memory, and what the next one gets."}
    )


@dataclass(frozen=True)
class QueuedRunAnswer(RunAnswer):
    """A run that waits."""

    waited_s: float = field(metadata={"description": "While it is queued."})


@dataclass(frozen=True)
class ActiveRunAnswer(RunAnswer):
    """A run with a live attempt."""

    started_s: float | None = field(metadata={"description": "While it is active."})
    settled: Mapping[str, bool] = field(metadata={"description": "While it is active."})
    pid: int | None = field(metadata={"description": "While it is active."})
    episode: int = field(metadata={"description": "While it is active."})


@dataclass(frozen=True)
class DetachAnswer:
    """The run is detached."""

    detached: bool


@dataclass(frozen=True)
class DeleteAnswer:
    """The run is gone."""

    deleted: bool
    left: str | None = field(metadata={"description": "Files that could not be removed, and why."})


@dataclass(frozen=True)
class AttemptRow:
    """One attempt of a run."""

    attempt: int
    outcome: str | None = field(metadata={"description": "How it ended; null while it is live."})
    reason: str
    exit_code: int | None
    duration_s: float | None
    episodes_done: int
    devices: Sequence[str]
    charges: ByResource = field(metadata={"description": "As granted."})
    peaks: ByResource
    caps: ByResource
    enforcement: str | None
    basis: Mapping[str, str]
    directory: str


@dataclass(frozen=True)
class AttemptsAnswer:
    """The attempts of a run, in order."""

    attempts: Sequence[AttemptRow]


@dataclass(frozen=True)
class EpisodesAnswer:
    """The finished episodes of each attempt."""

    episodes: Sequence[Stored]
    episodes_left_out: int = field(
        metadata={"description": "Number of earlier episodes that are not listed."}
    )


@dataclass(frozen=True)
class StoryAnswer:
    """The events of a run at the gate, in order."""

    story: Sequence[StoryEvent]


@dataclass(frozen=True)
class ExportAnswer(Exported):
    """Everything recorded about a run, except its environment and its values."""

    story: Sequence[StoryEvent]
