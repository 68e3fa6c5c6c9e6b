"""The need of a request, estimated per kind of resource and of device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, Optional

from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import HolderKind

#: Stands in notes before the name of a parameter whose value the gate does not know.
THIS: Final = "this"
#: Of the value of a parameter in a note.
_SHOWN_CHARS: Final = 40


class Origin(str, Enum):
    """The origin of a number in an estimate."""

    MEASURED = "measured"
    FITTED = "fitted"
    SCALED = "scaled"
    HINT = "hint"
    CHOSEN = "chosen"


#: Drawn from other settings than the one asked for.
GUESSED: Final = (Origin.FITTED, Origin.SCALED)


@dataclass(frozen=True)
class EstimateTerm:
    """The need of one holder on one kind of resource; ``need_bytes`` None is a gap."""

    resource: str  # RAM or VRAM (per device)
    holder: HolderKind
    need_bytes: Optional[int]
    origin: Optional[Origin] = None
    peak_bytes: Optional[int] = None
    margin_bytes: int = 0
    n: int = 0  # complete observations behind it
    note: str = ""  # "fitted over workers 1, 2, 4"; "saturated: the peak itself"; ...
    lower_bound_bytes: int = 0  # greatest peak of attempts that do not set a need
    prior_bytes: Optional[int] = None  # what older sources, or other parameters, needed
    is_prior_close: bool = False  # many values of the parameter needed just that
    unknown_parameters: tuple[str, ...] = ()  # with values that no run has shown
    device_model: str = ""  # of which kind of device it is told, where the machine has several


@dataclass(frozen=True)
class Estimate:
    """Need per term; a term without a number makes the total of its resource None."""

    terms: tuple[EstimateTerm, ...]
    level_parameters: tuple[str, ...] = ()  # numbers that were shown not to matter

    def with_values(self, parameters: Mapping[str, str]) -> Estimate:
        """Return the estimate with the values of unknown parameters in its notes."""
        return replace(self, terms=tuple(_with_values(term, parameters) for term in self.terms))

    def total_bytes(self, resource: str) -> Optional[int]:
        needs = [t.need_bytes for t in self.terms if t.resource == resource]
        known = [n for n in needs if n is not None]
        return sum(known) if len(known) == len(needs) else None

    def known_bytes(self, resource: str) -> int:
        return sum(t.need_bytes or 0 for t in self.terms if t.resource == resource)

    def gaps(self) -> tuple[str, ...]:
        return tuple(f"{t.resource}:{t.holder.value}" for t in self.terms if t.need_bytes is None)

    def term(self, resource: str) -> EstimateTerm:
        """The run's own term on one kind of resource."""
        for term in self.terms:
            if term.resource == resource and term.holder is HolderKind.RUN:
                return term
        raise KeyError(resource)


def _with_values(term: EstimateTerm, parameters: Mapping[str, str]) -> EstimateTerm:
    known = [name for name in term.unknown_parameters if name in parameters]
    if not known:
        return term
    # The longest name first: "this model" is also the beginning of "this model_size".
    names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    told = re.sub(rf"{THIS} ({names})", lambda found: _told(found[1], parameters), term.note)
    return replace(term, note=told)


def _told(name: str, parameters: Mapping[str, str]) -> str:
    value = parameters[name].replace("\0", " ")
    shown = value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}..."
    return f"{name} = {shown}"


class TermNeed(NamedTuple):
    """The need of one term for admission: a number with its rung, or bounds of a guess."""

    need_bytes: Optional[int]
    basis: Basis
    prior_bytes: Optional[int]
    lower_bound_bytes: int
    #: What it needs for certain: less the margin; 0 of a number drawn from other settings.
    least_bytes: Optional[int] = None
    is_prior_close: bool = False  # charge the prior itself


#: Nothing is known: the run is watched.
UNKNOWN = TermNeed(None, Basis.WATCH, None, 0)


class Needs(NamedTuple):
    """A request's need of RAM and, per device model, of each of its devices."""

    ram: TermNeed
    vram: tuple[tuple[str, TermNeed], ...]

    def on(self, model: str) -> TermNeed:
        for name, need in self.vram:
            if name == model:
                return need
        return UNKNOWN


NO_NEEDS = Needs(UNKNOWN, ())
NO_ESTIMATE = Estimate(())
#: The estimates of a request by kind of device; "" for RAM only.
Estimates = tuple[tuple[str, Estimate], ...]
