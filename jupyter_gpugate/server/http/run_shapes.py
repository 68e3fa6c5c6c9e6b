"""The shape of every answer about runs, as in `shapes`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from jupyter_gpugate.server.http.shapes import (
    Answer,
    ByResource,
    DeviceName,
    End,
    Episodes,
    Phase,
    Reason,
    Status,
)


class SubmitAnswer(Answer):
    """A run that was queued, or the earlier one with the same key.

    With `Prefer: respond-async` there may be no run yet: `reading` sources, or `asking` the gate.
    """

    run_id: str | None
    status: Status | Literal["reading", "asking"]


class RunRow(Answer):
    """One run in a list of runs."""

    run_id: str
    name: str
    status: Status
    end: End | None
    reason: str
    submitted: float
    ended: float | None
    attempt: int
    peaks: ByResource | None
    machine: str | None = Field(description="The other machine to which it belongs, if any.")


class RunsAnswer(Answer):
    """A page of runs."""

    runs: list[RunRow]
    next_cursor: str | None


class RunAnswer(Answer):
    """One run: its record and its current state at the gate."""

    run_id: str
    name: str
    status: Status
    phase: Phase | None
    end: End | None
    exit_reason: str
    exit_code: int | None
    oom_resource: str | None = Field(description="The memory that ran out: vram, ram or shm.")
    oom_evidence: str | None = Field(description="The evidence, such as own_cap or device_full.")
    attempt: int
    reasons: list[Reason]
    estimate: dict[str, Any] | None
    charges: ByResource
    held: ByResource
    basis: dict[str, str]
    caps: ByResource
    enforcement: str | None
    devices: list[DeviceName]
    directory: str
    output_tail: str
    error: dict[str, Any] | None
    warnings: list[Any]
    peaks: ByResource
    kill: dict[str, Any] | None
    position: int | None
    eta_s: float | None
    submitted: float
    ended: float | None
    cancel_requested: bool
    detached: bool
    visible: str = Field(
        description="The device mask of its notebook and the devices that remain; else empty."
    )
    machine: str | None = Field(description="The other machine to which it belongs, if any.")
    episodes: Episodes
    waited_s: float | None = Field(default=None, description="While it is queued.")
    started_s: float | None = Field(default=None, description="While it is active.")
    settled: dict[str, bool] | None = Field(default=None, description="While it is active.")
    pid: int | None = Field(default=None, description="While it is active.")
    episode: int | None = Field(default=None, description="While it is active.")


class OutputAnswer(Answer):
    """A piece of a run's output."""

    start: int = Field(alias="from")
    next: int
    text: str
    ended: bool


class CancelAnswer(Answer):
    """The stop of a run."""

    cancelled: bool
    end: End
    means: str
    ms: int
    survivors: list[Any]


class DetachAnswer(Answer):
    """The run is detached."""

    detached: bool


class DeleteAnswer(Answer):
    """The run is gone."""

    deleted: bool
    left: str | None = Field(description="Files that could not be removed, and why.")


class EpisodesAnswer(Answer):
    """The finished episodes of each attempt."""

    episodes: list[dict[str, Any]]
    episodes_left_out: int = Field(description="Number of earlier episodes that are not listed.")


class StoryAnswer(Answer):
    """The events at the gate, in order."""

    story: list[dict[str, Any]]


class ExportAnswer(Answer):
    """Everything recorded about a run, except its environment and its values."""

    spec: dict[str, Any]
    summary: dict[str, Any]
    episodes: list[dict[str, Any]]
    episodes_left_out: int
    output: str
    story: list[dict[str, Any]]
