"""From the needs of some numbers of workers to that of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Optional

from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.learning.fitting import Point, fit, reach
from jupyter_gpugate.core.learning.margins import GREATEST_MARGIN, Floor, Guess, margin_bytes


def for_workers(
    resource: str, seen: Mapping[int, Guess], floors: Mapping[int, Floor], workers: int
) -> Optional[Guess]:
    """Return the need of this many workers from those seen in otherwise equal settings.

    A floor of fewer workers holds for more.  None: nothing was seen.
    """
    if workers in seen:
        return seen[workers]
    if not seen:
        return None
    points = [Point(count, seen[count]) for count in sorted(seen)]
    most = points[-1]
    if len(points) > 1 and workers <= reach(sorted(seen)):
        guess = fit(resource, points, workers, "workers")
        if any(point.guess.origin is not Origin.MEASURED for point in points):
            guess = guess._replace(origin=Origin.SCALED)
    elif workers < most.at:
        note = f"the need of {_workers(most.at)}"
        guess = most.guess._replace(origin=Origin.SCALED, notes=(note, *most.guess.notes))
    else:
        guess = _beyond(resource, points, workers)
    return guess.raised(floor for count, floor in floors.items() if count <= workers)


def _beyond(resource: str, points: Sequence[Point], workers: int) -> Guess:
    """Return the need in proportion to the most workers seen; no less than a line leads to."""
    guess = _proportional(resource, points[-1], workers)
    if len(points) == 1:
        return guess
    line = fit(resource, points, workers, "workers")._replace(origin=Origin.SCALED)
    return max(guess, line, key=lambda one: one.need_bytes)


def _proportional(resource: str, known: Point, workers: int) -> Guess:
    guess = known.guess
    peak = math.ceil(guess.peak_bytes * workers / known.at)
    need = peak + margin_bytes(resource, peak, GREATEST_MARGIN)
    return Guess(peak, need, Origin.SCALED, guess.n, (f"scaled up from {_workers(known.at)}",))


def _workers(count: float) -> str:
    return "1 worker" if count == 1 else f"{count:.0f} workers"
