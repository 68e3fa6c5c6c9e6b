"""B1: what a tick's decisions cost, beside the plain loop over the queue and beside its limit.

The queues hold the same 60 sorts of run whatever their length, as users' queues do: 15 evals of
four owners, submitted in turn to a machine of two GPUs.  Three ticks are looked at:

- *nothing fits*: every run is known, and the machine is full;
- *some fit*: the same, and there is room for a few;
- *all edited*: every source is new, so that all are watched with what is known of their name.

Beside them, without a bar, is a queue in which no two runs need the same.  The floor is one pass
that compares each queued run's need with its room, two lists of the queue's length: no decision can
be had for less than looking at every run once.  The peer is the loop that does look at every run by
itself.  A tick in which nothing has happened is counted in Python calls, which do not vary.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.tick import Happened, run_tick
from jupyter_gpugate.core.requests import (
    Family,
    Hints,
    Request,
    Setting,
)
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    VRAM,
)
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    RamReading,
    Sample,
)
from jupyter_gpugate.core.state import GateState
from tests.benchmarks.measure import STEADY, WORDS, Costs, bar, interleave, passed, save, table
from tests.kit.reference_admission import decide_one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


SIZES: Final = (100, 10_000)
LARGE: Final = (100, 10_000, 100_000)
OWNERS: Final = 4
EVALS: Final = 15
NOW: Final = 5000.0
L4: Final = "NVIDIA L4"
#: Of the compare pass at 10,000 queued, and of the cost at 100 queued.
BARS: Final = {"of_floor": 5.0, "of_smallest": 10.0}
_FLOOR_SIZE: Final = 10_000


class Tick(NamedTuple):
    """What one tick decides on."""

    state: GateState
    sample: Sample

    def decide(self) -> Decisions:
        return decide(self.state, self.sample, NOW)

    def one_by_one(self) -> object:
        return decide_one_by_one(self.state, self.sample, NOW)


def run(sizes: Sequence[int] = SIZES, rounds: int = 15) -> dict[str, Any]:
    """Measure queues of these lengths, the shortest first.

    Returns JSON data: per kind of tick the costs in milliseconds by length, and what became of each
    bar (None: void); ``passed`` is None where a bar is void and none is missed.
    """
    kinds = {name: _measure(make, sizes, rounds) for name, make in _TICKS.items()}
    bars = [one for kind in kinds.values() for one in kind["bars"].values()]
    calls = {size: _calls_of_an_empty_tick(size) for size in sizes}
    bars.append(bar(max(calls.values()) / min(calls.values()), 1.0))
    return {
        "bench": "B1",
        "sizes": list(sizes),
        "sorts": OWNERS * EVALS,
        "ticks": kinds,
        "calls_when_nothing_happened": calls,
        "passed": passed(bars),
    }


def _measure(make: Callable[[int], Tick], sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    ticks = {size: make(size) for size in sizes}
    jobs: dict[str, Callable[[], object]] = {}
    for size, tick in ticks.items():
        jobs[f"ours {size}"] = tick.decide
        jobs[f"floor {size}"] = _compare_pass(size)
        if size <= _FLOOR_SIZE:  # ten times as many take the peer minutes
            jobs[f"peer {size}"] = tick.one_by_one
    costs = interleave(jobs, rounds)
    decided = {size: tick.decide() for size, tick in ticks.items()}
    return {
        "ms": {name: round(cost, 3) for name, cost in costs.ms.items()},
        "spread": round(costs.spread, 3),
        "grants": {size: len(decisions.grants) for size, decisions in decided.items()},
        "groups": {size: len(tick.state.alike) for size, tick in ticks.items()},
        "bars": _bars(costs, sizes) if make in _BARRED else {},
    }


def _bars(costs: Costs, sizes: Sequence[int]) -> dict[str, Any]:
    smallest = f"ours {min(sizes)}"
    bars = {}
    for size in sizes:
        if size >= _FLOOR_SIZE:
            of_floor = costs.ratio(f"ours {size}", f"floor {size}")
            of_smallest = costs.ratio(f"ours {size}", smallest)
            bars[f"{size} of_floor"] = bar(of_floor, BARS["of_floor"], spread=costs.spread)
            bars[f"{size} of_smallest"] = bar(of_smallest, BARS["of_smallest"], spread=costs.spread)
    return bars


def _compare_pass(size: int) -> Callable[[], object]:
    needs = [number % 977 * MB for number in range(size)]
    rooms = [number % 991 * MB for number in range(size)]
    return lambda: [need <= room for need, room in zip(needs, rooms, strict=True)]


def _calls_of_an_empty_tick(size: int) -> int:
    """How many Python functions a tick calls in which nothing happened and nothing was read."""
    tick = nothing_fits(size)
    measured = Happened((), tick.sample, NOW, measured=True, wall=0.0)
    first = run_tick(tick.state, measured, Decisions())
    again = Happened((), tick.sample, NOW + 0.1, measured=False, wall=0.0)
    state, calls = first.written(), 0

    def count(_frame: object, what: str, _arg: object) -> None:
        nonlocal calls
        calls += what == "call"

    sys.setprofile(count)
    try:
        after = run_tick(state, again, first.decisions)
    finally:
        sys.setprofile(None)
    if after.decisions.kept_waiting is not first.decisions.kept_waiting:
        raise AssertionError("decided anew although nothing had happened")
    return calls


# -- the ticks ----------------------------------------------------------------------------------


def nothing_fits(size: int) -> Tick:
    """Every run is known, and the machine is full."""
    return _tick(size, live=6, hint_of=_of_its_eval)


def some_fit(size: int) -> Tick:
    """Every run is known, and two devices have room for one more each."""
    return _tick(size, live=2, hint_of=_of_its_eval)


def all_edited(size: int) -> Tick:
    """Every source is new; what is known is what older sources of the names needed."""
    return _tick(size, live=2, hint_of=None)


def all_different(size: int) -> Tick:
    """No two runs need the same."""
    return _tick(size, live=6, hint_of=lambda number: 10 * GB + number)


def _of_its_eval(number: int) -> int:
    return 10 * GB + number % (OWNERS * EVALS) * 64 * MB


def _tick(size: int, live: int, hint_of: Callable[[int], int] | None) -> Tick:
    """The queue was filled evenly over the last hour; ``live`` runs were granted before."""
    boards = [Device(f"GPU-{index}", L4, 24 * GB, index) for index in range(2)]
    state = apply(GateState(), [ev.DeviceSeen(0.0, board) for board in boards])
    early = [_request(number, Hints(7 * GB, GB)) for number in range(live)]
    state = apply(state, [ev.Requested(0.0, request, "side") for request in early])
    grants = decide(state, _machine(1.0), 1.0).grants
    state = apply(state, [ev.Granted(1.0, grant) for grant in grants])
    state = apply(
        state,
        [
            ev.Sedimented(0.0, observation)
            for number in range(OWNERS * EVALS if hint_of is None else 0)
            for observation in _observations(number)
        ],
    )
    queued: list[ev.Event] = []
    for number in range(size):
        hints = Hints() if hint_of is None else Hints(hint_of(number), GB)
        request = _request(live + number, hints, source=str(number))
        queued.append(ev.Requested(NOW - 3600 + 3600 * number / size, request, "side"))
    return Tick(apply(state, [*queued, ev.Present(NOW, "side")]), _machine(NOW))


def _request(number: int, hints: Hints, source: str = "old") -> Request:
    family = _family(number, source)
    return Request(f"run-{number}", family, Setting(workers=1), hints=hints)


def _family(number: int, source: str) -> Family:
    owner, name = f"user{number % OWNERS}", f"eval{number // OWNERS % EVALS}"
    return Family(owner, name, source, gpus=1)


def _observations(number: int) -> list[Observation]:
    peaks = {VRAM: _of_its_eval(number) // 2, RAM: GB + number * MB}
    family, setting = _family(number, "old"), Setting(workers=1, device_model=L4)
    return [
        Observation(family, setting, resource, peak, complete=True, at=0.0)
        for resource, peak in peaks.items()
    ]


def _machine(at: float) -> Sample:
    """The live runs have only been granted: their charges stand, and nothing is in use yet."""
    readings = tuple(
        DeviceReading(Device(f"GPU-{index}", L4, 24 * GB, index), at, 24 * GB) for index in range(2)
    )
    return Sample(ram=RamReading(at, 256 * GB, 250 * GB, 250 * GB), devices=readings)


# -- telling ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="100,000 queued as well")
    parser.add_argument("--small", action="store_true", help="few rounds, for CI")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args(arguments)
    result = run(LARGE if chosen.large else SIZES, rounds=3 if chosen.small else 15)
    save("b1", result)
    print(json.dumps(result, indent=2) if chosen.json else _table(result))
    return 1 if result["passed"] is False else 0


def _table(result: dict[str, Any]) -> str:
    """The result as a table for a terminal."""
    rows = [["tick", "queued", "sorts", "grants", "ours ms", "floor ms", "plain loop ms", "spread"]]
    rows[0] += [f"{name} <= {most:g}" for name, most in BARS.items()]
    for name, kind in result["ticks"].items():
        for size in result["sizes"]:
            ms = [kind["ms"].get(f"{who} {size}") for who in ("ours", "floor", "peer")]
            verdicts = [kind["bars"].get(f"{size} {which}") for which in BARS]
            rows.append(
                [
                    name,
                    f"{size:,}",
                    f"{kind['groups'][size]:,}",
                    str(kind["grants"][size]),
                    *("-" if cost is None else f"{cost:.2f}" for cost in ms),
                    f"{kind['spread']:.2f}x",
                    *(
                        "" if one is None else f"{one['value']:.2f} {WORDS[one['passed']]}"
                        for one in verdicts
                    ),
                ]
            )
    counts = result["calls_when_nothing_happened"]
    calls = ", ".join(f"{count} at {size:,}" for size, count in counts.items())
    return (
        f"{table(rows)}\nPython calls of a tick in which nothing happened: {calls}\n"
        f"void above a spread of {STEADY:g}x; B1: {WORDS[result['passed']]}"
    )


_TICKS: Final = {
    "nothing fits": nothing_fits,
    "some fit": some_fit,
    "all edited": all_edited,
    "all different": all_different,
}
_BARRED: Final = (nothing_fits, some_fit, all_edited)

if __name__ == "__main__":
    raise SystemExit(main())
