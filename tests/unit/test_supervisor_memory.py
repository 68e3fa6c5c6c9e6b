"""Memory of a process tree: readings, what goes unseen, and the peak."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpugate.programs.supervisor import memory
from jupyter_gpugate.programs.supervisor import meter as meter_module
from jupyter_gpugate.programs.supervisor.memory import Reading, glance, read_memory
from jupyter_gpugate.programs.supervisor.meter import SHARE, RamMeter

MB = 1 << 20


def reading(held: int, resident: int) -> Reading:
    """Make an exact reading from MB."""
    return Reading(held * MB, 0, resident * MB, exact=True)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, Reading]], None]:
    """Let every reading show these processes."""

    def set_processes(processes: dict[int, Reading]) -> None:
        monkeypatch.setattr(meter_module, "read_memory", processes.get)

    return set_processes


Show = Callable[[dict[int, Reading]], None]


def test_the_peak_is_the_greatest_sum_not_the_sum_of_the_greatest(show: Show) -> None:
    """Two processes that are large one after the other were never large together."""
    meter = RamMeter()
    show({1: reading(500, 510), 2: reading(10, 20)})
    meter.read([1, 2], 0.0)
    show({1: reading(10, 20), 2: reading(400, 410)})
    meter.read([1, 2], 5.0)
    assert meter.held == 410 * MB
    assert meter.peak == 510 * MB


def test_what_a_process_held_unseen_is_added_to_what_was_seen(show: Show) -> None:
    """The mark of an ended process counts beyond its own resident size, mapped files left out."""
    meter = RamMeter()
    show({1: reading(100, 150)})
    meter.read([1], 0.0)
    meter.ended(1, 250 * MB, had_children=False)
    assert meter.peak == 200 * MB


def test_workers_that_end_together_were_held_together(show: Show) -> None:
    """Marks of processes that end between two readings add up; a later process starts anew."""
    meter = RamMeter()
    show({1: reading(5, 10), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    meter.ended(1, 210 * MB, had_children=False)
    meter.ended(2, 310 * MB, had_children=False)
    assert meter.peak == 510 * MB
    show({3: reading(300, 310)})
    meter.read([3], 5.0)
    meter.ended(3, 330 * MB, had_children=False)
    assert meter.peak == 510 * MB


def test_what_a_worker_held_was_held_beside_what_the_others_hold_when_it_ends(show: Show) -> None:
    """A worker's end calls for a reading of the others: the last one may be long out of date."""
    meter = RamMeter()
    show({1: reading(5, 10), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    show({2: reading(300, 305)})
    meter.ended(1, 310 * MB, had_children=False, beside=[2])
    assert meter.peak == 605 * MB
    show({2: reading(400, 405)})
    meter.read([2], 1.0)
    assert meter.peak == 605 * MB


def test_a_worker_that_was_read_whole_was_held_beside_those_that_grew_since(show: Show) -> None:
    """Its end calls for a reading of the others too, and it is not forgotten before theirs."""
    meter = RamMeter()
    show({1: reading(300, 310), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    show({})
    meter.ended(1, 310 * MB, had_children=False, beside=[2])
    meter.read([2], 1.0)
    meter.ended(2, 210 * MB, had_children=False)
    assert meter.peak == 505 * MB


def test_a_reading_while_a_worker_dies_forgets_none_that_died_with_it(show: Show) -> None:
    """A process that is past reading and not yet dead held its memory with those before it."""
    meter = RamMeter()
    show({1: reading(5, 10), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    show({})
    meter.ended(1, 310 * MB, had_children=False, beside=[2])
    meter.read([2], 1.0)
    meter.ended(2, 210 * MB, had_children=False)
    assert meter.peak == 510 * MB


def test_the_mark_of_a_child_is_not_counted_for_its_parent_again(show: Show) -> None:
    """A shell whose large child was read does not count as large itself."""
    meter = RamMeter()
    show({1: reading(1, 3), 2: reading(800, 810)})
    meter.read([1, 2], 0.0)
    meter.ended(1, 810 * MB, had_children=True)
    assert meter.peak == 801 * MB


def test_a_process_that_was_never_read_counts_by_its_mark(show: Show) -> None:
    """A run that is over before its first reading has its mark for a peak."""
    meter = RamMeter()
    show({})
    meter.ended(1, 64 * MB, had_children=False)
    assert meter.peak == 64 * MB


def test_a_reading_of_this_process_tells_files_from_memory() -> None:
    """Pages of a mapped file are shown as mapped; touched memory is held."""
    before = read_memory(os.getpid())
    assert before is not None
    assert before.exact
    ballast = bytearray(40 * MB)
    ballast[::4096] = b"x" * len(ballast[::4096])
    after = read_memory(os.getpid())
    assert after is not None
    assert after.held - before.held == pytest.approx(40 * MB, rel=0.1)
    assert abs(after.mapped - before.mapped) < 5 * MB


def test_without_a_rollup_resident_less_shared_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel shows no rollup the meter falls back, and the peak says so."""
    real = open

    def without_rollup(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path).endswith("smaps_rollup"):
            raise PermissionError(path)
        return real(path, *rest, **more)

    monkeypatch.setattr("builtins.open", without_rollup)
    meter = RamMeter()
    meter.read([os.getpid()], 0.0)
    assert not meter.exact
    assert meter.held == pytest.approx(glance([os.getpid()])[1], rel=0.1)


def test_readings_never_cost_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that takes a second is not repeated within the fifty that it may cost."""
    times = iter([100.0, 100.0, 101.0])
    monkeypatch.setattr(meter_module, "awake_time", lambda: next(times))
    monkeypatch.setattr(meter_module, "read_memory", lambda _: reading(1, 2))
    meter = RamMeter()
    meter.read([1], 100.0)
    meter.want()
    assert meter.due_at == 100.0 + 1.0 / SHARE


def test_a_reading_that_takes_too_long_goes_on_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    """When exact readings stall, the rest of the tree is read by what is cheap, and it shows."""
    clock = [0.0]

    def stall(_: int) -> Reading:
        clock[0] += 0.7
        return reading(10, 20)

    monkeypatch.setattr(meter_module, "awake_time", lambda: clock[0])
    monkeypatch.setattr(meter_module, "read_memory", stall)
    monkeypatch.setattr(memory, "glance", lambda pids: (5 * MB * len(pids), 3 * MB * len(pids)))
    meter = RamMeter()
    meter.read(list(range(10)), 0.0)
    assert meter.held == (2 * 10 + 8 * 3) * MB
    assert not meter.exact
