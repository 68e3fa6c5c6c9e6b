"""The observations of attempts, per owner and name: bounded, in order, without averaging.

One `Track` holds the observations of one family in one setting on one kind of resource.  Of
each track are kept

- the last ten complete observations, which alone may set a need;
- between any two of them, and after the last, the incomplete observation with the greatest
  lower bound, the one with the greatest out-of-memory figure, and the one for which most rose
  elsewhere (lower bounds are forgotten when ten complete observations came after them, like any
  outlier);
- one older complete observation, if no newer enforced cap is as small and nothing ran out of
  memory since: it proves that its cap sufficed.

Of each owner and name the 128 tracks observed last are kept.  Whatever is dropped changes no
estimate of the tracks that stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from jupyter_gpugate.core.evidence import WINDOW, Calibration, Observation, Track
from jupyter_gpugate.core.parameters import number_of
from jupyter_gpugate.core.requests import Setting
from jupyter_gpugate.core.resources import RAM

TRACKS_PER_NAME: Final = 128
#: Values that have to agree, and how closely, before a number counts as level.
ALIKE_SETTINGS: Final = 3
ALIKE_SPREAD: Final = 0.05


def sediment(calibration: Calibration, observation: Observation) -> Calibration:
    """Add what one attempt showed on one resource; an impossible reading changes nothing.

    The order of the calls is the order of time.
    """
    if not _possible(observation):
        return calibration
    key = _key(observation)
    return Calibration({**calibration.names, key: _added(calibration.tracks(*key), observation)})


def forget(calibration: Calibration, owner: str, name: str) -> Calibration:
    """Drop all that was learned about one owner's name; other owners keep theirs."""
    if (owner, name) not in calibration.names:
        return calibration
    return Calibration({k: v for k, v in calibration.names.items() if k != (owner, name)})


def from_observations(observations: Iterable[Observation]) -> Calibration:
    """Sediment many observations, oldest first, without a calibration for each step."""
    names: dict[tuple[str, str], tuple[Track, ...]] = {}
    for observation in observations:
        if _possible(observation):
            key = _key(observation)
            names[key] = _added(names.get(key, ()), observation)
    return Calibration(names)


def setting_on(resource: str, setting: Setting) -> Setting:
    """Return what of the setting counts on this resource: RAM knows no device model."""
    if resource == RAM and setting.device_model is not None:
        return replace(setting, device_model=None)
    return setting


def level_parameters(tracks: Sequence[Track]) -> tuple[str, ...]:
    """Return the numbers without an effect, given one family's tracks on one resource.

    They are the largest set found such that settings that differ in nothing else peak within
    5 % of each other, where each of them took three values.  Judged are the ten settings
    observed last, so that an old outlier loses its effect.
    """
    names = _numbers(tracks)
    while names:
        groups = _groups(tracks, names)
        rare = {n for n in names if max(_values(g, n) for g in groups) < ALIKE_SETTINGS}
        if rare:
            names = names - rare
        elif max(map(_spread, groups)) <= ALIKE_SPREAD:
            return tuple(sorted(names))
        else:
            names = min((names - {n} for n in sorted(names)), key=lambda s: _discord(tracks, s))
    return ()


def without(setting: Setting, parameters: Collection[str]) -> Setting:
    """Return the setting less some of its parameters."""
    if not parameters:
        return setting
    kept = tuple(pair for pair in setting.parameters if pair[0] not in parameters)
    return replace(setting, parameters=kept)


def _key(observation: Observation) -> tuple[str, str]:
    return observation.family.owner, observation.family.name


def _possible(observation: Observation) -> bool:
    # A transient neighbour can be booked on a run: no peak is greater than its device.
    total = None if observation.resource == RAM else observation.device_total_bytes
    return observation.peak_bytes >= 0 and (total is None or observation.peak_bytes <= total)


def _added(tracks: tuple[Track, ...], observation: Observation) -> tuple[Track, ...]:
    family, resource = observation.family, observation.resource
    setting = setting_on(resource, observation.setting)
    others: list[Track] = []
    before: tuple[Observation, ...] = ()
    for track in tracks:
        if (track.resource, track.setting, track.family) == (resource, setting, family):
            before = track.observations
        else:
            others.append(track)
    before = tuple(one for one in before if not _supersedes(observation, one))
    track = Track(family, setting, resource, _kept((*before, observation)))
    return (*others[-(TRACKS_PER_NAME - 1) :], track)


def _supersedes(later: Observation, earlier: Observation) -> bool:
    """Return whether an observation is a later one of the same run, as of a service that goes on.

    One that ran out of memory since teaches that in addition.
    """
    same = later.run_id == earlier.run_id != "" and earlier.complete
    return same and (later.complete or later.elsewhere_bytes is not None)


def _kept(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    complete: list[Observation] = []
    gaps: list[list[Observation]] = [[]]  # what came before each complete one, and after all
    for observation in observations:
        if observation.complete:
            complete.append(observation)
            gaps.append([])
        else:
            gaps[-1].append(observation)
    old = max(0, len(complete) - WINDOW)
    kept = [] if old else _telling(gaps[0])
    kept += _tightest(complete, gaps, old)
    for observation, gap in zip(complete[old:], gaps[old + 1 :]):
        kept += [observation, *_telling(gap)]
    return tuple(kept)


def _telling(gap: Sequence[Observation]) -> list[Observation]:
    """Pick the most that incomplete observations in a row have to say."""
    if not gap:
        return []
    bound = max(gap, key=lambda observation: observation.bound_bytes)
    oom = max(gap, key=lambda observation: observation.oom_at_bytes or 0)
    elsewhere = max(gap, key=lambda observation: observation.elsewhere_bytes or 0)
    kept = [bound]
    if oom.oom_at_bytes is not None:
        kept.append(oom)
    if elsewhere.elsewhere_bytes is not None:
        kept.append(elsewhere)
    return [observation for observation in gap if any(observation is one for one in kept)]


def _tightest(
    complete: Sequence[Observation], gaps: Sequence[Sequence[Observation]], old: int
) -> list[Observation]:
    """Find the one complete observation older than the window whose cap still binds."""
    cap, tightest = None, None
    for index in range(len(complete) - 1, -1, -1):
        if any(o.oom_at_bytes is not None for o in gaps[index + 1]):
            break
        enforced = complete[index].enforced_cap_bytes
        if enforced is not None and (cap is None or enforced < cap):
            cap, tightest = enforced, index
    return [complete[tightest]] if tightest is not None and tightest < old else []


def _groups(tracks: Sequence[Track], names: Collection[str]) -> list[list[Track]]:
    """Gather tracks that differ in nothing but ``names``; of each group those observed last."""
    groups: dict[Setting, list[Track]] = {}
    for track in tracks:
        groups.setdefault(without(track.setting, names), []).append(track)
    return [
        [t for t in group if t.evidence.complete][-WINDOW:]
        + [t for t in group if not t.evidence.complete][-WINDOW:]
        for group in groups.values()
    ]


def _numbers(tracks: Sequence[Track]) -> set[str]:
    """Return the parameters that never had a word as their value."""
    pairs = {pair for track in tracks for pair in track.setting.parameters}
    return {name for name, _ in pairs} - {n for n, value in pairs if number_of(value) is None}


def _values(group: Sequence[Track], name: str) -> int:
    return len({dict(t.setting.parameters).get(name) for t in group if t.evidence.complete})


def _spread(group: Sequence[Track]) -> float:
    """Say how far the peaks of a group lie apart, as a share of the greatest."""
    peaks = [t.evidence.greatest.peak_bytes for t in group if t.evidence.complete]
    bounds = [t.evidence.bound_bytes for t in group if not t.evidence.complete]
    high = max(peaks + bounds)
    return (high - min(peaks)) / high if peaks and high else 0.0


def _discord(tracks: Sequence[Track], names: Collection[str]) -> tuple[float, int]:
    """Rank a set of parameters: first by how far peaks differ, then by how few settings agree."""
    groups = _groups(tracks, names)
    support = max(sum(1 for t in g if t.evidence.complete) for g in groups)
    return max(ALIKE_SPREAD, *map(_spread, groups)), -support
