"""Why a run has no number although its family was measured, and what is known instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from jupyter_gpugate.core.estimates import THIS
from jupyter_gpugate.core.evidence import Track
from jupyter_gpugate.core.learning.calibration import ALIKE_SPREAD, without
from jupyter_gpugate.core.learning.fitting import in_words, reach
from jupyter_gpugate.core.learning.margins import Guess, Learned, in_mb
from jupyter_gpugate.core.parameters import number_of
from jupyter_gpugate.core.requests import Setting

#: Words of a parameter that have to agree before the next one is charged what they needed.
ALIKE_WORDS = 5


class Unknown(NamedTuple):
    """Parameters without a number, and the prior of the watch run that follows."""

    parameters: tuple[str, ...]
    note: str
    prior_bytes: int
    is_close: bool  # many other values needed the same: the prior is charged, and not twice


def why_unknown(
    resource: str, tracks: Sequence[Track], asked: Setting, line: Optional[Guess]
) -> Optional[Unknown]:
    """Return what stands between a setting and a number; None where nothing completed.

    ``tracks`` are all of the family; ``line`` is the need beyond the reach of a line, if any.
    """
    complete = [track for track in tracks if track.evidence.complete]
    if not complete:
        return None
    needs = [Learned.of([track]).measured(resource).need_bytes for track in complete]
    greatest = max(needs)
    names, words = _what_is_new(complete, asked)
    if line is not None:
        note = f"{words}; the line leads to {in_mb(line.need_bytes)} there"
        return Unknown(names, note, max(line.need_bytes, greatest), is_close=False)
    note = f"{words}; others needed up to {in_mb(greatest)}"
    return Unknown(names, note, greatest, is_close=_are_close(complete, asked, names))


def _what_is_new(complete: Sequence[Track], asked: Setting) -> tuple[tuple[str, ...], str]:
    """Name the parameters that make the setting a new one, and say how."""
    seen: dict[str, set[str]] = {}
    for track in complete:
        for name, value in track.setting.parameters:
            seen.setdefault(name, set()).add(value)
    new = [name for name, value in asked.parameters if value not in seen.get(name, ())]
    if not new:
        known = dict(asked.parameters)
        others = sorted({*known, *seen} - _always(complete, asked))
        return tuple(others), f"never run with these values together: {', '.join(others)}"
    return tuple(new), "never run with " + ", ".join(_told(n, asked, seen) for n in new)


def _always(complete: Sequence[Track], asked: Setting) -> set[str]:
    """Return the parameters that every track has with the asked value."""
    pairs = set(asked.parameters).intersection(*(t.setting.parameters for t in complete))
    return {name for name, _ in pairs}


def _told(name: str, asked: Setting, seen: dict[str, set[str]]) -> str:
    number = number_of(dict(asked.parameters)[name])
    if number is None:
        return f"{THIS} {name}"
    words = f"{name} = {in_words([number])}"
    values = [number_of(value) for value in seen.get(name, ())]
    numbers = [value for value in values if value is not None]
    if len(numbers) > 1 and number > reach(numbers):
        return (
            f"{words}, more than twice the greatest value that was run ({in_words([max(numbers)])})"
        )
    return words


def _are_close(complete: Sequence[Track], asked: Setting, names: Sequence[str]) -> bool:
    """Return whether many values of the one new parameter needed much the same."""
    if len(names) != 1:
        return False
    alike = [t for t in complete if without(t.setting, names) == without(asked, names)]
    values = {dict(t.setting.parameters).get(names[0]) for t in alike} - {None}
    peaks = [track.evidence.greatest.peak_bytes for track in alike]
    return len(values) >= ALIKE_WORDS and min(peaks) >= (1 - ALIKE_SPREAD) * max(peaks)
