"""Estimates a run's need from the needs of earlier runs: measured, fitted, scaled or hinted.

An unknown need has no number: its term is a gap, and the run starts on the watch
rung, at a provisional charge.  All figures are bytes; on a GPU they are per device.

A total (``device_total``, ``ram_total``) is the most that a run can be given there with nobody
else running.  No margin, lower bound or out-of-memory figure lifts a need above it as long as
the peak itself fits: what the machine cannot give is no condition for a start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Optional

from jupyter_gpugate.core.estimates import GUESSED, Estimate, EstimateTerm, Origin
from jupyter_gpugate.core.evidence import Calibration, Track
from jupyter_gpugate.core.learning.by_parameters import Values
from jupyter_gpugate.core.learning.by_workers import for_workers
from jupyter_gpugate.core.learning.calibration import level_parameters, setting_on
from jupyter_gpugate.core.learning.margins import (
    GREATEST_MARGIN,
    MARGIN_OF_ONE,
    Guess,
    Learned,
    in_mb,
    margin_bytes,
)
from jupyter_gpugate.core.learning.unknown import Unknown, why_unknown
from jupyter_gpugate.core.requests import Family, Hints, Setting
from jupyter_gpugate.core.resources import (
    GB,
    RAM,
    HolderKind,
)
from jupyter_gpugate.core.run_spec import MOST_WORKERS

#: An unknown run is not charged less than this, nor less than its share of a smaller resource.
LEAST_WATCH_BYTES: Final = GB
PRIOR_FACTOR: Final = 2
BOUND_FACTOR: Final = 1.5


def estimate(
    calibration: Calibration,
    family: Family,
    setting: Setting,
    hints: Hints,
    resources: Sequence[str],
    *,
    device_model: Optional[str] = None,
    device_total: Optional[int] = None,
    ram_total: Optional[int] = None,
) -> Estimate:
    """Estimate a run's need on each of the kinds of resource given (``RAM``, ``VRAM``).

    Without a device model, here or in the setting, the model with the greatest need counts.
    """
    terms: list[EstimateTerm] = []
    level: set[str] = set()
    for resource in resources:
        known = _known(calibration, family, resource)
        asked = _asked(setting, resource, device_model)
        total = ram_total if resource == RAM else device_total
        terms.append(known.term(known.views(asked), setting.workers, hints.of(resource), total))
        level.update(name for name, _ in setting.parameters if name in known.level)
    return Estimate(tuple(terms), tuple(sorted(level)))


def max_workers(
    calibration: Calibration,
    family: Family,
    setting: Setting,
    hints: Hints,
    room: Mapping[str, int],
    *,
    device_model: Optional[str] = None,
    device_total: Optional[int] = None,
    ram_total: Optional[int] = None,
) -> Optional[int]:
    """Find the greatest number of workers that a run may have and whose need fits every room.

    ``room`` holds the measurable kinds of resource only.  0: not even one worker fits.  None:
    nothing is measurable, or on one of them nothing is known.  A hint is the author's number for
    the workers in ``setting``, and grows in proportion beyond them.
    """
    known = {resource: _known(calibration, family, resource) for resource in room}
    views = {r: known[r].views(_asked(setting, r, device_model)) for r in room}
    for workers in range(MOST_WORKERS if room else 0, 0, -1):
        more = max(1.0, workers / setting.workers)
        fits = True
        for resource, room_bytes in room.items():
            hint = hints.of(resource)
            hint = None if hint is None else math.ceil(hint * more)
            total = ram_total if resource == RAM else device_total
            need = known[resource].term(views[resource], workers, hint, total).need_bytes
            if need is None:
                return None
            fits = fits and need <= room_bytes
        if fits:
            return workers
    return 0 if room else None


def need_from_hint(resource: str, hint_bytes: int) -> int:
    """Turn the author's number into a need: it counts like one observed peak."""
    return hint_bytes + margin_bytes(resource, hint_bytes, MARGIN_OF_ONE)


def provisional_charge(
    *,
    prior_bytes: Optional[int],
    is_prior_close: bool = False,
    lower_bound_bytes: int,
    share_bytes: int,
    fits_alone_bytes: int,
    fits_now_bytes: int,
    shrink: bool,
) -> int:
    """Return what an unknown run is charged on one resource; never 0.

    It is twice the prior, or the prior itself where many others needed just that, or without one
    ``share_bytes`` of the resource; never below 1.5 times the greatest lower bound; all of it
    within what fits with no run alive.  Once the run has waited long enough to ``shrink``, what
    fits now will do, down to the prior, 1.5 times the lower bound, or 1 GB.
    """
    # Where others leave next to nothing, or the prior is a run that used nothing, a charge of a
    # few bytes would start a run that can only fail.
    sensible = max(1, min(LEAST_WATCH_BYTES, share_bytes))
    bound = math.ceil(BOUND_FACTOR * lower_bound_bytes)
    factor = 1 if is_prior_close else PRIOR_FACTOR
    wanted = share_bytes if prior_bytes is None else factor * prior_bytes
    charge = max(min(max(wanted, bound), fits_alone_bytes), sensible)
    if not shrink:
        return charge
    return min(charge, max(fits_now_bytes, prior_bytes or 0, bound, LEAST_WATCH_BYTES))


@dataclass(frozen=True)
class _View:
    """The evidence for one asked setting, in its circumstances and in others."""

    resource: str
    asked: Setting
    level: tuple[str, ...]
    here: Sequence[Track]
    elsewhere: Sequence[tuple[str, Sequence[Track]]]  # with how the circumstances differ

    def guess(self, workers: int, hint: Optional[int]) -> Optional[Guess]:
        """Return the need by the best origin there is."""
        own = self._by_workers(self.here)
        seen = {count: values.guess() for count, values in own.items()}
        floors = {count: values.floor for count, values in own.items()}
        guess = for_workers(self.resource, _known_only(seen), floors, workers)
        if guess is not None:
            return guess
        guess = self._elsewhere(workers)
        if guess is None and hint is not None:
            need = need_from_hint(self.resource, hint)
            guess = Guess(hint, need, Origin.HINT, 0, ("the author's number",))
        if guess is None:
            return None
        return guess.raised(floor for count, floor in floors.items() if count <= workers)

    def beyond_reach(self, workers: int) -> Optional[Guess]:
        """Return where a line leads outside of its reach."""
        own = self._by_workers(self.here)
        lines = {count: values.line(within_reach=False) for count, values in own.items()}
        return for_workers(self.resource, _known_only(lines), {}, workers)

    def _elsewhere(self, workers: int) -> Optional[Guess]:
        """Return the family's greatest, each circumstance brought to this number of workers."""
        best: Optional[Guess] = None
        for difference, tracks in self.elsewhere:
            values = self._by_workers(tracks, GREATEST_MARGIN)
            seen = {count: some.guess() for count, some in values.items()}
            floors = {count: some.floor for count, some in values.items()}
            guess = for_workers(self.resource, _known_only(seen), floors, workers)
            if guess is not None and (best is None or guess.need_bytes > best.need_bytes):
                best = guess._replace(origin=Origin.SCALED, notes=(difference, *guess.notes))
        return best

    def _by_workers(
        self, tracks: Sequence[Track], share: Optional[float] = None
    ) -> dict[int, Values]:
        by_workers: dict[int, list[Track]] = {}
        for track in tracks:
            by_workers.setdefault(track.setting.workers, []).append(track)
        return {
            count: Values(self.resource, some, self.asked, self.level, share)
            for count, some in by_workers.items()
        }


@dataclass(frozen=True)
class _Known:
    """All that is known of one family on one kind of resource."""

    resource: str
    circumstances: Mapping[Setting, Sequence[Track]]  # less the workers and the parameters
    level: tuple[str, ...]
    bound_bytes: int  # of the owner and name
    prior_bytes: Optional[int]  # of other sources of the owner and name
    elsewhere_bytes: int  # apparently held for its attempts outside their trees

    def views(self, asked: Setting) -> list[_View]:
        """See the asked setting on its device model, or on each model seen if it names none."""
        models = {setting.device_model for setting in self.circumstances}
        if asked.device_model is not None or self.resource == RAM or not models:
            return [self._view(asked)]
        return [self._view(replace(asked, device_model=m)) for m in sorted(models, key=str)]

    def term(
        self, views: Sequence[_View], workers: int, hint: Optional[int], total: Optional[int]
    ) -> EstimateTerm:
        """Build the run's term from the view that needs most."""
        guesses = [guess for guess in (v.guess(workers, hint) for v in views) if guess is not None]
        if not guesses:
            return self._gap(views, workers)
        guess = max(guesses, key=lambda guess: guess.need_bytes)
        if total is not None and total < guess.need_bytes:
            guess = _within(total, guess)
        return EstimateTerm(
            self.resource,
            HolderKind.RUN,
            need_bytes=guess.need_bytes,
            origin=guess.origin,
            peak_bytes=guess.peak_bytes,
            margin_bytes=guess.need_bytes - guess.peak_bytes,
            n=guess.n,
            note="; ".join(guess.notes),
            lower_bound_bytes=self.bound_bytes,
            prior_bytes=self.prior_bytes,
        )

    def _gap(self, views: Sequence[_View], workers: int) -> EstimateTerm:
        term = EstimateTerm(
            self.resource,
            HolderKind.RUN,
            None,
            note=self._not_measured(),
            lower_bound_bytes=self.bound_bytes,
            prior_bytes=self.prior_bytes,
        )
        unknown = max(filter(None, map(self._unknown, views, [workers] * len(views))), default=None)
        if unknown is None or self.elsewhere_bytes:
            return term
        return replace(
            term,
            note=unknown.note,
            prior_bytes=unknown.prior_bytes,
            is_prior_close=unknown.is_close,
            unknown_parameters=unknown.parameters,
        )

    def _unknown(self, view: _View, workers: int) -> Optional[Unknown]:
        tracks = [track for some in self.circumstances.values() for track in some]
        return why_unknown(self.resource, tracks, view.asked, view.beyond_reach(workers))

    def _not_measured(self) -> str:
        if not self.elsewhere_bytes:
            return "this version has not been measured yet"
        rise = in_mb(self.elsewhere_bytes)
        return f"it held next to nothing itself, while {rise} outside of it rose and fell with it"

    def _view(self, asked: Setting) -> _View:
        here = _circumstances(asked)
        elsewhere = [
            (_difference(setting, here), tracks)
            for setting, tracks in self.circumstances.items()
            if setting != here
        ]
        own = self.circumstances.get(here, ())
        return _View(self.resource, asked, self.level, own, elsewhere)


def _known(calibration: Calibration, family: Family, resource: str) -> _Known:
    tracks = calibration.tracks(family.owner, family.name)
    tracks = tuple(track for track in tracks if track.resource == resource)
    own = [track for track in tracks if track.family == family]
    older = [t for t in tracks if t.family != family and t.evidence.complete]
    needs = (Learned.of([track]).measured(resource).need_bytes for track in older)
    circumstances: dict[Setting, list[Track]] = {}
    for track in own:
        circumstances.setdefault(_circumstances(track.setting), []).append(track)
    bound = max((track.evidence.bound_bytes for track in tracks), default=0)
    elsewhere = max((track.evidence.elsewhere_bytes for track in own), default=0)
    prior = max(needs, default=None)
    return _Known(resource, circumstances, level_parameters(own), bound, prior, elsewhere)


def _within(total: int, guess: Guess) -> Guess:
    """Limit a margin, and a guess as a whole, to the total."""
    peak = min(guess.peak_bytes, total) if guess.origin in GUESSED else guess.peak_bytes
    if peak > total:
        return guess
    notes = (*guess.notes, f"at most the total of {in_mb(total)}")
    return guess._replace(peak_bytes=peak, need_bytes=total, notes=notes)


def _known_only(guesses: Mapping[int, Optional[Guess]]) -> dict[int, Guess]:
    return {count: guess for count, guess in guesses.items() if guess is not None}


def _asked(setting: Setting, resource: str, device_model: Optional[str]) -> Setting:
    if device_model is not None:
        setting = replace(setting, device_model=device_model)
    return setting_on(resource, setting)


def _circumstances(setting: Setting) -> Setting:
    return replace(setting, parameters=(), workers=0)


def _difference(setting: Setting, asked: Setting) -> str:
    """Say how the circumstances of observations differ from those asked for."""
    words = []
    if setting.device_model != asked.device_model:
        words.append(f"another device model ({setting.device_model})")
    if setting.runtime != asked.runtime:
        words.append("another runtime")
    if setting.episodes != asked.episodes:
        words.append("another number of episodes")
    return "the greatest need measured with " + " and ".join(words)
