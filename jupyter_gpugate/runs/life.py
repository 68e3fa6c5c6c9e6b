"""The state of a run on its run side, the events that change it, and the actions that follow.

Values only: `lifecycle` is the table of transitions, `Attempts` carries the actions out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from jupyter_gpugate.core import endings
from jupyter_gpugate.core.reports import EndReport, RunEnd
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.core.samples import ProcessKey

QUEUED, ACTIVE, ENDED = "queued", "active", "ended"

Facts = Mapping[str, Any]

# -- the state ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Starting:
    """A grant is in use: the supervisor of its attempt is being started."""

    grant: Grant
    attempts_before: int
    facts_before: Facts


@dataclass(frozen=True)
class Live:
    """A supervisor was started or found, and its end is waited for."""

    fence: int | None = None  # None: its launch.json cannot be read
    supervisor: ProcessKey | None = None  # None: it is gone


@dataclass(frozen=True)
class Closing:
    """The attempt is over: the run's end is being written, or the attempt's directory renamed."""


@dataclass(frozen=True)
class Ending:
    """The end of a run, and the outcome of its last attempt if that is the reason."""

    end: RunEnd
    reason: str
    outcome: Facts | None = None


@dataclass(frozen=True)
class Life:
    """The state of one run: its newest attempt, its conditions, and its end."""

    attempts: int = 0  # the number of the newest attempt
    course: Union[Starting, Live, Closing, None] = None  # of that attempt; None: there is none
    abandoned: bool = False  # no task follows the attempt
    waiting: tuple[Grant, ...] = ()  # grants to use when the attempt is over
    returning: tuple[int, ...] = ()  # the fences of grants that are being given back
    cancelled: bool = False
    detached: bool = False  # nobody waits for it
    end: Ending | None = None  # as soon as it is decided
    ended: bool = False  # the end is written, or the disk has refused it, and nothing changes it
    stored: bool = False  # the end is on the disk
    facts: Facts = field(default_factory=dict)  # what its summary says of its grant and its end

    @property
    def status(self) -> str:
        if self.ended:
            return ENDED
        return QUEUED if self.course is None else ACTIVE

    @property
    def is_decided(self) -> bool:
        """Whether nothing can start any more."""
        return self.ended or self.end is not None

    @property
    def fence(self) -> int | None:
        """The fence of the attempt that is under way."""
        if isinstance(self.course, Starting):
            return self.course.grant.fence
        return self.course.fence if isinstance(self.course, Live) else None

    @property
    def fences(self) -> frozenset[int]:
        """The fences of all grants that the gate need not send again."""
        own = {self.fence, *self.returning, *(grant.fence for grant in self.waiting)}
        return frozenset(fence for fence in own if fence is not None)

    @property
    def supervisor(self) -> ProcessKey | None:
        return self.course.supervisor if isinstance(self.course, Live) else None


# -- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Granted:
    """The gate lets the run start."""

    grant: Grant
    estimate: Any = None


@dataclass(frozen=True)
class Found:
    """An attempt of an earlier process of this user was found on the disk."""

    fence: int | None
    supervisor: ProcessKey | None  # if it lives
    begun: bool  # the supervisor has written something
    facts: Facts
    cancelled: bool = False  # its stop.json says so


@dataclass(frozen=True)
class Begun:
    """The supervisor was started."""

    supervisor: ProcessKey


@dataclass(frozen=True)
class NotBegun:
    """The supervisor could not be started; a passing reason is gone before long."""

    reason: str
    passing: bool
    end: RunEnd = RunEnd.FAILED  # of the run, unless the reason passes


@dataclass(frozen=True)
class Over:
    """The attempt has ended; the gate has heard how, and may have queued the run again."""

    report: EndReport
    outcome: Facts
    facts: Facts
    stop: endings.Stop | None = None  # that has ended it
    is_retried: bool = False


@dataclass(frozen=True)
class PutAside:
    """The directory of the attempt that ran nothing was renamed, or could not be."""

    done: bool


@dataclass(frozen=True)
class Abandoned:
    """The task that started or followed the attempt has failed."""


@dataclass(frozen=True)
class GivenBack:
    """The gate has heard that a grant is not used."""

    fence: int


@dataclass(frozen=True)
class CancelAsked:
    """The user stops the run."""


@dataclass(frozen=True)
class Forsaken:
    """The notebook or terminal that waited for the run is gone."""


@dataclass(frozen=True)
class Withdrawn:
    """The gate has taken the run out of its queue."""

    reason: str


@dataclass(frozen=True)
class OverTime:
    """The supervisor was to stop long ago, and has not ended."""


@dataclass(frozen=True)
class Dismissed:
    """A queued run never starts: the gate has ended or refused it, or its record is damaged."""

    end: RunEnd
    reason: str


@dataclass(frozen=True)
class Detached:
    """The user lets the run go on without the notebook or terminal."""


@dataclass(frozen=True)
class Recorded:
    """The end was written into the run's directory, or cannot be written for now."""

    facts: Facts


@dataclass(frozen=True)
class Stored:
    """The end is on the disk."""


Event = Union[
    Granted,
    Found,
    Begun,
    NotBegun,
    Over,
    PutAside,
    Abandoned,
    GivenBack,
    CancelAsked,
    Forsaken,
    Withdrawn,
    OverTime,
    Dismissed,
    Detached,
    Recorded,
    Stored,
]

# -- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Write the attempt down and start its supervisor: `Begun` or `NotBegun`."""

    grant: Grant


@dataclass(frozen=True)
class Follow:
    """Wait for the end of the attempt and report it to the gate: `Over`."""


@dataclass(frozen=True)
class SetAside:
    """Rename the directory of an attempt that ran nothing: `PutAside`."""


@dataclass(frozen=True)
class Decline:
    """Give a grant back; with an end, the run is over: `GivenBack`."""

    grant: Grant
    reason: str
    end: RunEnd | None = None


@dataclass(frozen=True)
class Withdraw:
    """Ask the gate to take the run out of its queue: `Withdrawn`, unless it has started."""

    reason: str


@dataclass(frozen=True)
class Stop:
    """Tell the supervisor to stop the run."""


@dataclass(frozen=True)
class Kill:
    """Kill the supervisor."""


@dataclass(frozen=True)
class RecordEnd:
    """Write the end into the run's directory: `Recorded`."""


Action = Union[Start, Follow, SetAside, Decline, Withdraw, Stop, Kill, RecordEnd]
