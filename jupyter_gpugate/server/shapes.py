"""The shape of every answer, for its documentation and for the tests; nothing is validated by it.

An answer holds exactly these fields.  What is null is not known, or does not apply.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Resource ("ram", or the UUID of a device) to bytes.
ByResource = dict[str, int]
Status = Literal["queued", "active", "ended"]
End = Literal["completed", "failed", "cancelled", "expired", "rejected", "oom", "lost"]
Phase = Literal["granted", "starting", "running", "stopping", "ending"]


class _Answer(BaseModel):
    # Clients must ignore unknown fields.
    model_config = ConfigDict(extra="allow")


class ErrorAnswer(_Answer):
    """What is wrong: for programs, for people, and the numbers."""

    error: str
    message: str
    detail: dict[str, Any]


class SubmitAnswer(_Answer):
    """A run that was queued, or the earlier one with the same key.

    With `Prefer: respond-async` there may be no run yet: `reading` sources, or `asking` the gate.
    """

    run_id: str | None
    status: Status | Literal["reading", "asking"]


class RunRow(_Answer):
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
    machine: str | None = Field(description="The other machine that it belongs to, if any.")


class RunsAnswer(_Answer):
    """A page of runs."""

    runs: list[RunRow]
    next_cursor: str | None


class Reason(_Answer):
    """Why a run waits."""

    kind: str
    resource: str | None
    message: str
    numbers: dict[str, Any]


class DeviceName(_Answer):
    """A device as people know it."""

    uuid: str
    model: str
    index: int | None
    name: str


class Episodes(_Answer):
    """How far a run is."""

    done: int
    of: int


class RunAnswer(_Answer):
    """One run: what is on record, and what the gate says of it now."""

    run_id: str
    name: str
    status: Status
    phase: Phase | None
    end: End | None
    exit_reason: str
    exit_code: int | None
    oom_resource: str | None = Field(description="vram, ram or shm, where memory ran out.")
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
    machine: str | None = Field(description="The other machine that it belongs to, if any.")
    episodes: Episodes
    waited_s: float | None = Field(default=None, description="While it is queued.")
    started_s: float | None = Field(default=None, description="While it is active.")
    settled: dict[str, bool] | None = Field(default=None, description="While it is active.")
    pid: int | None = Field(default=None, description="While it is active.")
    episode: int | None = Field(default=None, description="While it is active.")


class OutputAnswer(_Answer):
    """A piece of a run's output."""

    start: int = Field(alias="from")
    next: int
    text: str
    ended: bool


class CancelAnswer(_Answer):
    """How a run was stopped."""

    cancelled: bool
    end: End
    means: str
    ms: int
    survivors: list[Any]


class DetachAnswer(_Answer):
    """Nobody waits for it any more."""

    detached: bool


class DeleteAnswer(_Answer):
    """The run is gone."""

    deleted: bool
    left: str | None = Field(description="Files that could not be removed, and why.")


class EpisodesAnswer(_Answer):
    """The finished episodes of each attempt."""

    episodes: list[dict[str, Any]]
    episodes_left_out: int = Field(description="Number of earlier episodes that are not listed.")


class StoryAnswer(_Answer):
    """What happened at the gate, in order."""

    story: list[dict[str, Any]]


class ExportAnswer(_Answer):
    """All that is on record about a run, but for its environment and its values."""

    spec: dict[str, Any]
    summary: dict[str, Any]
    episodes: list[dict[str, Any]]
    episodes_left_out: int
    output: str
    story: list[dict[str, Any]]


class Shares(_Answer):
    """Whose the bytes of a resource are: attributed + external - overlap = used_total."""

    used_total: int
    attributed: int
    external: int
    overlap: int
    runs: ByResource
    kernels: ByResource
    model_servers: ByResource
    fault: str | None


class AttributionShape(_Answer):
    """Whose all the bytes are."""

    resources: dict[str, Shares]
    devices: dict[str, Shares]
    pids_are_ours: bool


class ElsewhereRow(_Answer):
    """An unfinished run of another machine that mounts the same home."""

    run_id: str
    name: str
    status: Status
    submitted: float
    machine: str


class RunsKept(_Answer):
    """The directory of runs."""

    directory: str
    count: int


class QueueAnswer(_Answer):
    """The snapshot of one tick."""

    tick: int
    now: float
    reach: str
    owner: str
    running: list[dict[str, Any]]
    queued: list[dict[str, Any]]
    other_machines: list[ElsewhereRow]
    lingering: list[dict[str, Any]]
    free_bytes: ByResource
    floors: ByResource
    reservations: ByResource
    room_bytes: ByResource
    earmarks: list[dict[str, Any]]
    attribution: AttributionShape
    devices: list[dict[str, Any]]
    unified: list[DeviceName]
    external: list[dict[str, Any]]
    readers: list[dict[str, Any]]
    locks: list[dict[str, Any]]
    draining: str | None
    ignored_settings: list[str]
    declared: dict[str, ByResource]
    traits: dict[str, Any]
    journal_fault: str | None
    sample_fault: str
    inputs: dict[str, Any] | None = Field(default=None, description="With `inputs=1` alone.")
    decisions: list[dict[str, Any]] | None = Field(
        default=None, description="With `inputs=1` alone."
    )


class EstimateAnswer(_Answer):
    """What a run would need, and whether it would start now."""

    name: str
    gpus: int
    workers: int
    terms: list[dict[str, Any]]
    ignored_parameters: list[str]
    total_bytes: dict[str, int | None]
    known_bytes: ByResource
    missing: list[str]
    max_workers: int | None
    would_start: bool
    reasons: list[Reason]


class AcceleratorShape(_Answer):
    """The device file of an accelerator that is not gated."""

    path: str
    maker: str


class MachineAnswer(_Answer):
    """What can be measured and enforced here."""

    ram: dict[str, Any] | None
    devices: list[dict[str, Any]]
    unified: list[DeviceName]
    readers: list[dict[str, Any]]
    attribution: AttributionShape
    reach: str
    runs: RunsKept
    traits: dict[str, Any]
    locks: list[dict[str, Any]]
    draining: str | None
    ignored_settings: list[str]
    journal_fault: str | None
    tick: int
    unmanaged: list[AcceleratorShape]


class ForgottenAnswer(_Answer):
    """What is forgotten."""

    forgotten: str


class LockAnswer(_Answer):
    """What is locked, and for how long."""

    locked: str
    for_s: float
    name: str
    closes: list[str] = Field(description="The resources where no run of this gate starts.")
    opened: list[str] = Field(description="What the lock replaced, in words.")
    at_work: list[dict[str, str]] = Field(description="Runs that are active there; they go on.")


class UnlockAnswer(_Answer):
    """What is no longer locked."""

    unlocked: str
    name: str
    was_locked: bool


class DrainAnswer(_Answer):
    """Whether no new runs are taken."""

    draining: bool
    stopped: list[str] | None = Field(default=None, description="Only with `stop_runs`.")
    not_stopped: dict[str, str] | None = Field(
        default=None,
        description="Only with `stop_runs`: the runs that could not be stopped, and why.",
    )


class CalibrationsAnswer(_Answer):
    """What was learned, by name."""

    calibrations: dict[str, list[dict[str, Any]]]


class Standing(_Answer):
    """Where an unfinished run stands."""

    name: str
    status: Status
    phase: Phase | None
    attempt: int


class Transition(Standing):
    """A run has come to stand somewhere else."""

    seq: int
    at: float
    run_id: str
    end: End | None
    reason: str


class TransitionsAnswer(_Answer):
    """What has happened to runs, in order."""

    epoch: str
    last: int
    live: int
    gap: bool
    transitions: list[Transition]
    unfinished: dict[str, Standing] | None


class SampleRow(_Answer):
    """One reading of the machine, per resource."""

    seq: int
    at: float
    running: int
    queued: int
    free_bytes: ByResource
    used_total: ByResource
    attributed: ByResource
    external: ByResource


class SamplesAnswer(_Answer):
    """The newest readings, oldest first."""

    samples: list[SampleRow]
    last: int


class Rest(_Answer):
    """The newest output below a card, while it grows."""

    start: int
    html: str


class CardAnswer(_Answer):
    """A run's card as a finished page."""

    run_id: str
    status: Status
    html: str
    rest: str | None = Field(
        description="The newest output below the card, where it was asked for."
    )
    orders: list[str]


class PanelAnswer(_Answer):
    """The snapshot as a finished page, and the unfinished runs in it."""

    html: str
    runs: dict[str, Status]


class OpenApiAnswer(_Answer):
    """The document itself."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
