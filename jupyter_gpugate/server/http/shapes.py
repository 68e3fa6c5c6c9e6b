"""The shape of every answer, for its documentation and for the tests; it validates nothing.

An answer has exactly these fields.  Null means unknown or not applicable.
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
    """An error: its kind for programs, a sentence for people, and the numbers."""

    error: str
    message: str
    detail: dict[str, Any]


class Reason(Answer):
    """A reason why a run waits."""

    kind: str
    resource: str | None
    message: str
    numbers: dict[str, Any]


class DeviceName(Answer):
    """A device with its unique name."""

    uuid: str
    model: str
    index: int | None
    name: str


class Episodes(Answer):
    """The progress of a run."""

    done: int
    of: int


class Shares(Answer):
    """The holders of a resource's bytes: attributed + external - overlap = used_total."""

    used_total: int
    attributed: int
    external: int
    overlap: int
    runs: ByResource
    kernels: ByResource
    model_servers: ByResource
    fault: str | None


class AttributionShape(Answer):
    """The holders of all bytes."""

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
    inputs: dict[str, Any] | None = Field(default=None, description="Only with `inputs=1`.")
    decisions: list[dict[str, Any]] | None = Field(
        default=None, description="Only with `inputs=1`."
    )


class EstimateAnswer(Answer):
    """The need of a run, and whether it would start now."""

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
    """Everything that can be measured and enforced here."""

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
    """The device or name that was forgotten."""

    forgotten: str


class LockAnswer(Answer):
    """The new lock, and its duration."""

    locked: str
    for_s: float
    name: str
    closes: list[str] = Field(description="The resources where no run of this gate starts.")
    opened: list[str] = Field(description="The locks that this one replaced, in words.")
    at_work: list[dict[str, str]] = Field(description="Runs that are active there; they go on.")


class UnlockAnswer(Answer):
    """The resource whose lock was released."""

    unlocked: str
    name: str
    was_locked: bool


class DrainAnswer(Answer):
    """The state of the drain: whether new runs start."""

    draining: bool
    stopped: list[str] | None = Field(default=None, description="Only with `stop_runs`.")
    not_stopped: dict[str, str] | None = Field(
        default=None,
        description="Only with `stop_runs`: the runs that could not be stopped, and why.",
    )


class CalibrationsAnswer(Answer):
    """All observations, by name."""

    calibrations: dict[str, list[dict[str, Any]]]


class Standing(Answer):
    """The current state of an unfinished run."""

    name: str
    status: Status
    phase: Phase | None
    attempt: int


class Transition(Standing):
    """A change of a run's state."""

    seq: int
    at: float
    run_id: str
    end: End | None
    reason: str


class TransitionsAnswer(Answer):
    """The transitions of runs, in order."""

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
    rest: str | None = Field(description="The newest output below the card, if requested.")
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
