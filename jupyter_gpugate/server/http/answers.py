"""The answers of the user API but for those about single runs; see `run_answers`.

An answer has exactly these fields.  Null means unknown or not applicable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_gpugate.core.codec import JsonObject
from jupyter_gpugate.core.evidence import Track
from jupyter_gpugate.core.explaining.rows import (
    AttributionRow,
    DeviceName,
    DeviceRow,
    QueuedRow,
    ReaderRow,
    RunningRow,
    Snapshot,
)
from jupyter_gpugate.core.reports import Status
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.core.samples import Accelerator, RamReading
from jupyter_gpugate.core.state import Lock, Traits


@dataclass(frozen=True)
class ErrorAnswer:
    """An error: its kind for programs, a sentence for people, and the numbers."""

    error: str
    message: str
    detail: JsonObject  # each error has its own


@dataclass(frozen=True)
class ElsewhereRow:
    """An unfinished run of another machine that mounts the same home."""

    run_id: str
    name: str
    parameters: Mapping[str, str]
    command: str
    status: Status
    submitted: float
    machine: str


@dataclass(frozen=True)
class RunningAnswer(RunningRow):
    """A live attempt, with the parameters and the command of its run."""

    parameters: Mapping[str, str]
    command: str


@dataclass(frozen=True)
class QueuedAnswer(QueuedRow):
    """A request in the queue, with the parameters and the command of its run."""

    parameters: Mapping[str, str]
    command: str


@dataclass(frozen=True)
class QueueAnswer(Snapshot):
    """The snapshot of one tick."""

    running: tuple[RunningAnswer, ...]
    queued: tuple[QueuedAnswer, ...]
    owner: str
    other_machines: tuple[ElsewhereRow, ...]


@dataclass(frozen=True)
class QueueAnswerWithInputs(QueueAnswer):
    """The snapshot, with all that its decisions rested on."""

    #: Read back by the function that decides, in whatever form it has.
    inputs: JsonObject = field(metadata={"description": "Only with `inputs=1`."})
    decisions: tuple[Grant, ...] = field(metadata={"description": "Only with `inputs=1`."})


@dataclass(frozen=True)
class RunsKept:
    """The directory of runs."""

    directory: str
    count: int


@dataclass(frozen=True)
class MachineAnswer:
    """Return everything that can be measured and enforced here."""

    ram: RamReading | None
    devices: tuple[DeviceRow, ...]
    unified: tuple[DeviceName, ...]
    readers: tuple[ReaderRow, ...]
    attribution: AttributionRow
    reach: str
    runs: RunsKept
    traits: Traits
    locks: tuple[Lock, ...]
    draining: str | None
    ignored_settings: tuple[str, ...]
    journal_fault: str | None
    tick: int
    unmanaged: tuple[Accelerator, ...]


@dataclass(frozen=True)
class ForgottenAnswer:
    """The device or name that was forgotten."""

    forgotten: str


@dataclass(frozen=True)
class DrainAnswer:
    """The state of the drain: whether new runs start."""

    draining: bool


@dataclass(frozen=True)
class DrainAndStopAnswer(DrainAnswer):
    """The runs that a drain has stopped."""

    stopped: tuple[str, ...] = field(metadata={"description": "Only with `stop_runs`."})
    not_stopped: Mapping[str, str] = field(
        metadata={
            "description": "Only with `stop_runs`: the runs that could not be stopped, and why."
        }
    )


@dataclass(frozen=True)
class CalibrationsAnswer:
    """All observations, by name."""

    calibrations: Mapping[str, tuple[Track, ...]]


@dataclass(frozen=True)
class CardRest:
    """The newest output below a card, while it grows."""

    start: int
    html: str


@dataclass(frozen=True)
class CardAnswer:
    """A run's card as a finished page."""

    run_id: str
    status: Status
    html: str
    rest: CardRest | None = field(
        metadata={"description": "The newest output below the card, if requested."}
    )
    orders: tuple[str, ...]


@dataclass(frozen=True)
class GroupCardAnswer:
    """A group's table as a finished page."""

    group: str
    status: Status
    html: str
    orders: tuple[str, ...]


@dataclass(frozen=True)
class PanelAnswer:
    """The snapshot as a finished page, and the unfinished runs in it."""

    html: str
    runs: Mapping[str, Status]


@dataclass(frozen=True)
class OpenApiAnswer:
    """The document itself."""

    openapi: str
    info: JsonObject  # as the OpenAPI specification has it
    paths: JsonObject  # as above
