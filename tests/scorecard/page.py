"""The scorecard as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.scorecard.bars import bars_of
from tests.scorecard.study import ORACLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.scorecard.bars import Bar
    from tests.scorecard.figures import Figures
    from tests.scorecard.study import Outcome

HEAD: Final = """# Scorecard

The decisions of the real gate, replayed on simulated machines, beside other ways to share GPUs.
`make scorecard` writes this page. [Simulation](simulation.md) describes the worlds, the policies
and the columns, and discusses the bars that are missed. All numbers are means over {seeds}.
"""
OF_ORACLE: Final = "Over the oracle's, without interference, for a part of the worlds.\n"
COLUMNS: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("lost runs", lambda f: f"{f.lost:.1f} of {f.jobs:.0f}"),
    ("wait, mean", lambda f: minutes(f.wait_mean_s)),
    ("wait, p95", lambda f: minutes(f.wait_p95_s)),
    ("makespan", lambda f: minutes(f.makespan_s)),
    ("OOM: own cap (with room)", lambda f: f"{f.own_cap:.1f} ({f.own_cap_with_room:.1f})"),
    ("OOM: device full", lambda f: f"{f.device_full:.1f}"),
    ("outsiders hit", lambda f: f"{f.outsiders_ended:.1f}"),
    ("GB-hours wasted", lambda f: f"{f.wasted_gb_h:.1f}"),
    ("memory used", lambda f: f"{f.used_share:.0%}"),
    ("charged too little", lambda f: f"{f.undercharged_share:.1%}" if f.calibrated else ""),
    ("held back", lambda f: f"{f.held_back_share:.1%}"),
)


LEVEL_WORDS: Final = {
    "noise": "the noise between equal runs",
    "load": "the load: the memory-hours that jobs want while they arrive, of all devices",
}


def minutes(seconds: float) -> str:
    """Write a time for people."""
    return f"{seconds / 60:.1f} min"


def page(
    groups: Mapping[str, Mapping[str, Outcome]],
    levels: Mapping[str, Mapping[str, Outcome]],
    pictures: Mapping[str, Path],
    seeds: str,
    without: Mapping[str, Outcome],
    against_reality: Mapping[str, Any] | None = None,
) -> str:
    """Return the page: ``groups`` has outcomes by interference and machine."""
    parts = [HEAD.format(seeds=seeds)]
    parts += [f"![{title}](pictures/{path.name})\n" for title, path in pictures.items()]
    for interference, machines in groups.items():
        parts += [f"## Bars, {interference}\n", bars_table(machines)]
    for interference, machines in groups.items():
        parts.append(f"## Figures, {interference}\n")
        for machine, outcome in machines.items():
            parts += [f"### {machine}\n", figures_table(outcome)]
    for name, by_level in levels.items():
        if by_level:
            parts += [f"## The bars by {LEVEL_WORDS[name]}\n", bars_table(by_level)]
    parts += ["## What costs most: rules left out\n", OF_ORACLE, without_table(without)]
    if against_reality:
        parts += ["## Simulation against reality\n", _reality(against_reality)]
    return "\n".join(parts)


def bars_table(machines: Mapping[str, Outcome]) -> str:
    """Return a table of bars, one column a machine; what is missed is bold."""
    found = {machine: bars_of(outcome) for machine, outcome in machines.items()}
    rows = [["bar", "at most", *found]]
    rows += [
        [bars[0].name, _number(bars[0], bars[0].most), *map(_value, bars)]
        for bars in zip(*found.values(), strict=True)
    ]
    return markdown(rows)


def without_table(machines: Mapping[str, Outcome]) -> str:
    """Return the waits and makespans of variants of the gate, over the oracle's."""
    names = [f"{machine}: {what}" for machine in machines for what in ("wait", "p95", "makespan")]
    rows = [["policy", *names]]
    for policy in next(iter(machines.values())):
        ratios = [ratio for outcome in machines.values() for ratio in _over(outcome, policy)]
        rows.append([policy, *ratios])
    return markdown(rows)


def _over(outcome: Outcome, policy: str) -> list[str]:
    own, base = outcome[policy], outcome[ORACLE]
    return [
        f"{own.wait_mean_s / max(1.0, base.wait_mean_s):.2f}",
        f"{own.wait_p95_s / max(1.0, base.wait_p95_s):.2f}",
        f"{own.makespan_s / base.makespan_s:.2f}",
    ]


def figures_table(outcome: Outcome, columns: Iterable[str] = ()) -> str:
    """Return a table of figures, one row a policy."""
    shown = [column for column in COLUMNS if not columns or column[0] in columns]
    rows = [["policy", *(name for name, _ in shown)]]
    rows += [[policy, *(f(figures) for _, f in shown)] for policy, figures in outcome.items()]
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown."""
    head, *rest = [f"| {' | '.join(row)} |" for row in rows]
    rule = f"| {' | '.join(['---'] * len(rows[0]))} |"
    return "\n".join([head, rule, *rest, ""])


def _value(bar: Bar) -> str:
    text = _number(bar, bar.value)
    return text if bar.reached else f"**{text}**"


def _number(bar: Bar, value: float) -> str:
    if not bar.is_share:
        return f"{value:.2g}"
    return f"{value:.2f}" if "/" in bar.name else f"{value:.1%}"


def _reality(result: Mapping[str, Any]) -> str:
    return (
        f"{result['runs']} real runs on {result['gpus']} stand-in GPUs took "
        f"{result['real_s']:.1f} s from the first submit to the last end; replayed in the "
        f"simulation, {result['simulated_s']:.1f} s: {result['off']:+.1%}.\n"
    )
