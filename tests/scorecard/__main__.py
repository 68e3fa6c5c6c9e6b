"""Writes docs/scorecard.md, its pictures, and JSON under build/."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.scorecard.figures import as_json
from tests.scorecard.page import bars_table, figures_table, page
from tests.scorecard.plots import draw
from tests.scorecard.study import (
    ALONE,
    COLD,
    ORDER,
    PAIRS,
    Case,
    Outcome,
    TraceCase,
    means,
    study,
    without_rules,
)
from tests.scorecard.traces import read_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS, BUILD = ROOT / "docs", ROOT / "build"
#: How many worlds of each machine are generated; larger ones take longer and vary less.
SEEDS: Final = {"1 GPU": 10, "4 GPUs": 5, "8 GPUs": 3}
#: The machine whose worlds are varied, how many of them, and the unusual values of each level.
LEVELS_OF, LEVEL_SEEDS = "4 GPUs", 2
LEVELS: Final = {"noise": (0.02, 0.05, 0.2), "load": (0.3, 0.6, 0.9)}
TRACE_SEEDS: Final = 2
#: Worlds in which rules of the gate are left out.
WITHOUT: Final = {"1 GPU": 6, "4 GPUs": 3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.scorecard", description=__doc__)
    parser.add_argument("--traces", type=Path, help="a folder of CSV files, see docs/simulation.md")
    parser.add_argument("--against-reality", action="store_true", help="real runs as well: minutes")
    parser.add_argument("--seeds", type=int, help="so many worlds of each machine")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    begun = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    if chosen.traces:
        _write_traces(chosen.traces, chosen.seeds or TRACE_SEEDS, chosen.processes)
    else:
        _write_page(chosen.seeds, chosen.processes, real=chosen.against_reality)
    print(f"in {time.monotonic() - begun:.0f} s")
    return 0


def _write_page(seeds: int | None, processes: int, *, real: bool) -> None:
    counts = dict.fromkeys(SEEDS, seeds) if seeds else SEEDS
    cases = [
        Case(machine, interference, seed)
        for machine, count in reversed(counts.items())  # the longest first
        for interference in (ALONE, PAIRS)
        for seed in range(count or 0)
    ]
    varied = _varied(counts)
    found = study([*cases, *varied], processes)
    groups = {
        interference: {
            name: _mean(found[case] for case in cases if case[:2] == (name, interference))
            for name in counts
        }
        for interference in (ALONE, PAIRS)
    }
    by_noise = _by_level("noise", [*cases, *varied], found)
    by_load = _by_level("load", [*cases, *varied], found)
    _save("scorecard", {"groups": _json(groups), **_json({"noise": by_noise, "load": by_load})})
    without = _without_rules(counts, processes)
    reality = _reality(measure=real)
    pictures = draw(groups[ALONE], DOCS / "pictures")
    words = ", ".join(f"{count} worlds ({name})" for name, count in counts.items())
    text = page(groups, {"noise": by_noise, "load": by_load}, pictures, words, without, reality)
    (DOCS / "scorecard.md").write_text(text, encoding="utf-8")
    print(text)


def _varied(counts: Mapping[str, int | None]) -> list[Case]:
    """Return cases that differ from the usual ones in one of their levels."""
    unusual: list[dict[str, Any]] = [
        {name: level} for name, levels in LEVELS.items() for level in levels
    ]
    seeds = range(min(LEVEL_SEEDS, counts[LEVELS_OF] or 0))
    return [Case(LEVELS_OF, ALONE, seed)._replace(**one) for one in unusual for seed in seeds]


def _by_level(
    name: str, cases: Sequence[Case], found: Mapping[Case, Outcome]
) -> dict[str, Outcome]:
    """Return the figures by one level, the lowest first, all else being usual."""
    like = Case(LEVELS_OF, ALONE, 0)
    alike = [
        case
        for case in cases
        if case.seed < LEVEL_SEEDS and case._replace(seed=0, **{name: getattr(like, name)}) == like
    ]
    levels = sorted({getattr(case, name) for case in alike})
    return {
        f"{level:.0%}": _mean(found[case] for case in alike if getattr(case, name) == level)
        for level in levels
    }


def _without_rules(counts: Mapping[str, int | None], processes: int) -> dict[str, Outcome]:
    """Return, for a part of the worlds, the figures of the gate without some of its rules."""
    cases = [
        Case(machine, ALONE, seed)
        for machine, most in WITHOUT.items()
        for seed in range(min(most, counts[machine] or 0))
    ]
    found = study(cases, processes, without_rules)
    return {
        machine: means(found[case] for case in cases if case.machine == machine)
        for machine in WITHOUT
    }


def _write_traces(folder: Path, seeds: int, processes: int) -> None:
    """Write the same tables for a folder of traces, under build/ alone: the data is not ours."""
    traces = read_folder(folder)
    cases = [
        TraceCase(folder, trace, with_pairs, seed)
        for trace in traces.submits
        for with_pairs in (False, *([True] if traces.pairs else []))
        for seed in range(seeds)
    ]
    found = study(cases, processes)
    parts = ["# Traces\n"]
    result = {}
    for with_pairs in sorted({case.with_pairs for case in cases}):
        machines = {
            trace: _mean(found[c] for c in cases if c[1:3] == (trace, with_pairs))
            for trace in traces.submits
        }
        name = PAIRS if with_pairs else ALONE
        result[name] = {trace: _plain(outcome) for trace, outcome in machines.items()}
        parts += [f"## Bars, {name}\n", bars_table(machines)]
        for trace, outcome in machines.items():
            parts += [f"### {trace}, {name}\n", figures_table(outcome)]
    text = "\n".join(parts)
    _save("scorecard-traces", result)
    (BUILD / "scorecard-traces.md").write_text(text, encoding="utf-8")
    print(text)


def _mean(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the mean, with the policies in the order of the tables."""
    mean = means(outcomes)
    return {name: mean[name] for name in sorted(mean, key=_place)}


def _place(policy: str) -> int:
    # Estimators, which only some worlds have, stand before the gate.
    return ORDER.index(policy) if policy in ORDER else ORDER.index(COLD)


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {policy: as_json(figures) for policy, figures in outcome.items()}


def _json(groups: Mapping[str, Mapping[str, Outcome]]) -> dict[str, Any]:
    return {name: {m: _plain(o) for m, o in some.items()} for name, some in groups.items()}


def _reality(*, measure: bool) -> dict[str, Any] | None:
    """Return the newest comparison with real runs, if there is any."""
    path = BUILD / "against-reality.json"
    if measure:
        from tests.scorecard.reality import compare_with_reality

        _save("against-reality", compare_with_reality())
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _save(name: str, data: Mapping[str, Any]) -> None:
    path = BUILD / f"{name}.json"
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
