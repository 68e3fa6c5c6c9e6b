"""What the journal removes, by age and by size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.gate import failpoints
from jupyter_gpugate.gate.journal.journal import JournalError
from tests.kit.journal_events import (
    BOOT,
    GPU,
    Clocks,
    completed,
    device,
    finished,
    granted,
    opened,
    released,
    requested,
    sedimented,
    started,
)
from tests.kit.journal_files import DAY, rows_in, states_of


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a journal that is not there yet."""
    return tmp_path / "state" / "gate.sqlite"


# -- retention ----------------------------------------------------------------------------------


def test_old_stories_of_ended_runs_go(path: Path) -> None:
    """By age, whole runs go; unfinished ones stay, however old, and so does the calibration."""
    clocks = Clocks()
    journal = opened(path, clocks)
    journal.append([requested("queued"), *completed("old", 1), sedimented()], durable=True)
    live: list[ev.Event] = [requested("live"), granted("live", 2), started("live", 2)]
    journal.append(live, durable=True)
    clocks.advance(10 * DAY)
    journal.append(completed("young", 3), durable=True)

    journal.prune(5 * DAY, 1000)

    assert journal.story("old") == []
    assert [event for _, event in journal.story("queued")] == [requested("queued")]
    assert [event for _, event in journal.story("live")] == live
    assert [event for _, event in journal.story("young")] == completed("young", 3)
    assert len(journal.observations()) == 1


def test_beyond_the_size_the_oldest_ended_runs_go(path: Path) -> None:
    """By size, those that ended first go first, and unfinished runs count but stay."""
    journal = opened(path)
    journal.append([requested("queued")], durable=True)
    for fence in range(1, 6):
        journal.append(completed(f"run-{fence}", fence), durable=True)

    journal.prune(DAY, 1 + 2 * len(completed("run", 1)))

    left = [f"run-{fence}" for fence in range(1, 6) if journal.story(f"run-{fence}")]
    assert left == ["run-4", "run-5"]
    assert journal.story("queued") != []


def test_a_run_whose_memory_lingers_is_unfinished(path: Path) -> None:
    """Until its memory was seen free, an ended run is still folded."""
    clocks = Clocks()
    journal = opened(path, clocks)
    events: list[ev.Event] = [
        requested("run-a"),
        granted("run-a", 1),
        started("run-a", 1),
        finished("run-a", 1),
    ]
    journal.append(events, durable=True)
    journal.append(completed("run-b", 2), durable=True)
    clocks.advance(10 * DAY)
    journal.prune(5 * DAY, 1)
    assert [event for _, event in journal.story("run-a")] == events

    journal.append(released("run-a"), durable=False)
    clocks.advance(10 * DAY)
    journal.prune(5 * DAY, 1)

    assert journal.story("run-a") == []


def test_a_run_lost_by_a_reboot_is_an_ended_run(path: Path) -> None:
    """A lease of another boot does not stay in the journal for ever."""
    clocks = Clocks()
    journal = opened(path, clocks)
    journal.append(
        [requested("run-a"), granted("run-a", 1), started("run-a", 1, boot_id="before")],
        durable=True,
    )
    journal.append([ev.Restarted(50.0, BOOT), *completed("run-b", 2, 60.0)], durable=True)
    clocks.advance(10 * DAY)

    journal.prune(5 * DAY, 1000)

    assert journal.story("run-a") == []


def test_fences_grow_on_after_everything_was_pruned(path: Path) -> None:
    """The last granted run stays, since a fence must never be given twice."""
    clocks = Clocks()
    journal = opened(path, clocks)
    for fence in (1, 2, 3):
        journal.append(completed(f"run-{fence}", fence), durable=True)
    clocks.advance(100 * DAY)

    journal.prune(DAY, 0)
    journal.prune(DAY, 0)

    assert states_of(journal.replay()).fence == 3
    assert journal.story("run-2") == []


def test_a_start_does_not_fold_what_is_long_over(path: Path) -> None:
    """A day after its end a run's story is kept for people, not for the gate."""
    clocks = Clocks()
    journal = opened(path, clocks)
    journal.append([*completed("old", 1), *completed("last", 2)], durable=True)
    journal.prune(30 * DAY, 1000)
    assert len(journal.replay()) == 2 * len(completed("old", 1))
    clocks.advance(2 * DAY)

    journal.prune(30 * DAY, 1000)

    assert journal.replay() == completed("last", 2)
    assert [event for _, event in journal.story("old")] == completed("old", 1)


def test_restarts_and_audit_are_pruned_by_age(path: Path) -> None:
    """What is about no run goes too, once no open run's story begins before it."""
    clocks = Clocks()
    journal = opened(path, clocks)
    facts: list[ev.Event] = [ev.DeviceSeen(1.0, device()), ev.Locked(2.0, GPU, "ada", 9.0)]
    journal.append([ev.Restarted(1.0, BOOT), *facts, requested("run-a")], durable=True)
    journal.append([ev.Restarted(2.0, BOOT)], durable=True)
    clocks.advance(10 * DAY)

    journal.prune(5 * DAY, 1000)

    assert rows_in(path) == 2
    assert journal.replay() == [*facts, requested("run-a"), ev.Restarted(2.0, BOOT)]
    assert journal.audit() == []


def test_beyond_the_size_the_oldest_of_the_rest_go(path: Path) -> None:
    """A gate that is restarted over and over does not fill its journal with that."""
    journal = opened(path)
    for number in range(10):
        journal.append([ev.Restarted(float(number), BOOT)], durable=True)

    journal.prune(DAY, 3)

    assert journal.replay() == [ev.Restarted(float(number), BOOT) for number in (7, 8, 9)]


def test_pruning_that_fails_removes_nothing(path: Path) -> None:
    """Retention is one transaction as well."""
    journal = opened(path)
    journal.append([*completed("old", 1), *completed("last", 2)], durable=True)
    failpoints.arm("store.commit.before:raise")

    with pytest.raises(JournalError):
        journal.prune(0.0, 0)

    assert journal.replay() == [*completed("old", 1), *completed("last", 2)]
