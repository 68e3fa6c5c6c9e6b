"""B4: whole days of runs in simulated time: waits, ends out of memory, and memory that is wasted.

The short form of `make scorecard`: the real decisions of the gate on generated worlds, beside
exclusive devices, ledgers of declared numbers, and an oracle that knows every need in advance.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks.measure import WORDS, bar, passed, save, table
from tests.scorecard.bars import bars_of
from tests.scorecard.figures import as_json
from tests.scorecard.study import ALONE, ORDER, PAIRS, Case, Outcome, means, study

if TYPE_CHECKING:
    from collections.abc import Sequence

SEEDS: Final = 2
MACHINES: Final = ("1 GPU", "4 GPUs")
SHOWN: Final = {
    "lost": "lost",
    "wait_mean_s": "wait s",
    "wait_p95_s": "p95 s",
    "makespan_s": "makespan s",
    "own_cap": "own cap",
    "device_full": "full",
    "wasted_gb_h": "GB-h wasted",
}


def run(seeds: int = SEEDS, machines: Sequence[str] = MACHINES) -> dict[str, Any]:
    """Simulate so many worlds of each machine, with and without interference; JSON data."""
    groups = [(machine, how) for machine in machines for how in (ALONE, PAIRS)]
    cases = [Case(machine, how, seed) for machine, how in groups for seed in range(seeds)]
    found = study(cases)
    outcomes = {
        f"{machine}, {how}": means(found[case] for case in cases if case[:2] == (machine, how))
        for machine, how in groups
    }
    results = {name: _judged(outcome) for name, outcome in outcomes.items()}
    bars = [one for result in results.values() for one in result["bars"].values()]
    return {"bench": "B4", "seeds": seeds, "worlds": results, "passed": passed(bars)}


def _judged(outcome: Outcome) -> dict[str, Any]:
    return {
        "policies": {policy: as_json(outcome[policy]) for policy in ORDER},
        "bars": {one.name: bar(one.value, one.most) for one in bars_of(outcome)},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or JSON; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    result = run(chosen.seeds)
    save("b4", result)
    if chosen.json:
        print(json.dumps(result, indent=2))
    else:
        for name, world in result["worlds"].items():
            print(_table(name, world))
        print(f"B4: {WORDS[result['passed']]}")
    return 1 if result["passed"] is False else 0


def _table(name: str, world: dict[str, Any]) -> str:
    rows = [[name, *SHOWN.values()]]
    for policy, figures in world["policies"].items():
        rows.append([policy, *(f"{figures[field]:.1f}" for field in SHOWN)])
    bars = [["bar", "value", "at most", ""]]
    for bar_name, one in world["bars"].items():
        bars.append([bar_name, f"{one['value']:g}", f"{one['bar']:.3g}", WORDS[one["passed"]]])
    return f"{table(rows)}\n\n{table(bars)}\n"


if __name__ == "__main__":
    sys.exit(main())
