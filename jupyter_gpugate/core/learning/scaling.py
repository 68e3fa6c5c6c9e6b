"""From evidence to a need: the margin, and the way from one number of workers to another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Optional

from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.evidence import Evidence, Observation, Track, weigh
from jupyter_gpugate.core.learning.calibration import ALIKE_SPREAD
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

    def raised(self, floors: Iterable[Floor]) -> Guess:
        """Lift the need to the greatest of the floors, if that is higher."""
        floor = max(floors, default=Floor(0, ""))
        if floor.need_bytes <= self.need_bytes:
            return self
        return self._replace(need_bytes=floor.need_bytes, notes=(*self.notes, floor.note))


class Count(NamedTuple):
    """The evidence for one number of workers."""

    evidence: Evidence
    floor: Floor

    @classmethod
    def of(cls, tracks: Sequence[Track], asked: Optional[Setting]) -> Count:
        """Merge the evidence of equivalent tracks.

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


def counts_of(tracks: Iterable[Track], asked: Optional[Setting]) -> dict[int, Count]:
    """Weigh tracks of the same circumstances by number of workers, for one asked setting."""
    by_workers: dict[int, list[Track]] = {}
    for track in tracks:
        by_workers.setdefault(track.setting.workers, []).append(track)
    return {workers: Count.of(some, asked) for workers, some in by_workers.items()}


def for_workers(
    resource: str, counts: Mapping[int, Count], workers: int, share: Optional[float] = None
) -> Optional[Guess]:
    """Work out the need of this many workers from those measured in the same circumstances.

    What lies between two measured numbers of workers needs something between theirs, and a
    floor seen with fewer workers holds for more.  None: nothing completed.
    """
    complete = {w: counts[w] for w in sorted(counts) if counts[w].evidence.complete}
    seen = {w: count.measured(resource, share) for w, count in complete.items()}
    if workers in seen:
        return seen[workers]
    if not seen:
        return None
    if len(seen) == 1:
        guess = _scaled(resource, next(iter(seen.items())), workers)
    else:
        spread = max(margin_share(count.evidence.peaks) for count in complete.values())
        guess = _fitted(resource, seen, workers, spread if share is None else share)
    least = max((g.need_bytes for w, g in seen.items() if w < workers), default=0)
    most = min((g.need_bytes for w, g in seen.items() if w > workers), default=guess.need_bytes)
    need = max(min(guess.need_bytes, most), least)
    guess = guess._replace(need_bytes=need, peak_bytes=min(guess.peak_bytes, need))
    return guess.raised(count.floor for w, count in counts.items() if w <= workers)


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
    """Return whether the greatest peak shows the charge of the run rather than its need.

    So it is where peak and charge lie within 3 % of each other, unless another run of much the
    same peak was given as much or more and left it.
    """
    greatest = evidence.greatest
    return _is_full(greatest) and not any(
        (other.charge_bytes or 0) >= (greatest.charge_bytes or 0)
        and other.peak_bytes >= (1 - ALIKE_SPREAD) * greatest.peak_bytes
        and not _is_full(other)
        for other in evidence.complete
    )


def in_mb(size_bytes: int) -> str:
    """Write a size for people."""
    return f"{size_bytes / MB:,.0f} MB"


def _measured(resource: str, evidence: Evidence, share: Optional[float]) -> Guess:
    greatest, n = evidence.greatest, len(evidence.complete)
    peak, cap = greatest.peak_bytes, evidence.cap_bytes
    if fills_what_it_is_given(evidence):
        note = "fills all memory that it is given: the peak itself"
        return Guess(peak, peak, Origin.MEASURED, n, (note,))
    if share is None:
        share = margin_share(evidence.peaks)
    need = peak + margin_bytes(resource, peak, share)
    if cap is None or cap >= need:
        return Guess(peak, need, Origin.MEASURED, n)
    note = f"an enforced cap of {in_mb(cap)} sufficed"
    return Guess(peak, max(peak, cap), Origin.MEASURED, n, (note,))


def _is_full(observation: Observation) -> bool:
    # A share of the lesser of the two: so no charge made of a peak and its margin, which is more
    # than 3 %, looks full because of that very peak.
    charge, peak = observation.charge_bytes or 0, observation.peak_bytes
    return peak > 0 and max(charge, peak) <= (1 + SATURATED) * min(charge, peak)


def _scaled(resource: str, known: tuple[int, Guess], workers: int) -> Guess:
    """From the one measured number of workers: upwards in proportion, downwards its own need."""
    measured, guess = known
    if workers < measured:
        note = f"the need of {_workers(measured)}"
        return guess._replace(origin=Origin.SCALED, notes=(note, *guess.notes))
    peak = math.ceil(guess.peak_bytes * workers / measured)
    need = peak + margin_bytes(resource, peak, GREATEST_MARGIN)
    return Guess(peak, need, Origin.SCALED, guess.n, (f"scaled up from {_workers(measured)}",))


def _fitted(resource: str, seen: Mapping[int, Guess], workers: int, share: float) -> Guess:
    """From a line through the greatest peaks; beyond the most workers seen with a full margin."""
    points = [(w, guess.peak_bytes) for w, guess in seen.items()]
    slope, start = _line(points)
    fewest, its_peak = points[0]
    # A line through bent data may fall below zero before it reaches one worker.
    least = its_peak * min(1.0, workers / fewest) if workers < fewest else 0.0
    peak = math.ceil(max(start + slope * workers, least))
    beyond = workers > points[-1][0]
    need = peak + margin_bytes(resource, peak, GREATEST_MARGIN if beyond else share)
    note = "fitted over workers " + ", ".join(str(w) for w, _ in points)
    return Guess(peak, need, Origin.FITTED, sum(guess.n for guess in seen.values()), (note,))


def _line(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Least squares with a slope of at least 0: (slope, value at no workers)."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    both = sum((x - x_mean) * (y - y_mean) for x, y in points)
    slope = max(0.0, both / sum((x - x_mean) ** 2 for x, _ in points))
    return slope, y_mean - slope * x_mean


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
