"""From the evidence of one setting to its need: the margin, and the floors below it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Optional

from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.evidence import Evidence, Observation, Track, weigh
from jupyter_gpugate.core.requests import Setting
from jupyter_gpugate.core.resources import MB, RAM

#: Margins, as shares of the peak: after one observation, after two, and from then on.
MARGIN_OF_ONE: Final = 0.10
MARGIN_OF_TWO: Final = 0.07
LEAST_MARGIN: Final = 0.03
GREATEST_MARGIN: Final = 0.10
GPU_MARGIN_BYTES: Final = 64 * MB
RAM_MARGIN_BYTES: Final = 256 * MB
RAM_LEAST_MARGIN: Final = 0.05
#: A charge and a peak this close belong to a program that fills what it is given.
SATURATED: Final = 0.03
OOM_FACTOR: Final = 1.5


class Floor(NamedTuple):
    """A lower limit of a need, and its reason."""

    need_bytes: int
    note: str


class Guess(NamedTuple):
    """A need on its way into an estimate (bytes)."""

    peak_bytes: int
    need_bytes: int
    origin: Origin
    n: int
    notes: tuple[str, ...] = ()
    is_bounded: bool = False  # the memory that the runs were given proved to be enough

    def raised(self, floors: Iterable[Floor]) -> Guess:
        """Lift the need to the greatest of the floors, if that is higher."""
        floor = max(floors, default=Floor(0, ""))
        if floor.need_bytes <= self.need_bytes:
            return self
        return self._replace(need_bytes=floor.need_bytes, notes=(*self.notes, floor.note))


class Learned(NamedTuple):
    """The evidence for one setting, or for several that need the same."""

    evidence: Evidence
    floor: Floor

    @classmethod
    def of(cls, tracks: Sequence[Track], asked: Optional[Setting] = None) -> Learned:
        """Merge the evidence of settings that need the same.

        The asked setting's own evidence takes precedence where it needed more, and only its own
        out-of-memory ends count.
        """
        exact = [t for t in tracks if asked and replace(t.setting, workers=asked.workers) == asked]
        evidence = tracks[0].evidence
        if len(tracks) > 1:
            merged = (observation for track in tracks for observation in track.observations)
            evidence = weigh(sorted(merged, key=lambda observation: observation.at))
        bound, oom = evidence.bound_bytes, 0
        for own in (track.evidence for track in exact):
            bound, oom = max(bound, own.bound_bytes), max(oom, own.oom_bytes)
            if own.complete and own.greatest.peak_bytes > evidence.greatest.peak_bytes:
                evidence = own
        if OOM_FACTOR * oom <= bound:
            note = f"an attempt that did not complete held {in_mb(bound)}"
            return cls(evidence, Floor(bound, note))
        note = f"ran out of memory at {in_mb(oom)}: 1.5 times that until it completes"
        return cls(evidence, Floor(math.ceil(OOM_FACTOR * oom), note))

    def measured(self, resource: str, share: Optional[float] = None) -> Guess:
        """Return the need of what completed; ``share`` overrides the margin's share."""
        return _measured(resource, self.evidence, share).raised([self.floor])


def margin_share(peaks: Sequence[int]) -> float:
    """Return the margin as a share of the peak: 10 %, 7 %, then two deviations in 3 to 10 %."""
    few = {1: MARGIN_OF_ONE, 2: MARGIN_OF_TWO}
    if len(peaks) in few:
        return few[len(peaks)]
    mean = sum(peaks) / len(peaks)
    deviation = math.sqrt(sum((p - mean) ** 2 for p in peaks) / (len(peaks) - 1))
    return min(max(2 * deviation / mean if mean else 0.0, LEAST_MARGIN), GREATEST_MARGIN)


def margin_bytes(resource: str, peak_bytes: int, share: float) -> int:
    """Return the bytes kept above a peak: 64 MB extra on a GPU; of RAM at least 256 MB or 5 %."""
    part = math.ceil(share * peak_bytes)
    if resource == RAM:
        return max(part, RAM_MARGIN_BYTES, math.ceil(RAM_LEAST_MARGIN * peak_bytes))
    return part + GPU_MARGIN_BYTES


def fills_what_it_is_given(evidence: Evidence) -> bool:
    """Return whether the greatest peak shows what the run was given rather than its need.

    So it is where the two lie within 3 % of each other, unless another run left a part of what it
    was given, or exceeded it: then the two are alike by chance.
    """
    return _is_full(evidence.greatest) and not any(
        other.given_bytes and not _is_full(other) for other in evidence.complete
    )


def in_mb(size_bytes: int) -> str:
    """Write a size for people."""
    return f"{size_bytes / MB:,.0f} MB"


def _measured(resource: str, evidence: Evidence, share: Optional[float]) -> Guess:
    greatest, n = evidence.greatest, len(evidence.complete)
    peak, cap = greatest.peak_bytes, evidence.cap_bytes
    if fills_what_it_is_given(evidence):
        note = "fills all memory that it is given: the peak itself"
        return Guess(peak, peak, Origin.MEASURED, n, (note,), is_bounded=True)
    if share is None:
        share = margin_share(evidence.peaks)
    need = peak + margin_bytes(resource, peak, share)
    if cap is None or cap >= need:
        return Guess(peak, need, Origin.MEASURED, n)
    note = f"an enforced cap of {in_mb(cap)} sufficed"
    return Guess(peak, max(peak, cap), Origin.MEASURED, n, (note,), is_bounded=True)


def _is_full(observation: Observation) -> bool:
    # A share of the lesser of the two: so no charge made of a peak and its margin, which is more
    # than 3 %, looks full because of that very peak.
    given, peak = observation.given_bytes, observation.peak_bytes
    return peak > 0 and max(given, peak) <= (1 + SATURATED) * min(given, peak)
