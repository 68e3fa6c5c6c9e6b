"""A sample's bytes divided among holders, and the growth of holders other than runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional

from jupyter_gpugate.core.resources import Holder
from jupyter_gpugate.core.samples import ProcessKey


class ExternalProcess(NamedTuple):
    """An external holder."""

    pid: int
    start_ticks: Optional[int]  # None: listed by the driver, not in the process table
    held_bytes: Optional[int]
    note: str = ""  # "ghost", "unlisted", ...


@dataclass(frozen=True)
class ResourceAttribution:
    """One resource's bytes shared out: ``attributed + external - overlap == used``."""

    resource: str
    used_bytes: int
    by_holder: Mapping[Holder, int]
    external_bytes: int
    overlap_bytes: int
    unknown: tuple[Holder, ...] = ()  # on the device, but the driver reports no bytes
    external: tuple[ExternalProcess, ...] = ()
    fault: Optional[str] = None  # why no holder can be named

    @property
    def attributed_bytes(self) -> int:
        return sum(self.by_holder.values())


@dataclass(frozen=True)
class Attribution:
    """A sample's bytes shared out among holders."""

    resources: Mapping[str, ResourceAttribution]
    holder_of: Mapping[ProcessKey, Holder]  # remembered for the next sample


@dataclass(frozen=True)
class Who:
    """A holder of memory that is promised to no run."""

    kind: str  # "process", "notebook" or "run"; empty if no holder can be named
    name: str = ""
    pid: int = 0
    start_ticks: Optional[int] = None


@dataclass(frozen=True)
class Share:
    """Bytes in the hands of one holder."""

    who: Who
    held_bytes: int


@dataclass(frozen=True)
class Rise:
    """The growth of one holder."""

    who: Who
    rise_bytes: int
    uid: Optional[int] = None  # of a process


@dataclass(frozen=True)
class Growth:
    """The growth of memory outside the runs on one resource."""

    recent: tuple[tuple[float, int], ...] = ()  # (time, bytes) of the last minute
    rises: tuple[tuple[float, int], ...] = ()  # (bucket's time, greatest rise) of ten minutes
