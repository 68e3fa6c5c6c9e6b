"""Memory and time on the simulated machine."""

from __future__ import annotations

import pytest

from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.gate.simulation.physics import Physics
from jupyter_gpugate.gate.simulation.replay import true_rooms
from jupyter_gpugate.gate.simulation.workload import Outsider, Start, steps
from tests.kit.workloads import job, world

ON = ("GPU-0",)


def advance_to(physics: Physics, at: float) -> list[tuple[str, str, float]]:
    """Let time pass up to ``at``; the ends on the way."""
    ended = []
    while physics.now < at:
        ended += physics.advance(min(at, physics.next_change()))
    return [(one.running.job.run_id, one.outcome.value, one.at) for one in ended]


def test_the_one_that_allocates_dies_on_a_full_device() -> None:
    """A run that grows where no memory is left ends; the run that held the memory goes on."""
    small, late = job("small", 0, 100, [(1, 14)]), job("late", 0, 100, [(1, 8), (20, 12)])
    physics = Physics(world(small, late))
    for one in (small, late):
        physics.start(one, Start(one.run_id, ON))
    assert advance_to(physics, 50) == [("late", "oom", 20.0)]
    assert physics.free("GPU-0") == 10 * GB
    assert advance_to(physics, 200) == [("small", "completed", 100.0)]


def test_an_enforced_cap_ends_a_run_that_exceeds_it() -> None:
    """Its own cap ends a run, and it is noted that the device had room."""
    one = job("one", 0, 100, [(1, 8), (20, 12)])
    physics = Physics(world(one))
    physics.start(one, Start("one", ON, cap_bytes=10 * GB))
    ended = physics.advance(1) + physics.advance(20)
    assert [(e.outcome, e.evidence, e.had_room) for e in ended] == [
        (AttemptOutcome.OOM, "own_cap", True)
    ]


def test_neighbours_slow_a_run_down_but_never_below_its_equal_share() -> None:
    """A run beside another takes longer, as the table says; beside many an equal share is left."""
    pairs = {("a", "b"): 0.5, ("b", "a"): 1.0, ("a", "a"): 0.1}
    first, second = (
        job("first", 0, 100, [(1, 1)], load="a"),
        job("second", 0, 50, [(1, 1)], load="b"),
    )
    physics = Physics(world(first, second, pairs=pairs))
    for one in (first, second):
        physics.start(one, Start(one.run_id, ON))
    assert advance_to(physics, 200) == [
        ("second", "completed", 50.0),
        ("first", "completed", 125.0),
    ]
    assert physics.world.speed("a", ["a", "a", "a"]) == pytest.approx(0.25)


def test_an_outsider_that_finds_a_device_full_is_counted() -> None:
    """A stranger takes memory that is free, and ends where a run has taken it."""
    curve = steps(((10, 4 * GB), (30, 0)))
    strangers = [Outsider("early", "GPU-0", curve), Outsider("late", "GPU-0", steps(((20, GB),)))]
    one = job("one", 0, 100, [(1, 8), (15, 20)])
    physics = Physics(world(one, outsiders=strangers))
    physics.start(one, Start("one", ON))
    assert advance_to(physics, 25) == []
    assert (physics.outsiders_ended, physics.free("GPU-0")) == (1, 0)


def test_true_room_is_what_is_left_beside_the_full_peaks_of_all_runs() -> None:
    """Room is counted beside the later peak of a run, not beside what it holds now."""
    one = job("one", 0, 100, [(1, 2), (50, 9)])
    physics = Physics(world(one, gpus=2))
    physics.start(one, Start("one", ON))
    physics.advance(1)
    rooms = true_rooms(physics)
    assert rooms["GPU-1"] - rooms["GPU-0"] == 9 * GB
