"""Real runs through the real gate, and the same runs replayed in the simulation.

The runs hold memory of stand-in GPUs and RAM, and note when.  Submits, lengths and memory of
the replay are as they were noted; the starts are the simulation's own.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import psutil

from jupyter_gpugate.core.requests import Family, Hints, Request, Setting
from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.gate.simulation.gated import Gated
from jupyter_gpugate.gate.simulation.replay import replay
from jupyter_gpugate.gate.simulation.workload import Job, World, steps
from tests.fake_nvml import HOLDER, StandIn
from tests.kit.real_server import Places, Served, end_everything_of
from tests.scorecard.figures import figures_of

RUNS, GPUS, DEVICE_BYTES = 30, 2, 24 * GB
#: Each of these evaluations is run several times.
EVALS: Final = 10
#: An interpreter with nothing in it.
PROCESS_BYTES: Final = 20 * MB
#: The real gate reads at once when a run has ended.
GRAIN_S: Final = 0.125
PAUSE_S: Final = 0.5
SOURCE: Final = """
import json, runpy, time
hold_gpu = runpy.run_path({holder!r})["hold_gpu"]
ram = bytearray({ram_bytes})
noted = []
for size, seconds in {held!r}:
    hold_gpu(0, size)
    noted.append((time.clock_gettime(time.CLOCK_BOOTTIME), size))
    time.sleep(seconds)
with open({notes!r}, "w") as file:
    json.dump(noted, file)
"""


@dataclass(frozen=True)
class Plan:
    """A run to be: the bytes that it holds, each for some seconds."""

    name: str
    held: tuple[tuple[int, float], ...]
    ram_bytes: int
    hint_bytes: int | None


@dataclass(frozen=True)
class Noted:
    """A run as it was, in seconds of the gate's clock."""

    plan: Plan
    run_id: str
    requested_at: float
    granted_at: float
    finished_at: float
    held: tuple[tuple[float, int], ...]


def plans(seed: int = 0) -> list[Plan]:
    """Return the runs in the order of their submits: all evaluations once, then once more."""
    chance = random.Random(seed)
    evals = [_plan(chance, f"eval{number}") for number in range(EVALS)]
    return [evals[number % EVALS] for number in range(RUNS)]


def _plan(chance: random.Random, name: str) -> Plan:
    peak = int(chance.uniform(2.0, 9.0) * GB)
    length = chance.uniform(12.0, 20.0)
    held = ((peak // 2, 0.2 * length), (peak, 0.8 * length))
    hint = int(1.1 * peak) if chance.random() < 0.5 else None
    return Plan(name, held, int(chance.uniform(40, 120)) * MB, hint)


def compare_with_reality() -> dict[str, Any]:
    """Run the plans for real, then in the simulation; JSON data with both makespans."""
    ram = psutil.virtual_memory()
    noted = run_for_real(plans())
    real_s = max(one.finished_at for one in noted) - min(one.requested_at for one in noted)
    story = replay(world_of(noted, ram.total, ram.total - ram.available), Gated())
    # The first submit is one second after the beginning of the world.
    simulated_s = story.ended_at - 1
    return {
        "runs": len(noted),
        "gpus": GPUS,
        "real_s": round(real_s, 1),
        "simulated_s": round(simulated_s, 1),
        "off": simulated_s / real_s - 1,
        "real_wait_s": round(fmean(one.granted_at - one.requested_at for one in noted), 1),
        "simulated_wait_s": round(figures_of(story).wait_mean_s, 1),
    }


def run_for_real(some: list[Plan]) -> list[Noted]:
    """Submit the plans to a server of their own, and wait for the last end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        stand_in = StandIn(Path(scratch, "driver"))
        for _ in range(GPUS):
            stand_in.gpu(DEVICE_BYTES)
        places = Places(Path(scratch), stand_in)
        server = Served(places)
        try:
            submitted = []
            for number, plan in enumerate(some):
                submitted.append((plan, _submit(server, plan, Path(scratch, f"notes-{number}"))))
                time.sleep(PAUSE_S)
            return [
                _noted(server, plan, run_id, Path(scratch, f"notes-{number}"))
                for number, (plan, run_id) in enumerate(submitted)
            ]
        finally:
            server.stop()
            end_everything_of(places)
            shutil.rmtree(places.runtime, ignore_errors=True)


def _submit(server: Served, plan: Plan, notes: Path) -> str:
    source = SOURCE.format(
        holder=str(HOLDER), ram_bytes=plan.ram_bytes, held=plan.held, notes="NOTES"
    )
    # Where it writes is a parameter: the source of equal evaluations is equal.
    source = source.replace("'NOTES'", 'params["notes"]')
    hints = {"vram_bytes": plan.hint_bytes} if plan.hint_bytes else {}
    return server.submit(
        plan.name,
        source,
        parameters={"notes": str(notes)},
        memory_irrelevant=["notes"],
        hints=hints,
        gpus=1,
    )


def _noted(server: Served, plan: Plan, run_id: str, notes: Path) -> Noted:
    row = server.ended(run_id)
    if row["end"] != "completed":
        raise RuntimeError(f"{run_id} ended as {row['end']}: {server.output(run_id)}")
    story = server.ask("GET", f"/runs/{run_id}/story").json["story"]
    at = {event["event"]: float(event["at"]) for event in story}
    held = json.loads(notes.read_text(encoding="utf-8"))
    return Noted(
        plan,
        run_id,
        at["requested"],
        at["granted"],
        at["finished"],
        tuple((float(when), int(size)) for when, size in held),
    )


def world_of(noted: list[Noted], ram_bytes: int, used_bytes: int) -> World:
    """Return the world of real runs: only when each starts is left open.

    ``used_bytes`` of the RAM were in use before they began.
    """
    begun = min(one.requested_at for one in noted) - 1
    devices = tuple(Device(f"GPU-{n}", "stand-in", DEVICE_BYTES, n) for n in range(GPUS))
    jobs = tuple(_job(one, begun) for one in noted)
    return World(devices, ram_bytes, jobs, background_ram_bytes=used_bytes, grain_s=GRAIN_S)


def _job(noted: Noted, begun: float) -> Job:
    plan = noted.plan
    held = [(0.0, 0.0), *((when - noted.granted_at, size) for when, size in noted.held)]
    return Job(
        request=Request(
            noted.run_id,
            Family("root", plan.name, "v0", gpus=1),
            Setting(workers=1),
            hints=Hints(vram_bytes=plan.hint_bytes),
        ),
        arrives_s=noted.requested_at - begun,
        works_s=noted.finished_at - noted.granted_at,
        vram=steps(held),
        ram=steps(((0.0, PROCESS_BYTES), (2.0, PROCESS_BYTES + plan.ram_bytes))),
    )
