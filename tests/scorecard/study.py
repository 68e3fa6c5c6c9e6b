"""Every policy on every world, in several processes."""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.simulation.gated import Gated
from jupyter_gpugate.gate.simulation.replay import replay
from tests.scorecard.figures import Figures, figures_of, mean_of
from tests.scorecard.ledger import by_estimator, declared, exclusive
from tests.scorecard.oracle import Oracle, by_length
from tests.scorecard.traces import read_folder
from tests.scorecard.worlds import LOAD, MACHINES, NOISE, SLOWDOWNS, days

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jupyter_gpugate.gate.simulation.replay import Policy, Story
    from jupyter_gpugate.gate.simulation.workload import World

EXCLUSIVE, ORACLE, SHORTEST = "exclusive", "oracle", "oracle, shortest first"
X1, X12, X2, NOTHING = "declared x1", "declared x1.2", "declared x2", "nothing declared"
COLD, WARM = "gate, cold", "gate, warm"
PEERS: Final[dict[str, Callable[[], Policy]]] = {
    EXCLUSIVE: exclusive,
    X2: lambda: declared(2.0),
    X12: lambda: declared(1.2),
    X1: lambda: declared(1.0),
    NOTHING: lambda: declared(0.0),
    ORACLE: Oracle,
    SHORTEST: lambda: Oracle(by_length),
}
ORDER: Final = (EXCLUSIVE, X2, X12, X1, NOTHING, COLD, WARM, ORACLE, SHORTEST)
ALONE, PAIRS = "no interference", "measured pairs"


class Case(NamedTuple):
    """One generated world: a machine, by name, its interference, and a seed."""

    machine: str
    interference: str
    seed: int
    noise: float = NOISE
    load: float = LOAD

    def worlds(self) -> list[World]:
        machine = next(one for one in MACHINES if one.name == self.machine)
        pairs = SLOWDOWNS if self.interference == PAIRS else None
        return days(machine, self.seed, noise=self.noise, load=self.load, pairs=pairs)


class TraceCase(NamedTuple):
    """One world from a folder of traces."""

    folder: Path
    trace: str
    with_pairs: bool
    seed: int

    def worlds(self) -> list[World]:
        return read_folder(self.folder).days(self.trace, self.seed, with_pairs=self.with_pairs)


Outcome = dict[str, Figures]  # by policy
AnyCase = TypeVar("AnyCase", Case, TraceCase)


def outcome_of(case: Case | TraceCase) -> Outcome:
    """Run every policy on the second day of a world; warm: after the first."""
    first, second = case.worlds()
    return compare(first, second)


def compare(earlier: World, world: World) -> Outcome:
    """Run every policy on a world; the warm gate has seen an earlier one."""
    stories = {name: replay(world, make()) for name, make in PEERS.items()}
    estimators = sorted({name for job in world.jobs for name in job.estimates})
    stories |= {name: replay(world, by_estimator(name)) for name in estimators}
    stories |= gated(earlier, world)
    return {name: figures_of(story) for name, story in stories.items()}


def gated(earlier: World, world: World) -> dict[str, Story]:
    """Return what the gate does with a world, cold and warm."""
    teacher = Gated()
    replay(earlier, teacher)
    return {COLD: replay(world, Gated()), WARM: replay(world, Gated(teacher.calibration))}


def without_rules(case: Case) -> Outcome:
    """Leave out, one by one, what keeps the warm gate from the oracle's figures."""
    first, second = case.worlds()
    teacher = Gated()
    replay(first, teacher)
    thorough = Gated(teacher.calibration)
    replay(second, thorough)
    no_heads = Traits(head_after_s=math.inf)
    policies: dict[str, Policy] = {
        ORACLE: Oracle(),
        WARM: Gated(teacher.calibration),
        f"{WARM}, without heads": Gated(teacher.calibration, no_heads),
        "gate, every run measured before": Gated(thorough.calibration),
        "gate, every run measured before, without heads": Gated(thorough.calibration, no_heads),
    }
    return {name: figures_of(replay(second, policy)) for name, policy in policies.items()}


def study(
    cases: Sequence[AnyCase],
    processes: int = 2,
    work: Callable[[AnyCase], Outcome] = outcome_of,
) -> dict[AnyCase, Outcome]:
    """Work out many cases, a few at a time."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return dict(zip(cases, pool.map(work, cases, chunksize=1), strict=True))


def means(outcomes: Iterable[Outcome]) -> Outcome:
    """Return each policy's mean over some outcomes."""
    some = list(outcomes)
    return {name: mean_of([one[name] for one in some]) for name in some[0]}
