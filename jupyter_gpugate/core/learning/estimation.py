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

from jupyter_gpugate.core.estimates import Estimate, EstimateTerm, Origin
from jupyter_gpugate.core.evidence import Calibration, Track
from jupyter_gpugate.core.learning.calibration import irrelevant_parameters, setting_on, without
from jupyter_gpugate.core.learning.scaling import (
    GREATEST_MARGIN,
    MARGIN_OF_ONE,
    Count,
    Guess,
    counts_of,
    for_workers,
    in_mb,
    margin_bytes,
)
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
    ignored: set[str] = set()
    for resource in resources:
        known = _known(calibration, family, resource)
        asked = _asked(setting, resource, device_model)
        total = ram_total if resource == RAM else device_total
        terms.append(known.term(known.views(asked), setting.workers, hints.of(resource), total))
        ignored.update(name for name, _ in setting.parameters if name in known.ignored)
    return Estimate(tuple(terms), tuple(sorted(ignored)))


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
    lower_bound_bytes: int,
    share_bytes: int,
    fits_alone_bytes: int,
    fits_now_bytes: int,
    shrink: bool,
) -> int:
    """Return what an unknown run is charged on one resource; never 0.

    It is twice the prior, or without one ``share_bytes`` of the resource, and never below 1.5
    times the greatest lower bound; all of it within what fits with no run alive.  Once the run
    has waited long enough to ``shrink``, what fits now will do, down to the prior, 1.5 times the
    lower bound, or 1 GB.
    """
    # Where others leave next to nothing, or the prior is a run that used nothing, a charge of a
    # few bytes would start a run that can only fail.
    sensible = max(1, min(LEAST_WATCH_BYTES, share_bytes))
    bound = math.ceil(BOUND_FACTOR * lower_bound_bytes)
    wanted = share_bytes if prior_bytes is None else PRIOR_FACTOR * prior_bytes
    charge = max(min(max(wanted, bound), fits_alone_bytes), sensible)
    if not shrink:
        return charge
    return min(charge, max(fits_now_bytes, prior_bytes or 0, bound, LEAST_WATCH_BYTES))


@dataclass(frozen=True)
class _View:
    """The evidence for one requested setting, by number of workers, in this and other settings."""

    resource: str
    own: Mapping[int, Count]  # in the asked circumstances
    others: Sequence[tuple[str, Mapping[int, Count]]]  # in others, with how they differ
    ignored: str  # a note, if parameters were left out to come here

    def guess(self, workers: int, hint: Optional[int]) -> Optional[Guess]:
        """Return the need by the best origin there is."""
        guess = for_workers(self.resource, self.own, workers)
        if guess is not None:
            return guess._replace(notes=(*guess.notes, self.ignored)) if self.ignored else guess
        guess = self._elsewhere(workers)
        if guess is None and hint is not None:
            need = need_from_hint(self.resource, hint)
            guess = Guess(hint, need, Origin.HINT, 0, ("the author's number",))
        if guess is None:
            return None
        return guess.raised(count.floor for w, count in self.own.items() if w <= workers)

    def _elsewhere(self, workers: int) -> Optional[Guess]:
        """Return the family's greatest, each circumstance brought to this number of workers."""
        best: Optional[Guess] = None
        for difference, counts in self.others:
            guess = for_workers(self.resource, counts, workers, GREATEST_MARGIN)
            if guess is not None and (best is None or guess.need_bytes > best.need_bytes):
                best = guess._replace(origin=Origin.SCALED, notes=(difference, *guess.notes))
        return best


@dataclass(frozen=True)
class _Known:
    """All that is known of one family on one kind of resource."""

    resource: str
    circumstances: Mapping[Setting, Sequence[Track]]  # less the workers and what is ignored
    ignored: tuple[str, ...]
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
        term = EstimateTerm(
            self.resource,
            HolderKind.RUN,
            None,
            note=self._why_unknown(),
            lower_bound_bytes=self.bound_bytes,
            prior_bytes=self.prior_bytes,
        )
        if not guesses:
            return term
        guess = max(guesses, key=lambda guess: guess.need_bytes)
        need, notes = guess.need_bytes, guess.notes
        if total is not None and guess.peak_bytes <= total < need:
            need, notes = total, (*notes, f"at most the total of {in_mb(total)}")
        return replace(
            term,
            need_bytes=need,
            origin=guess.origin,
            peak_bytes=guess.peak_bytes,
            margin_bytes=need - guess.peak_bytes,
            n=guess.n,
            note="; ".join(notes),
        )

    def _why_unknown(self) -> str:
        if not self.elsewhere_bytes:
            return "this version has not been measured yet"
        rise = in_mb(self.elsewhere_bytes)
        return f"it held next to nothing itself, while {rise} outside of it rose and fell with it"

    def _view(self, asked: Setting) -> _View:
        here = _circumstances(asked, self.ignored)
        ignored = [name for name, _ in asked.parameters if name in self.ignored]
        note = (
            f"no effect on the memory needed (peaks within 5 %): {', '.join(ignored)}"
            if ignored
            else ""
        )
        others = [
            (_difference(setting, here), counts_of(tracks, None))
            for setting, tracks in self.circumstances.items()
            if setting != here
        ]
        own = counts_of(self.circumstances.get(here, ()), asked)
        return _View(self.resource, own, others, note)


def _known(calibration: Calibration, family: Family, resource: str) -> _Known:
    tracks = calibration.tracks(family.owner, family.name)
    tracks = tuple(track for track in tracks if track.resource == resource)
    own = [track for track in tracks if track.family == family]
    older = [t for t in tracks if t.family != family and t.evidence.complete]
    needs = (Count.of([track], None).measured(resource).need_bytes for track in older)
    ignored = irrelevant_parameters(own)
    circumstances: dict[Setting, list[Track]] = {}
    for track in own:
        circumstances.setdefault(_circumstances(track.setting, ignored), []).append(track)
    bound = max((track.evidence.bound_bytes for track in tracks), default=0)
    elsewhere = max((track.evidence.elsewhere_bytes for track in own), default=0)
    return _Known(resource, circumstances, ignored, bound, max(needs, default=None), elsewhere)


def _asked(setting: Setting, resource: str, device_model: Optional[str]) -> Setting:
    if device_model is not None:
        setting = replace(setting, device_model=device_model)
    return setting_on(resource, setting)


def _circumstances(setting: Setting, ignored: Sequence[str]) -> Setting:
    return replace(without(setting, ignored), workers=0)


def _difference(setting: Setting, asked: Setting) -> str:
    """Say how the circumstances of observations differ from those asked for."""
    words = []
    if setting.device_model != asked.device_model:
        words.append(f"another device model ({setting.device_model})")
    if setting.runtime != asked.runtime:
        words.append("another runtime")
    if setting.parameters != asked.parameters:
        words.append("other parameters")
    if setting.episodes != asked.episodes:
        words.append("another number of episodes")
    return "the greatest need measured with " + " and ".join(words)
