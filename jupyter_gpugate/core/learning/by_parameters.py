"""From the needs of some values of the parameters to those of others.

A value that was run has its own need.  A number has that of others where it is level, or one from
a line; both within reach.  A word that was never run has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.evidence import Track
from jupyter_gpugate.core.learning.calibration import without
from jupyter_gpugate.core.learning.fitting import Point, fit, in_words, reach
from jupyter_gpugate.core.learning.margins import Floor, Guess, Learned
from jupyter_gpugate.core.parameters import number_of
from jupyter_gpugate.core.requests import Setting


@dataclass(frozen=True)
class Values:
    """Settings that differ in their parameters alone, as one setting looks at them."""

    resource: str
    tracks: Sequence[Track]
    asked: Setting
    level: tuple[str, ...]  # parameters whose numbers were shown not to matter
    share: Optional[float] = None  # of the margin in other circumstances than those asked for

    def guess(self) -> Optional[Guess]:
        """Return the need by the best origin there is; None without a number."""
        if self._exact and self._exact.evidence.complete:
            return self._exact.measured(self.resource, self.share)
        guess = self._level() or self.line()
        return guess.raised([self.floor]) if guess else None

    @property
    def floor(self) -> Floor:
        """Return what attempts of this very setting have shown at least."""
        return self._exact.floor if self._exact else Floor(0, "")

    def line(self, *, within_reach: bool = True) -> Optional[Guess]:
        """Return the greatest need that a line over one of the numbers leads to."""
        guesses = [self._line_over(name, within_reach=within_reach) for name in self._numbers]
        found = [guess for guess in guesses if guess is not None]
        return max(found, key=lambda guess: guess.need_bytes, default=None)

    @property
    def _own(self) -> Optional[Setting]:
        """The asked setting, where its own out-of-memory ends count."""
        return self.asked if self.share is None else None

    @cached_property
    def _exact(self) -> Optional[Learned]:
        own = [t for t in self.tracks if t.setting.parameters == self.asked.parameters]
        return Learned.of(own, self._own) if own else None

    @cached_property
    def _numbers(self) -> Mapping[str, float]:
        """The asked parameters that are numbers and not known to be level."""
        numbers = ((name, number_of(value)) for name, value in self.asked.parameters)
        known = {name: number for name, number in numbers if number is not None}
        return {name: number for name, number in known.items() if name not in self._level_here}

    @cached_property
    def _level_here(self) -> Mapping[str, tuple[float, ...]]:
        """The asked level parameters within reach, each with the values that were observed."""
        observed = {n: _observed(self.tracks, n) for n in self.level}
        return {
            name: observed[name]
            for name, value in self.asked.parameters
            if observed.get(name) and _is_near(value, observed[name])
        }

    def _alike(self, names: Sequence[str]) -> list[Track]:
        """Tracks that differ from the asked setting in these parameters at most."""
        asked = without(self.asked, names).parameters
        return [t for t in self.tracks if without(t.setting, names).parameters == asked]

    def _level(self) -> Optional[Guess]:
        alike = self._alike([*self._level_here]) if self._level_here else []
        learned = Learned.of(alike, self._own) if alike else None
        if learned is None or not learned.evidence.complete:
            return None
        guess = learned.measured(self.resource, self.share)
        over = ", ".join(f"{name} {in_words(v)}" for name, v in self._level_here.items())
        notes = (f"level over {over}", *guess.notes)
        return guess._replace(origin=Origin.FITTED, notes=notes)

    def _line_over(self, name: str, *, within_reach: bool) -> Optional[Guess]:
        at = self._numbers[name]
        by_value: dict[float, list[Track]] = {}
        for track in self._alike([*self._level_here, name]):
            number = number_of(dict(track.setting.parameters).get(name, ""))
            if number is not None:
                by_value.setdefault(number, []).append(track)
        learned = {value: Learned.of(by_value[value]) for value in sorted(by_value)}
        points = [
            Point(value, one.measured(self.resource, self.share))
            for value, one in learned.items()
            if one.evidence.complete
        ]
        if len(points) < 2 or (within_reach and at > reach([p.at for p in points])):  # noqa: PLR2004 - a line has two
            return None
        guess = fit(self.resource, points, at, name)
        return guess.raised(one.floor for value, one in learned.items() if value <= at)


def _observed(tracks: Sequence[Track], name: str) -> tuple[float, ...]:
    values = {dict(t.setting.parameters).get(name, "") for t in tracks if t.evidence.complete}
    numbers = (number_of(value) for value in values)
    return tuple(sorted(number for number in numbers if number is not None))


def _is_near(value: str, observed: Sequence[float]) -> bool:
    number = number_of(value)
    return number is not None and number <= reach(observed)
