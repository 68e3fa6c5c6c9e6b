"""The people of a generated world: their cells, what those need, and how they are submitted.

Sizes and times follow published figures: memory of common vision and language workloads as given
with studies of collocation (half of them below 4 GB, a quarter above 9 GB), run times in the shape
of the jobs of Microsoft's Philly clusters (Jeon et al., USENIX ATC 2019; a tenth below a minute,
the median at 20 minutes, a tail of days), at a quarter of their lengths and cut at 40 minutes,
since an evaluation is shorter than a training.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Final

from jupyter_gpugate.core.parameters import shown
from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.gate.simulation.workload import Curve, steps

#: (share of cells, GB) of one worker with its usual parameters.
SIZES_GB: Final = ((0.0, 0.6), (0.25, 0.9), (0.5, 3.5), (0.75, 9.0), (0.9, 13.0), (1.0, 20.0))
#: (share of jobs, seconds).
TIMES_S: Final = (
    (0.0, 20), (0.05, 48), (0.1, 61), (0.25, 131), (0.35, 428), (0.5, 1186), (0.65, 2242),
    (0.75, 3342), (0.85, 6300), (1.0, 9600),
)  # fmt: skip
TIME_SCALE: Final = 0.25
#: A process's CUDA context.
CONTEXT_BYTES: Final = 400 * MB
BATCHES: Final = (8, 16, 32, 64)
MODELS: Final = tuple(f"model-{letter}" for letter in "abcdefghij")
#: What the sweeps of a cell go over; "" is a single run.
SWEEPS: Final = ("", "seed", "batch", "model", "workers")
LIGHT_BYTES, HEAVY_BYTES = 2 * GB, 8 * GB


@dataclass(frozen=True)
class Cell:
    """One evaluation of one person, with all that its memory depends on."""

    owner: str
    name: str
    gpus: int
    kind: str  # "cell" or "program"
    size_bytes: int  # of one worker at batch 16 with a model of factor 1
    activations: float  # the share of that which grows with the batch
    models: dict[str, float]  # factors
    ram_bytes: int
    works_s: float
    episodes: int
    grows: bool  # until late in a run
    sweeps: tuple[str, ...]
    frees_seed: bool  # its author has declared the seed memory-irrelevant
    hint_factor: float | None  # the author's number over the truth
    stopped: bool = False


@dataclass(frozen=True)
class Choice:
    """What one submit of a cell chooses."""

    workers: int = 1
    seed: int | None = None
    batch: int | None = None
    model: str | None = None

    def parameters(self, cell: Cell) -> tuple[tuple[str, str], ...]:
        named = {"batch": self.batch, "model": self.model}
        if not cell.frees_seed:
            named["seed"] = self.seed
        return tuple(sorted((k, shown(k, str(v))) for k, v in named.items() if v is not None))


def along(table: tuple[tuple[float, float], ...], share: float) -> float:
    """Interpolate in a table of quantiles."""
    for (low, size), (high, larger) in itertools.pairwise(table):
        if share <= high:
            return size + (larger - size) * (share - low) / (high - low)
    return table[-1][1]


def needs_bytes(cell: Cell, choice: Choice) -> int:
    """The greatest bytes per device of a run without noise."""
    grows = cell.activations * (choice.batch or 16) / 16
    model = cell.models[choice.model] if choice.model else 1.0
    of_one = CONTEXT_BYTES + cell.size_bytes * model * (1 - cell.activations + grows)
    return int(choice.workers * of_one)


def hire(chance: random.Random, people: int, machine_gpus: int, scale: float) -> list[Cell]:
    """Return the cells of so many people; ``scale`` multiplies the published sizes."""
    cells = [
        _cell(chance, f"user{person}", f"eval{number}", machine_gpus, scale)
        for person in range(people)
        for number in range(chance.randint(2, 4))
    ]
    return [*cells, *(_service(chance, f"user{n}", scale) for n in range(1 + machine_gpus // 4))]


def _cell(chance: random.Random, owner: str, name: str, machine_gpus: int, scale: float) -> Cell:
    sweeps = tuple(chance.sample(SWEEPS, k=chance.randint(2, 4)))
    return Cell(
        owner=owner,
        name=name,
        gpus=2 if machine_gpus > 1 and chance.random() < 0.1 else 1,
        kind="program" if chance.random() < 0.2 else "cell",
        size_bytes=int(scale * along(SIZES_GB, chance.random()) * GB),
        activations=chance.uniform(0.2, 0.7),
        models={name: chance.uniform(0.4, 1.8) for name in MODELS},
        ram_bytes=int(chance.uniform(0.8, 4.0) * GB),
        works_s=TIME_SCALE * along(TIMES_S, chance.random()),
        episodes=chance.choice((1, 6, 12)),
        grows=chance.random() < 0.3,
        sweeps=sweeps,
        frees_seed=chance.random() < 0.3,
        hint_factor=3 ** chance.uniform(-1.1, 1.0) if chance.random() < 0.3 else None,
    )


def _service(chance: random.Random, owner: str, scale: float) -> Cell:
    return Cell(
        owner=owner,
        name="serve",
        gpus=1,
        kind="program",
        size_bytes=int(scale * chance.uniform(3.0, 8.0) * GB),
        activations=0.0,
        models=dict.fromkeys(MODELS, 1.0),
        ram_bytes=2 * GB,
        works_s=chance.uniform(1200.0, 2400.0),
        episodes=1,
        grows=False,
        sweeps=("",),
        frees_seed=False,
        hint_factor=None,
        stopped=True,
    )


def choices(chance: random.Random, cell: Cell) -> list[Choice]:
    """What one session of its author submits: one run, or a sweep."""
    usual = Choice(
        seed=0 if "seed" in cell.sweeps else None,
        batch=16 if "batch" in cell.sweeps else None,
        model=MODELS[0] if "model" in cell.sweeps else None,
    )
    sweep = chance.choice(cell.sweeps)
    fields: dict[str, list[int] | list[str]] = {
        "seed": list(range(chance.randint(3, 8))),
        "batch": list(BATCHES[: chance.randint(2, 4)]),
        "model": chance.sample(MODELS, k=chance.randint(2, 6)),
        "workers": [1, 2, 4][: chance.randint(2, 3)],
    }
    if not sweep:
        return [usual]
    return [Choice(**{**vars(usual), sweep: value}) for value in fields[sweep]]


def vram_over_time(cell: Cell, peak_bytes: int, works_s: float, chance: random.Random) -> Curve:
    """Return memory that ramps up, and with some cells grows until late in the run."""
    loads = min(works_s * 0.2, chance.uniform(4.0, 40.0))
    early = 0.7 if cell.grows else 0.9
    points = [(0.0, 0.0), (loads * 0.4, early * 0.4), (loads, early)]
    until = chance.uniform(0.5, 0.8) if cell.grows else chance.uniform(0.1, 0.25)
    rises = 4 if cell.grows else 2
    for rise in range(1, rises + 1):
        at = loads + (works_s * until - loads) * rise / rises
        points.append((max(at, loads + rise), early + (1 - early) * rise / rises))
    return steps((at, peak_bytes * share) for at, share in points)


def ram_over_time(peak_bytes: int, works_s: float) -> Curve:
    """Return RAM that is loaded in three steps."""
    loads = min(works_s * 0.2, 15.0)
    return steps(((0.0, peak_bytes // 4), (loads / 2, peak_bytes // 2), (loads, peak_bytes)))


def load_of(peak_bytes: int, scale: float) -> str:
    """A job's row in the table of slowdowns: larger jobs load a device more."""
    if peak_bytes < scale * LIGHT_BYTES:
        return "light"
    return "medium" if peak_bytes < scale * HEAVY_BYTES else "heavy"
