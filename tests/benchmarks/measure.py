"""Costs that are worth comparing on a machine that is not: interleaved, as medians, or void."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Where a fixed loop itself varies by more than this, ratios of costs mean nothing.
STEADY: Final = 1.3
BUILD: Final = Path(__file__).resolve().parents[2] / "build"
WORDS: Final = {True: "pass", False: "FAIL", None: "void"}

_WARM_UP: Final = 2


class Costs(NamedTuple):
    """Median CPU milliseconds by name, and how steady the machine was meanwhile."""

    ms: dict[str, float]
    spread: float

    def ratio(self, name: str, to: str) -> float:
        return self.ms[name] / self.ms[to]


def interleave(jobs: Mapping[str, Callable[[], object]], rounds: int) -> Costs:
    """Run the jobs in turn (A B C, B C A, ...), with a fixed loop between, and take medians."""
    costs: dict[str, list[float]] = {name: [] for name in jobs}
    calibration = []
    turns = list(jobs)
    for _ in range(_WARM_UP + rounds):
        calibration.append(cpu_ms(fixed_loop))
        for name in turns:
            costs[name].append(cpu_ms(jobs[name]))
        turns.append(turns.pop(0))
    medians = {name: statistics.median(cost[_WARM_UP:]) for name, cost in costs.items()}
    return Costs(medians, spread_of(calibration[_WARM_UP:]))


def cpu_ms(job: Callable[[], object]) -> float:
    """CPU milliseconds of this process for one call."""
    before = time.process_time_ns()
    job()
    return (time.process_time_ns() - before) / 1e6


def fixed_loop() -> int:
    """Always the same work."""
    return sum(number * number for number in range(50_000))


def spread_of(times: Sequence[float]) -> float:
    """The ninth decile over the first: one hiccup among many turns does not move a median."""
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return deciles[-1] / deciles[0]


def bar(value: float, most: float, *, spread: float = 1.0) -> dict[str, Any]:
    """What became of a bar: ``passed`` is None where the machine was too unsteady to tell."""
    passed = None if spread > STEADY else value <= most
    return {"value": round(value, 3), "bar": most, "passed": passed}


def passed(bars: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether all bars hold; None where none is missed but some are void."""
    verdicts = [one["passed"] for one in bars]
    return False if False in verdicts else None if None in verdicts else True


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def save(name: str, result: Mapping[str, Any]) -> Path:
    """Write a result beside the others under ``build/``; where it lies."""
    BUILD.mkdir(exist_ok=True)
    path = BUILD / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path
