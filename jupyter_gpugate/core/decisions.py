"""Verdicts as values: why a run may start, or the reasons why it is kept waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Optional

from jupyter_gpugate.core.queued import RequestKey
from jupyter_gpugate.core.requests import Grant


class Check(str, Enum):
    """The kinds of reasons that keep a run waiting, in their order."""

    PARKED = "parked"
    AFTER = "after"  # runs that have to complete first have not ended
    GROUP = "group"  # as many runs of its group are active as may be
    LOCK = "lock"
    DRAIN = "drain"
    EXCLUSIVE = "exclusive"
    LOADING = "loading"  # a service there is not ready yet
    LIMITS = "limits"
    MISSING = "missing"  # a device that was there is gone
    STALE = "stale"  # no fresh reading
    UNMEASURED = "unmeasured"  # a device that cannot be read, or no number to go by
    WATCH_SLOT = "watch_slot"  # another unmeasured run has not settled yet
    OVERRUN = "overrun"  # a run there holds more than it was charged
    FIT = "fit"
    EXTERNAL_HOLDS = "external_holds"  # would not fit with every run ended
    JOURNAL = "journal"  # passed every check, but its grant could not be written down


TOLD_ORDER = {check: place for place, check in enumerate(Check)}


NO_NUMBERS: Mapping[str, int] = MappingProxyType({})


class Reason(NamedTuple):
    """One check that a request did not pass, with every number it used (bytes, counts, ms)."""

    check: Check
    resource: Optional[str] = None
    numbers: Mapping[str, int] = NO_NUMBERS
    who: tuple[str, ...] = ()  # the runs or owners it waits for; a fault's or a drain's own words
    bound: str = ""  # the cgroup whose limit the room is bounded by, and whose that is


@dataclass(frozen=True)
class KeptWaiting:
    """A request that stays in the queue this tick; the first reason is the dominant one."""

    reasons: tuple[Reason, ...]

    def only(self, *checks: Check) -> bool:
        return all(reason.check in checks for reason in self.reasons)


@dataclass(frozen=True)
class Earmark:
    """Room set aside for a head, or devices kept clear for an exclusive run."""

    run_id: str
    check: Check  # FIT or EXCLUSIVE
    devices: tuple[str, ...]
    bytes_by_resource: Mapping[str, int]
    cgroup: str = ""  # where the run is to live, as in its request


@dataclass(frozen=True)
class Decisions:
    """The outcome of one tick; equal requests share their reasons, expanded by `reasons_of`."""

    grants: tuple[Grant, ...] = ()
    kept_waiting: Mapping[RequestKey, KeptWaiting] = field(default_factory=dict)
    earmarks: tuple[Earmark, ...] = ()
    #: Run -> device -> the new cap of a live run.
    caps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def reasons_of(self, key: RequestKey) -> tuple[Reason, ...]:
        waiting = self.kept_waiting.get(key)
        return waiting.reasons if waiting else ()
