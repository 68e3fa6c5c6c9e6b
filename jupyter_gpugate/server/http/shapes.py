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


class Answer(BaseModel):
    """Any answer."""

    # Clients must ignore unknown fields.
    model_config = ConfigDict(extra="allow")


class ErrorAnswer(Answer):
    """What is wrong: for programs, for people, and the numbers."""

    error: str
    message: str
    detail: dict[str, Any]


class Reason(Answer):
    """Why a run waits."""

    kind: str
    resource: str | None
    message: str
    numbers: dict[str, Any]


class DeviceName(Answer):
    """A device as people know it."""

    uuid: str
    model: str
    index: int | None
    name: str


class Episodes(Answer):
    """How far a run is."""

    done: int
    of: int


class Shares(Answer):
    """Whose the bytes of a resource are: attributed + external - overlap = used_total."""

    used_total: int
    attributed: int
    external: int
    overlap: int
    runs: ByResource
    kernels: ByResource
    model_servers: ByResource
    fault: str | None


class AttributionShape(Answer):
    """Whose all the bytes are."""

    resources: dict[str, Shares]
    devices: dict[str, Shares]
    pids_are_ours: bool


class ElsewhereRow(Answer):
    """An unfinished run of another machine that mounts the same home."""

    run_id: str
    name: str
    status: Status
    submitted: float
    machine: str


class RunsKept(Answer):
    """The directory of runs."""

    directory: str
    count: int


class QueueAnswer(Answer):
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


class EstimateAnswer(Answer):
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


class AcceleratorShape(Answer):
    """The device file of an accelerator that is not gated."""

    path: str
    maker: str


class MachineAnswer(Answer):
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


class ForgottenAnswer(Answer):
    """What is forgotten."""

    forgotten: str


class LockAnswer(Answer):
    """What is locked, and for how long."""

    locked: str
    for_s: float
    name: str
    closes: list[str] = Field(description="The resources where no run of this gate starts.")
    opened: list[str] = Field(description="What the lock replaced, in words.")
    at_work: list[dict[str, str]] = Field(description="Runs that are active there; they go on.")


class UnlockAnswer(Answer):
    """What is no longer locked."""

    unlocked: str
    name: str
    was_locked: bool


class DrainAnswer(Answer):
    """Whether no new runs are taken."""

    draining: bool
    stopped: list[str] | None = Field(default=None, description="Only with `stop_runs`.")
    not_stopped: dict[str, str] | None = Field(
        default=None,
        description="Only with `stop_runs`: the runs that could not be stopped, and why.",
    )


class CalibrationsAnswer(Answer):
    """What was learned, by name."""

    calibrations: dict[str, list[dict[str, Any]]]


class Standing(Answer):
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


class TransitionsAnswer(Answer):
    """What has happened to runs, in order."""

    epoch: str
    last: int
    live: int
    gap: bool
    transitions: list[Transition]
    unfinished: dict[str, Standing] | None


class SampleRow(Answer):
    """One reading of the machine, per resource."""

    seq: int
    at: float
    running: int
    queued: int
    free_bytes: ByResource
    used_total: ByResource
    attributed: ByResource
    external: ByResource


class SamplesAnswer(Answer):
    """The newest readings, oldest first."""

    samples: list[SampleRow]
    last: int


class Rest(Answer):
    """The newest output below a card, while it grows."""

    start: int
    html: str


class CardAnswer(Answer):
    """A run's card as a finished page."""

    run_id: str
    status: Status
    html: str
    rest: str | None = Field(
        description="The newest output below the card, where it was asked for."
    )
    orders: list[str]


class PanelAnswer(Answer):
    """The snapshot as a finished page, and the unfinished runs in it."""

    html: str
    runs: dict[str, Status]


class OpenApiAnswer(Answer):
    """The document itself."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
