"""Worlds from a folder of CSV files; docs/simulation.md lists the columns.

A file is recognised by its columns, whatever its name.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jupyter_gpugate.core.requests import Family, Request, Setting
from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.gate.simulation.workload import Curve, Job, World, steps
from tests.scorecard.people import along, ram_over_time
from tests.scorecard.worlds import NOISE, RUNTIME

if TYPE_CHECKING:
    from pathlib import Path

TASKS, SUBMITS = {"task", "measured_mb"}, {"task", "arrival_s"}
PAIRS = {"job_a", "job_b", "iso_a_steps_s", "coloc_a_steps_s"}
TIMES = {"quantile", "runtime_s"}
#: Runs are cut at these lengths, in seconds: a tail of weeks would be all that a replay shows.
SHORTEST_S, LONGEST_S = 60.0, 5400.0
#: Columns that are no estimator's, although they end in _mb.
NOT_ESTIMATORS = {"measured_mb"}
DEVICES: Final = 4
DEVICE_BYTES: Final = 40 * GB

Rows = Sequence[Mapping[str, str]]


class TraceError(ValueError):
    """A folder of traces cannot be used; says which column or file is wrong."""


@dataclass(frozen=True)
class Traces:
    """The tables of a folder."""

    tasks: Mapping[str, Mapping[str, str]]
    submits: Mapping[str, Rows]  # by file
    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    times: tuple[tuple[float, float], ...] = ()

    def days(self, trace: str, seed: int, *, with_pairs: bool) -> list[World]:
        """Make two days of one trace: the same submits, with noise and lengths of their own."""
        return [self._day(trace, seed, day, with_pairs=with_pairs) for day in range(2)]

    def _day(self, trace: str, seed: int, day: int, *, with_pairs: bool) -> World:
        chance = random.Random(f"{trace} {seed} {day}")
        devices = tuple(
            Device(f"GPU-{n}", f"{DEVICE_BYTES // GB} GB", DEVICE_BYTES, n) for n in range(DEVICES)
        )
        jobs = tuple(
            self._job(chance, seed, number, row) for number, row in enumerate(self.submits[trace])
        )
        pairs = self.pairs if with_pairs else {}
        return World(devices, DEVICES * 64 * GB, jobs, pairs=pairs)

    def _job(self, chance: random.Random, seed: int, number: int, row: Mapping[str, str]) -> Job:
        name = row["task"]
        task = self.tasks[name]
        # Equal runs are equal on every day, but for the noise.
        nature = random.Random(f"{seed} {name}")
        noise = chance.uniform(1 - NOISE / 2, 1 + NOISE / 2)
        peak = min(int(float(task["measured_mb"]) * MB * noise), int(0.95 * DEVICE_BYTES))
        works = self._works_s(task, nature) * chance.uniform(0.95, 1.05)
        loads = sorted({load for load, _ in self.pairs})
        return Job(
            request=Request(
                run_id=f"run-{number:04d}",
                family=Family("ada", name, "v0", int(task.get("gpus") or 1)),
                setting=Setting(1, episodes=nature.choice((1, 10)), runtime=RUNTIME),
            ),
            arrives_s=float(row["arrival_s"]),
            works_s=works,
            vram=_vram(peak, works, nature),
            ram=ram_over_time(int(nature.uniform(2, 5) * GB), works),
            load=nature.choice(loads) if loads else "",
            estimates=estimates_of(task),
        )

    def _works_s(self, task: Mapping[str, str], nature: random.Random) -> float:
        """Return the length of a task's runs: its own, or one of the published run times."""
        share = nature.random()
        known = float(task.get("runtime_s") or 0.0)
        drawn = along(self.times, share) if self.times else 60 * 3 ** (4 * share)
        return min(LONGEST_S, max(SHORTEST_S, known or drawn))


def read_folder(folder: Path) -> Traces:
    """Read every CSV file of a folder that has the columns of one of the tables."""
    tables = {path.stem: _rows(path) for path in sorted(folder.glob("*.csv"))}
    tasks = {row["task"]: row for rows in _with(tables, TASKS).values() for row in rows}
    submits = _with(tables, SUBMITS)
    if not tasks or not submits:
        missing = "task, measured_mb" if not tasks else "task, arrival_s"
        raise TraceError(f"{folder}: no CSV file has the columns {missing}")
    for trace, rows in submits.items():
        unknown = sorted({row["task"] for row in rows} - tasks.keys())
        if unknown:
            raise TraceError(f"{trace}.csv: no table of tasks has {unknown[0]!r}")
    pairs = [row for rows in _with(tables, PAIRS).values() for row in rows]
    times = [row for rows in _with(tables, TIMES).values() for row in rows]
    return Traces(
        tasks,
        submits,
        {(row["job_a"], row["job_b"]): _speed(row) for row in pairs},
        tuple(sorted((float(row["quantile"]), float(row["runtime_s"])) for row in times)),
    )


def _rows(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _with(tables: Mapping[str, Rows], columns: set[str]) -> dict[str, Rows]:
    return {name: rows for name, rows in tables.items() if rows and columns <= rows[0].keys()}


def _speed(row: Mapping[str, str]) -> float:
    """Return the first job's speed beside the second; 0 is a pair that did not fit together."""
    alone, beside = float(row["iso_a_steps_s"]), float(row["coloc_a_steps_s"])
    return min(1.0, beside / alone) if beside > 0 and alone > 0 else 0.5


def estimates_of(task: Mapping[str, str]) -> dict[str, int]:
    """Return what each estimator says, in bytes; without a number it gets a whole device."""
    return {
        column.removesuffix("_mb"): int(float(value) * MB)
        for column, value in task.items()
        if column.endswith("_mb") and column not in NOT_ESTIMATORS and value
    }


def _vram(peak: int, works_s: float, nature: random.Random) -> Curve:
    """Return memory that is loaded in three steps, and for one task in four grows for longer."""
    loads = min(works_s * 0.2, nature.uniform(10.0, 60.0))
    grows = nature.random() < 0.25
    late = works_s * nature.uniform(0.3, 0.7) if grows else loads * 1.5
    early = 0.75 if grows else 0.92
    points = ((0.0, 0.0), (loads / 3, 0.2), (loads * 2 / 3, 0.5), (loads, early), (late, 1.0))
    return steps((at, share * peak) for at, share in points)
