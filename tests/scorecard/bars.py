"""The bars that the gate is held to in the scorecard, and what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tests.scorecard.study import COLD, ORACLE, WARM, X2

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scorecard.figures import Figures
    from tests.scorecard.study import Outcome


class Bar(NamedTuple):
    """A figure and its limit."""

    name: str
    value: float
    most: float
    is_share: bool = True

    @property
    def reached(self) -> bool:
        return self.value <= self.most + 1e-9


class _Rule(NamedTuple):
    name: str
    policy: str
    most: float
    value: Callable[[Outcome, Figures], float]
    is_share: bool = True


#: Times below a minute count as a minute: a multiple of a second means nothing to anybody.
LEAST_S: Final = 60.0


def _of(figure: str, other: str) -> Callable[[Outcome, Figures], float]:
    """Return the ratio of a time to that of another policy."""

    def ratio(outcome: Outcome, own: Figures) -> float:
        base = max(LEAST_S, float(getattr(outcome[other], figure)))
        return max(LEAST_S, float(getattr(own, figure))) / base

    return ratio


def _unrepaired(_outcome: Outcome, own: Figures) -> float:
    return own.oom_jobs - own.repaired


RULES: Final = (
    _Rule("charged too little", WARM, 0.005, lambda _, own: own.undercharged_share),
    _Rule("ended by its cap, with room", WARM, 0, lambda _, own: own.own_cap_with_room, False),
    _Rule("makespan / oracle", WARM, 1.05, _of("makespan_s", ORACLE)),
    _Rule("mean wait / oracle", WARM, 1.05, _of("wait_mean_s", ORACLE)),
    _Rule("held back although it fits", WARM, 0.02, lambda _, own: own.held_back_share),
    _Rule("mean wait / declared x2", WARM, 2 / 3, _of("wait_mean_s", X2)),
    _Rule("makespan / oracle", COLD, 1.10, _of("makespan_s", ORACLE)),
    _Rule("mean wait / oracle", COLD, 1.10, _of("wait_mean_s", ORACLE)),
    _Rule("not repaired by a retry", COLD, 0, _unrepaired, False),
    _Rule("held back although it fits", COLD, 0.10, lambda _, own: own.held_back_share),
    _Rule("mean wait / declared x2", COLD, 2 / 3, _of("wait_mean_s", X2)),
)


def bars_of(outcome: Outcome) -> list[Bar]:
    """Return what became of each bar on one machine."""
    return [
        Bar(
            f"{rule.policy}: {rule.name}",
            rule.value(outcome, outcome[rule.policy]),
            rule.most,
            rule.is_share,
        )
        for rule in RULES
    ]
