"""The scorecard's policies and worlds, on tiny worlds."""

from __future__ import annotations

import statistics

import pytest

from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.simulation.gated import Gated
from jupyter_gpugate.gate.simulation.replay import FLOOR_BYTES, replay
from tests.kit.workloads import (
    DEVICE_GB,
    greedy_makespan_s,
    in_slots,
    job,
    random_slots,
    shortest_makespan_s,
    world,
)
from tests.scorecard.figures import figures_of
from tests.scorecard.ledger import by_estimator, declared, exclusive
from tests.scorecard.oracle import Oracle
from tests.scorecard.worlds import MACHINES, Machine, days

TINY = Machine("tiny", 2, 24 * GB, 64 * GB, people=2, jobs=12, scale=1.0)
#: Limits that pass within a short world, and between two multiples of ten seconds.
HASTY = Traits(head_after_s=47, watch_wait_s=33, watch_slot_s=71, settle_s=13, linger_s=12)


@pytest.mark.parametrize("seed", [1, 5])
def test_ticks_may_be_left_out_while_nothing_changes(seed: int) -> None:
    """With pauses of up to ten seconds the gate grants the same, at the same seconds, as with a
    tick a second, and every integral is the same.
    """
    (small,) = days(TINY, seed, 1)
    paused, patient = Gated(traits=HASTY), Gated(traits=HASTY, pause_s=1)
    story, of_every_second = replay(small, paused), replay(small, patient)
    assert paused.grants == patient.grants
    assert paused.calibration == patient.calibration
    assert figures_of(story) == figures_of(of_every_second)
    assert story.ticks < of_every_second.ticks / 2


def test_the_cap_of_a_first_run_falls_where_a_neighbour_is_admitted() -> None:
    """A first run that grows ends at the cap that its neighbour has left; alone it completes."""
    first = job("first", 1, 100, [(1, 4), (30, 18)])
    neighbour = job("neighbour", 5, 100, [(1, 1)], hint_gb=6)
    alone = replay(world(first), Gated())
    assert [attempt.outcome for attempt in alone.attempts] == [AttemptOutcome.COMPLETED]
    beside = replay(world(first, neighbour), Gated())
    ended = next(beside.of("first"))
    assert (ended.ended_at, ended.evidence, ended.had_room) == (31, "own_cap", True)


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_starts_each_job_as_early_as_brute_force_finds(seed: int) -> None:
    """Six jobs whose memory rises: as soon as each fits, slot by slot, beside those that started,
    and never better than the best of all 720 orders.
    """
    slots = random_slots(seed)
    usable_gb = DEVICE_GB - FLOOR_BYTES / GB
    story = replay(in_slots(slots), Oracle())
    assert {attempt.outcome for attempt in story.attempts} == {AttemptOutcome.COMPLETED}
    assert story.ended_at == greedy_makespan_s(slots, usable_gb)
    assert story.ended_at >= shortest_makespan_s(slots, usable_gb)


def test_the_oracle_packs_what_never_peaks_together() -> None:
    """A job starts beside another one if its peak comes when the other one has ended."""
    one, two = job("one", 1, 100, [(1, 20)]), job("two", 50, 100, [(1, 3), (60, 20)])
    story = replay(world(one, two), Oracle())
    assert [attempt.granted_at for attempt in story.attempts] == [1, 50]
    assert figures_of(story).lost == 0


def test_ledgers_admit_by_what_is_declared() -> None:
    """Two jobs of 10 GB: together by their true needs, one after the other where twice that is
    declared or devices are exclusive; where nothing is declared a third one runs out of memory.
    """
    jobs = [job(f"job-{n}", 1, 100, [(1, 10)]) for n in range(3)]
    waits = {
        name: figures_of(replay(world(*jobs[:2]), policy)).wait_mean_s
        for name, policy in (("x1", declared(1)), ("x2", declared(2)), ("alone", exclusive()))
    }
    assert waits == {"x1": 0, "x2": 50, "alone": 50}
    nothing = figures_of(replay(world(*jobs), declared(0)))
    assert (nothing.lost, nothing.device_full, nothing.wait_mean_s) == (1, 1, 0)


def test_an_estimator_without_a_number_gets_a_whole_device() -> None:
    """A job is charged what its estimator says, within the device; unknown ones run alone."""
    low = job("low", 1, 10, [(1, 10)], estimates={"low": 2 * GB})
    unknown = job("unknown", 1, 10, [(1, 10)])
    story = replay(world(low, unknown), by_estimator("low"))
    assert [attempt.charge_bytes // GB for attempt in story.attempts] == [2, 24]


def test_the_figures_count_what_is_charged_and_not_used() -> None:
    """One job of 10 GB for 100 s under twice its need, and one that waits although it fits."""
    one, two = job("one", 1, 100, [(1, 10)]), job("two", 1, 100, [(1, 10)])
    figures = figures_of(replay(world(one, two), declared(2)))
    # The first second of each belongs to the start: nothing is held yet.
    assert figures.wasted_gb_h == pytest.approx(2 * (99 * 10 + 20) / 3600)
    assert figures.held_back_share == 1
    assert figures.wait_mean_s == 50
    assert figures.makespan_s == 200


def test_a_generated_world_is_the_same_again_and_has_all_sorts_of_runs() -> None:
    """The same seed makes the same world; there are sweeps of each kind, edits, hints, services,
    programs and cells, notebooks and strangers.
    """
    worlds = [day for seed in range(4) for day in days(TINY, seed)]
    assert worlds[:2] == days(TINY, 0)
    requests = [one.request for day in worlds for one in day.jobs]
    assert {"seed", "batch", "model"} <= {n for r in requests for n, _ in r.setting.parameters}
    assert {request.setting.workers for request in requests} >= {1, 2}
    assert any(request.family.source_hash != "v0" for request in requests)
    assert any(request.hints.vram_bytes for request in requests)
    assert {request.kind for request in requests} == {"cell", "program"}
    assert any(one.stopped for day in worlds for one in day.jobs)
    assert {o.is_notebook for day in worlds for o in day.outsiders} == {True, False}
    peaks = [one.vram.peak for day in worlds for one in day.jobs]
    assert statistics.median(peaks) < statistics.fmean(peaks)


def test_some_edits_change_the_memory_and_most_do_not() -> None:
    """Runs that differ in nothing but their source mostly agree within the noise, some do not."""
    peaks: dict[object, list[int]] = {}
    for one in (one for day in days(MACHINES[1], 0) for one in day.jobs):
        family = one.request.family
        peaks.setdefault((family.owner, family.name, one.request.setting), []).append(one.vram.peak)
    ratios = [max(some) / min(some) for some in peaks.values() if len(some) > 1]
    assert statistics.median(ratios) < 1.1
    assert max(ratios) > 1.2
