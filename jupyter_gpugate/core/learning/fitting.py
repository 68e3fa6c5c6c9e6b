"""Needs along one number, the workers or a parameter: a line that never falls.

Between two observed values the need lies between theirs.  Below the least it is the need of the
least; beyond the greatest the line reaches as far as twice the greatest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.learning.margins import GREATEST_MARGIN, Guess, margin_bytes

#: The margin beyond the greatest value that was observed, as a share.
MARGIN_BEYOND: Final = 0.25
_REACH: Final = 2
#: Values that a sentence lists.
_LISTED: Final = 6


class Point(NamedTuple):
    """An observed value of the number, and the need there."""

    at: float
    guess: Guess


def reach(values: Sequence[float]) -> float:
    """Return the greatest value up to which observations at ``values`` speak."""
    greatest = max(values)
    return max(greatest, _REACH * greatest)


def fit(resource: str, points: Sequence[Point], at: float, name: str) -> Guess:
    """Return the need at a value, from two or more points in rising order.

    Whether the value is within `reach` is for the caller to judge.  Programs that fill what they
    are given would grow by each margin: where the given memory proved to be enough there is none.
    """
    lower = [point.guess for point in points if point.at <= at]
    upper = [point.guess for point in points if point.at >= at]
    n = sum(point.guess.n for point in points)
    if not lower:
        note = f"the need of {name} {in_words([points[0].at])}, the least that was run"
        return points[0].guess._replace(origin=Origin.FITTED, notes=(note,))
    peak = _line([(point.at, point.guess.peak_bytes) for point in points], at)
    peak = min([peak, *(guess.peak_bytes for guess in upper)])
    if all(point.guess.is_bounded for point in points):
        need = _line([(point.at, point.guess.need_bytes) for point in points], at)
    else:
        need = peak + margin_bytes(resource, peak, GREATEST_MARGIN if upper else MARGIN_BEYOND)
    need = min([need, *(guess.need_bytes for guess in upper)])
    need = max([need, *(guess.need_bytes for guess in lower)])
    note = f"fitted over {name} {in_words([point.at for point in points])}"
    return Guess(min(peak, need), need, Origin.FITTED, n, (note,))


def in_words(values: Sequence[float]) -> str:
    """List values in rising order; of many the first ones and the last."""
    words = [f"{value:.6g}" for value in sorted(values)]
    if len(words) > _LISTED:
        words[_LISTED - 2 : -1] = ["..."]
    return ", ".join(words)


def _line(points: Sequence[tuple[float, int]], at: float) -> int:
    return math.ceil(max(_least_squares(points, at), _through_points(points, at)))


def _least_squares(points: Sequence[tuple[float, int]], at: float) -> float:
    """The line through the greatest amounts, with a slope of at least 0."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    both = sum((x - x_mean) * (y - y_mean) for x, y in points)
    slope = max(0.0, both / sum((x - x_mean) ** 2 for x, _ in points))
    return y_mean + slope * (at - x_mean)


def _through_points(points: Sequence[tuple[float, int]], at: float) -> float:
    """The chord between the neighbours, which lies above a line that bends upwards."""
    left = max(point for point in points if point[0] <= at)
    right = min((point for point in points if point[0] > at), default=None)
    if right is None:
        return _beyond(points, at)
    return left[1] + _slope(left, right) * (at - left[0])


def _beyond(points: Sequence[tuple[float, int]], at: float) -> float:
    """Lead on from the greatest value; a line that bends upwards goes on bending.

    The chords span half of their greatest value, so that noise between close values is not
    taken for a slope.
    """
    last = points[-1]
    middle = _half_of(points, last)
    slope = _slope(middle, last)
    if middle != points[0]:
        slope += max(0.0, slope - _slope(_half_of(points, middle), middle))
    return last[1] + slope * (at - last[0])


def _half_of(points: Sequence[tuple[float, int]], end: tuple[float, int]) -> tuple[float, int]:
    early = [p for p in points if p[0] <= end[0] / _REACH and p[0] < end[0]]
    return early[-1] if early else points[0]


def _slope(left: tuple[float, int], right: tuple[float, int]) -> float:
    return max(0, right[1] - left[1]) / (right[0] - left[0])
