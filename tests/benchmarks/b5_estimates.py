"""B5: how far the estimate of a run's GPU memory lies from what the run then needs.

The cells of the generated worlds of `make scorecard` are observed k times, and then run once more.
The limit is the noise itself: how far two equal runs lie apart.  An error is that of the estimated
peak; a run is *short* if even its need, which is the peak and a margin, is less than it takes.
With ``--traces`` the errors of published estimators are read from a folder of traces.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from jupyter_gpugate.core.estimates import EstimateTerm
from jupyter_gpugate.core.evidence import Calibration, Observation
from jupyter_gpugate.core.learning.calibration import sediment
from jupyter_gpugate.core.learning.estimation import estimate
from jupyter_gpugate.core.requests import Family, Hints, Setting
from jupyter_gpugate.core.resources import MB, VRAM
from tests.benchmarks.measure import WORDS, bar, passed, save, table
from tests.scorecard.people import MODELS, Cell, Choice, hire, needs_bytes
from tests.scorecard.traces import estimates_of, read_folder
from tests.scorecard.worlds import NOISE

PEOPLE: Final = 60
MODEL: Final = "80 GB"
BARS: Final = {"median error at k = 2": 0.05, "short at k = 2": 0.01, "numbers at k = 0": 0.0}


class Guess(NamedTuple):
    """One estimate, and what the run then took."""

    term: EstimateTerm
    took_bytes: int

    @property
    def error(self) -> float:
        return abs((self.term.peak_bytes or 0) - self.took_bytes) / self.took_bytes

    @property
    def is_short(self) -> bool:
        return (self.term.need_bytes or 0) < self.took_bytes


@dataclass
class Lab:
    """One cell that is observed again and again; its runs differ by noise alone."""

    cell: Cell
    chance: random.Random
    version: int = 0
    factor: float = 1.0  # of the source's present version
    calibration: Calibration = field(default_factory=Calibration)
    runs: int = 0

    def peak(self, choice: Choice) -> int:
        """Return the peak of one run."""
        noise = 1 + self.chance.uniform(-NOISE / 2, NOISE / 2)
        return int(self.factor * needs_bytes(self.cell, choice) * noise)

    def observe(self, *choices: Choice, times: int = 1) -> Lab:
        """Run each choice so many times."""
        for choice in choices * times:
            self.runs += 1
            observation = Observation(
                self._family(), self._setting(choice), VRAM, self.peak(choice), True, self.runs
            )
            self.calibration = sediment(self.calibration, observation)
        return self

    def edit(self) -> Lab:
        """Edit the source; every third edit changes the memory."""
        self.version += 1
        if self.chance.random() < 1 / 3:
            self.factor *= self.chance.uniform(0.75, 1.35)
        return self

    def guess(self, choice: Choice) -> Guess:
        """Estimate a choice, and run it."""
        setting = self._setting(choice)
        told = estimate(
            self.calibration, self._family(), setting, Hints(), (VRAM,), device_model=MODEL
        )
        return Guess(told.term(VRAM), self.peak(choice))

    def _family(self) -> Family:
        return Family(self.cell.owner, self.cell.name, f"v{self.version}", 1)

    def _setting(self, choice: Choice) -> Setting:
        return Setting(choice.workers, choice.parameters(self.cell), device_model=MODEL)


USUAL: Final = Choice(batch=16, model=MODELS[0], seed=0)
_LARGER: Final = (replace(USUAL, batch=8), replace(USUAL, batch=32))
_SEEDS: Final = tuple(replace(USUAL, seed=seed) for seed in range(3))
_TWO, _FOUR = replace(USUAL, workers=2), replace(USUAL, workers=4)
#: What is observed before, and what is asked.
ASKED: Final[dict[str, Callable[[Lab], Guess]]] = {
    "k = 0": lambda lab: lab.guess(USUAL),
    "k = 1": lambda lab: lab.observe(USUAL).guess(USUAL),
    "k = 2": lambda lab: lab.observe(USUAL, times=2).guess(USUAL),
    "k = 5": lambda lab: lab.observe(USUAL, times=5).guess(USUAL),
    "2 workers after 1": lambda lab: lab.observe(USUAL, times=2).guess(_TWO),
    "4 workers after 1 and 2": lambda lab: lab.observe(USUAL, _TWO, times=2).guess(_FOUR),
    "batch 16 after 8 and 32": lambda lab: lab.observe(*_LARGER, times=2).guess(USUAL),
    "batch 64 after 8 and 32": lambda lab: lab.observe(*_LARGER, times=2).guess(
        replace(USUAL, batch=64)
    ),
    "batch 256 after 8 and 32": lambda lab: lab.observe(*_LARGER, times=2).guess(
        replace(USUAL, batch=256)
    ),
    "seed 3 after 0, 1, 2": lambda lab: lab.observe(*_SEEDS).guess(replace(USUAL, seed=3)),
    "another model": lambda lab: lab.observe(USUAL, times=2).guess(replace(USUAL, model=MODELS[1])),
    "after an edit": lambda lab: lab.observe(USUAL, times=2).edit().guess(USUAL),
    "k = 1 after an edit": lambda lab: (
        lab.observe(USUAL, times=2).edit().observe(USUAL).guess(USUAL)
    ),
}


def run(people: int = PEOPLE, traces: Path | None = None) -> dict[str, Any]:
    """Observe the cells of so many people; JSON data with shares."""
    cells = [cell for cell in hire(random.Random("b5"), people, 1, 1.0) if not cell.stopped]
    rows = {
        name: _row([ask(Lab(cell, random.Random(f"{name} {n}"))) for n, cell in enumerate(cells)])
        for name, ask in ASKED.items()
    }
    two = rows["k = 2"]
    values = (two["median_error"], two["short"], rows["k = 0"]["numbers"])
    bars = {
        name: bar(value, most) for (name, most), value in zip(BARS.items(), values, strict=True)
    }
    return {
        "bench": "B5",
        "cells": len(cells),
        "noise": _noise(cells),
        "asked": rows,
        "published": published(traces) if traces else {},
        "bars": bars,
        "passed": passed(list(bars.values())),
    }


def _row(guesses: Sequence[Guess]) -> dict[str, Any]:
    """Return the shares of one question: errors of the numbers, and of the priors beside gaps."""
    known = [guess for guess in guesses if guess.term.need_bytes is not None]
    priors = [
        abs(guess.term.prior_bytes - guess.took_bytes) / guess.took_bytes
        for guess in guesses
        if guess.term.need_bytes is None and guess.term.prior_bytes is not None
    ]
    return {
        "numbers": len(known) / len(guesses),
        "median_error": statistics.median(guess.error for guess in known) if known else None,
        "short": sum(guess.is_short for guess in known) / len(known) if known else None,
        "median_error_of_prior": statistics.median(priors) if priors else None,
    }


def _noise(cells: Sequence[Cell]) -> float:
    """How far two equal runs lie apart, as a median."""
    pairs = (
        (lab.peak(USUAL), lab.peak(USUAL)) for lab in (Lab(c, random.Random(c.name)) for c in cells)
    )
    return statistics.median(abs(one - two) / two for one, two in pairs)


def published(folder: Path) -> dict[str, float]:
    """Return the median errors of the estimators in a folder of traces."""
    errors: dict[str, list[float]] = {}
    for task in read_folder(folder).tasks.values():
        measured = float(task["measured_mb"]) * MB
        for name, told in estimates_of(task).items():
            errors.setdefault(name, []).append(abs(told - measured) / measured)
    return {name: statistics.median(some) for name, some in errors.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=PEOPLE)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    result = run(chosen.people, chosen.traces)
    save("b5", result)
    print(json.dumps(result, indent=2) if chosen.json else _table(result))
    return 1 if result["passed"] is False else 0


def _table(result: dict[str, Any]) -> str:
    rows = [["B5", "have a number", "median error", "short", "median error of the prior"]]
    fields = ("numbers", "median_error", "short", "median_error_of_prior")
    for name, asked in result["asked"].items():
        shares = [asked[one] for one in fields]
        rows.append([name, *("-" if s is None else f"{s:.1%}" for s in shares)])
    rows += [[n, "", f"{error:.0%}", "", ""] for n, error in result["published"].items()]
    lines = [
        f"{name}: {one['value']:.3f} (at most {one['bar']:g}) {WORDS[one['passed']]}"
        for name, one in result["bars"].items()
    ]
    noise = f"{result['cells']} cells; equal runs differ by {result['noise']:.1%} (median)"
    return "\n".join([table(rows), noise, *lines])


if __name__ == "__main__":
    sys.exit(main())
