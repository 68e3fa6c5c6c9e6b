"""Lease messages: the questions of run side and supervisors to the gate, and its answers.

Every sender but the supervisor constructs them; the gate reads all of them with the codec.  None
says who sends it: the caller is the process at the other end of the socket.

The supervisor of a run is a copy that may be older than the gate, so a field that is added here
needs a default, and none is taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Optional, TypeVar

from jupyter_gpugate.core.endings import Stop
from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.reports import EndReport, Peaks, Phase, RunEnd, RunReport
from jupyter_gpugate.core.requests import Grant, Request, Retry
from jupyter_gpugate.core.samples import ProcessKey

#: Where a gate answers them on its socket: ``POST`` to this path and the name of the message.
LEASE_PATH = "/lease/v1"
#: Seconds between heartbeats, and between presences.
HEARTBEAT_S = 2.0
PRESENCE_S = 10.0

A = TypeVar("A")


class Message(Generic[A]):
    """A question to the gate; its parameter is the type of the answer."""

    name: ClassVar[str]
    answer: ClassVar[type]


# -- answers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """The answer to any message that the gate does not accept; ``error`` is for programs."""

    error: str
    message: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Queued:
    """The request is in the queue."""

    status: str = "queued"


@dataclass(frozen=True)
class Defaults:
    """Values for a run that does not name them."""

    gpus: int
    managed: bool  # whether there may be devices to manage here


@dataclass(frozen=True)
class RunEnded:
    """The end of a run that was not started."""

    run_id: str
    end: RunEnd
    reason: str


@dataclass(frozen=True)
class News:
    """Grants that the run side does not know yet, and ends of its waiting runs."""

    grants: tuple[Grant, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)  # by run id
    ended: tuple[RunEnded, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.grants or self.ended)


@dataclass(frozen=True)
class Gone:
    """The run is withdrawn, or the grant given back."""

    gone: bool = True


@dataclass(frozen=True)
class Go:
    """User code may run; the entries of its device mask, in the order of its devices."""

    verdict: str = "go"
    visible_devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Continue, or stop for a reason; the next heartbeat is due in so many seconds."""

    verdict: str = "continue"
    reason: str = ""  # of the stop, for supervisors that do not read `stop`
    next_in: float = HEARTBEAT_S
    stop: Optional[Stop] = None
    caps: Mapping[str, int] = field(default_factory=dict)  # device -> bytes, where caps may change
    ready: bool = False  # the gate regards the service as ready

    @classmethod
    def to_stop(cls, stop: Stop) -> Verdict:
        """Answer that the processes of the attempt are to be stopped."""
        return cls("stop", stop.reason, stop=stop)


@dataclass(frozen=True)
class Recorded:
    """The end is in the journal; what the gate measured of the attempt, in bytes per resource."""

    recorded: bool = True
    peaks: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, int] = field(default_factory=dict)  # held by others at its peak
    grown: tuple[str, ...] = ()  # sentences about who grew beside it
    retry: Optional[Retry] = None  # set: the run is in the queue again


@dataclass(frozen=True)
class LiveLease:
    """A started attempt that its run side has not listed."""

    name: str
    attempt: int
    fence: int


@dataclass(frozen=True)
class Differences:
    """Run ids that one side knows and the other does not."""

    unknown: tuple[str, ...] = ()  # to the gate
    unneeded: tuple[str, ...] = ()  # of this run side at the gate, but not listed
    #: Of the unneeded, those that have started.
    live: Mapping[str, LiveLease] = field(default_factory=dict)


# -- messages of the run side ----------------------------------------------------------------------


@dataclass(frozen=True)
class RequestMessage(Message[Queued]):
    """Ask for a lease."""

    name: ClassVar[str] = "request"
    answer: ClassVar[type] = Queued
    request: Request
    #: One of several run sides of the caller's user; "": the only one.
    run_side: str = ""


@dataclass(frozen=True)
class DefaultsMessage(Message[Defaults]):
    """Ask for the defaults of a run with this mask of devices."""

    name: ClassVar[str] = "defaults"
    answer: ClassVar[type] = Defaults
    visible: Optional[tuple[str, ...]] = None


@dataclass(frozen=True)
class PresenceMessage(Message[News]):
    """Report that the run side lives, its waiting runs, and the fences of grants that it knows."""

    name: ClassVar[str] = "presence"
    answer: ClassVar[type] = News
    run_ids: tuple[str, ...] = ()
    known: tuple[int, ...] = ()
    #: One of several run sides of the caller's user; "": the only one.
    run_side: str = ""


@dataclass(frozen=True)
class WithdrawMessage(Message[Gone]):
    """Take back a run that has not started."""

    name: ClassVar[str] = "withdraw"
    answer: ClassVar[type] = Gone
    run_id: str
    end: RunEnd = RunEnd.CANCELLED
    reason: str = ""


@dataclass(frozen=True)
class DeclineMessage(Message[Gone]):
    """Give a grant back; with an end, the run cannot be started at all."""

    name: ClassVar[str] = "decline"
    answer: ClassVar[type] = Gone
    run_id: str
    fence: int
    reason: str = ""
    end: Optional[RunEnd] = None


@dataclass(frozen=True)
class RegisterMessage(Message[Differences]):
    """List all unfinished runs, and the fences of the live ones, after any reconnect."""

    name: ClassVar[str] = "register"
    answer: ClassVar[type] = Differences
    fences: Mapping[str, int] = field(default_factory=dict)
    run_ids: tuple[str, ...] = ()
    #: One of several run sides of the caller's user; "": the only one.
    run_side: str = ""


# -- messages of a supervisor; `finished` is sent by its run side as well --------------------------


@dataclass(frozen=True)
class StartedMessage(Message[Go]):
    """Ask to go."""

    name: ClassVar[str] = "started"
    answer: ClassVar[type] = Go
    run_id: str
    fence: int
    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class HeartbeatMessage(Message[Verdict]):
    """Report the processes and the memory of a live attempt."""

    name: ClassVar[str] = "heartbeat"
    answer: ClassVar[type] = Verdict
    run_id: str
    fence: int
    tree: tuple[ProcessKey, ...] = ()
    report: RunReport = RunReport()
    peaks: Peaks = Peaks()
    episode: int = 0
    resumed: int = 0  # episodes that earlier attempts have kept
    phase: Phase = Phase.RUNNING
    stop_reason: str = ""
    ready: bool = False  # of a service: its URL has answered


@dataclass(frozen=True)
class FinishedMessage(Message[Recorded]):
    """Report the end of an attempt."""

    name: ClassVar[str] = "finished"
    answer: ClassVar[type] = Recorded
    run_id: str
    fence: int
    end: EndReport


MESSAGES: tuple[type[Message[Any]], ...] = (
    RequestMessage,
    DefaultsMessage,
    PresenceMessage,
    WithdrawMessage,
    DeclineMessage,
    RegisterMessage,
    StartedMessage,
    HeartbeatMessage,
    FinishedMessage,
)
