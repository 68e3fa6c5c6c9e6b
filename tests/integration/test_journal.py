"""What the journal on a real disk keeps."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.reports import AttemptOutcome, RunEnd
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.gate.journal.journal import Journal
from jupyter_gpugate.gate.journal.rows import Audited
from tests.kit.journal_events import (
    GPU,
    Clocks,
    completed,
    device,
    finished,
    granted,
    opened,
    requested,
    sedimented,
    started,
)
from tests.kit.journal_files import rows_in, states_of

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a journal that is not there yet."""
    return tmp_path / "state" / "gate.sqlite"


# -- what it keeps ------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_what_was_appended_is_there_after_a_restart(path: Path, durable: bool) -> None:
    """Events come back equal and in order."""
    later: list[ev.Event] = [ev.Measured(41.0, "run-a", 1, {GPU: 5}), ev.Ready(42.0, "run-a", 1)]
    events = [*completed("run-a", 1), requested("run-b"), *later]
    journal = opened(path)
    journal.append(events[:3], durable=durable)
    journal.append(events[3:], durable=durable)
    journal.close()

    assert opened(path).replay() == events


def test_beats_and_presences_are_not_written_down(path: Path) -> None:
    """What comes every two seconds is no event of the journal."""
    journal = opened(path)

    journal.append(
        [ev.Beat(1.0, "run-a", 1, (ProcessKey(1, 2),)), ev.Present(1.0, "side")], durable=True
    )

    assert rows_in(path) == 0


def test_only_the_user_reads_the_journal(path: Path) -> None:
    """Directory, file and log are the owner's alone, whatever the umask."""
    journal = opened(path)
    journal.append([requested("run-a")], durable=True)

    parts = [path, Path(f"{path}-wal"), Path(f"{path}-shm")]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [stat.S_IMODE(part.stat().st_mode) for part in parts] == [0o600] * 3


def test_a_durable_append_waits_for_the_disk(path: Path) -> None:
    """SQLite syncs its log for what is durable, and leaves the rest to the next sync."""
    journal = opened(path)
    syncs = []
    for durable in (True, False, True):
        journal.append([requested("run-a")], durable=durable)
        syncs.append(journal._opened()._pragma("synchronous"))

    assert syncs == [2, 1, 2]


def test_a_runs_story_can_be_read_back(path: Path) -> None:
    """All that happened to a run, verdicts and observations too, each with its wall time."""
    clocks = Clocks(wall=100.0)
    journal = opened(path, clocks)
    journal.append([requested("run-a"), requested("run-b")], durable=True)
    clocks.advance(5.0)
    waits = ev.VerdictChanged(15.0, "run-a", "fit")
    journal.append([waits, sedimented(run_id="run-a")], durable=False)

    assert journal.story("run-a") == [
        (100.0, requested("run-a")),
        (105.0, waits),
        (105.0, sedimented(run_id="run-a")),
    ]
    assert journal.story("run-c") == []


def test_verdicts_are_no_part_of_what_a_start_folds(path: Path) -> None:
    """A run kept waiting for days does not make the next start slower."""
    journal = opened(path)
    journal.append([requested("run-a"), ev.VerdictChanged(11.0, "run-a", "fit")], durable=True)

    assert journal.replay() == [requested("run-a")]


def test_the_calibration_has_a_table_of_its_own(path: Path) -> None:
    """Observations come back in order, and not a second time among the events."""
    journal = opened(path)
    journal.append([sedimented(1 * GB), sedimented(2 * GB)], durable=False)

    assert [o.peak_bytes for o in journal.observations()] == [1 * GB, 2 * GB]
    assert journal.replay() == []


def test_what_the_owner_forgets_is_gone(path: Path) -> None:
    """Forgetting takes one owner's one name, and what is learned later stays."""
    journal = opened(path)
    mine, other_name = sedimented(), sedimented(name="bert-val")
    other_owner = sedimented(owner="bob")
    journal.append([mine, other_name, other_owner], durable=False)
    later = sedimented(7 * MB)

    forget = ev.CalibrationForgotten(60.0, "ada", "resnet-val")
    journal.append([forget, later], durable=True)

    left = [other_name, other_owner, later]
    assert journal.observations() == [event.observation for event in left]


def test_standing_facts_are_folded_first_and_once(path: Path) -> None:
    """Devices, locks and the drain come back as they stood last, before anything else."""
    lock = ev.Locked(12.0, GPU, "ada", 7000.0, ProcessKey(5, 6))
    clocks = Clocks()
    journal = opened(path, clocks)
    journal.append([requested("run-a"), ev.DeviceSeen(11.0, device(index=0))], durable=True)
    journal.append([ev.DeviceSeen(11.5, device("GPU-bbbb")), lock], durable=True)
    clocks.advance(2.0)
    journal.append([ev.DeviceSeen(13.0, device(index=1))], durable=True)
    journal.append([ev.DrainChanged(14.0, True, "new driver")], durable=True)

    assert journal.replay() == [
        ev.DeviceSeen(11.5, device("GPU-bbbb")),
        lock,
        ev.DeviceSeen(13.0, device(index=1)),
        ev.DrainChanged(14.0, True, "new driver"),
        requested("run-a"),
    ]


def test_facts_that_ended_are_gone(path: Path) -> None:
    """A device that was forgotten, a lock given back and a drain that is over do not come back."""
    journal = opened(path)
    begun: list[ev.Event] = [
        ev.DeviceSeen(11.0, device()),
        ev.Locked(12.0, GPU, "ada", 7000.0),
        ev.DrainChanged(14.0, True),
    ]
    journal.append(begun, durable=True)

    journal.append(
        [ev.DeviceForgotten(15.0, GPU), ev.Unlocked(15.0, GPU), ev.DrainChanged(15.0, False)],
        durable=True,
    )

    assert journal.replay() == []


def test_a_fact_that_begins_and_ends_in_one_transaction_is_gone(path: Path) -> None:
    """The last word of a transaction is what stands."""
    journal = opened(path)

    journal.append([ev.Locked(12.0, GPU, "ada", 70.0), ev.Unlocked(13.0, GPU)], durable=True)

    assert journal.replay() == []


def test_those_who_took_something_are_written_down(path: Path) -> None:
    """Locks, drains, cancels and what was forgotten stay readable with who, what and why."""
    journal = opened(path, Clocks(wall=5.0))
    events: list[ev.Event] = [
        ev.Locked(1.0, GPU, "ada", 70.0),
        ev.Unlocked(2.0, GPU),
        ev.DrainChanged(3.0, True, "new driver"),
        ev.DrainChanged(4.0, False),
        ev.Withdrawn(5.0, "run-a", RunEnd.CANCELLED, "by its owner"),
        ev.Withdrawn(5.0, "run-b", RunEnd.EXPIRED, "max_wait"),
        finished("run-c", 1, outcome=AttemptOutcome.CANCELLED),
        finished("run-d", 2, outcome=AttemptOutcome.FAILED),
        ev.CalibrationForgotten(6.0, "ada", "resnet-val"),
        ev.DeviceForgotten(7.0, GPU),
    ]

    journal.append(events, durable=True)

    assert journal.audit() == [
        Audited(5.0, "locked", GPU, "ada", ""),
        Audited(5.0, "unlocked", GPU, "", ""),
        Audited(5.0, "drained", "machine", "", "new driver"),
        Audited(5.0, "undrained", "machine", "", ""),
        Audited(5.0, "cancelled", "run-a", "", "by its owner"),
        Audited(5.0, "cancelled", "run-c", "", ""),
        Audited(5.0, "calibration_forgotten", "resnet-val", "ada", ""),
        Audited(5.0, "device_forgotten", GPU, "", ""),
    ]


def test_a_reboot_puts_the_queue_on_the_new_boots_clock(path: Path) -> None:
    """A run requested an hour ago has waited an hour, although the machine has just booted."""
    clocks = Clocks(now=90_000.0, wall=1_000_000.0)
    journal = opened(path, clocks)
    journal.append([requested("run-a", at=90_000.0)], durable=True)
    journal.close()

    booted = Clocks(now=60.0, wall=1_003_600.0)
    journal = opened(path, booted, boot_id="another-boot")

    assert journal.replay() == [requested("run-a", at=60.0 - 3600.0)]


def test_two_journals_of_one_file_do_not_harm_each_other(path: Path) -> None:
    """Two gates that both believe to be the one leave a whole journal with both their events."""
    first, second = opened(path), opened(path)
    for number in range(5):
        first.append([requested(f"first-{number}")], durable=False)
        second.append([requested(f"second-{number}")], durable=True)

    names = [f"{who}-{number}" for number in range(5) for who in ("first", "second")]
    assert first.replay() == second.replay() == [requested(name) for name in names]


# -- files of released versions -----------------------------------------------------------------

#: What tests/data/journal-v1.sqlite was filled with; the file itself never changes.
FROZEN_BOOT = "5a0c2b4e-7d1f-4c3a-9b8e-0123456789ab"


FROZEN_FACTS: list[ev.Event] = [
    ev.DeviceSeen(5.0, device()),
    ev.Locked(6.0, GPU, "ada", 7206.0, ProcessKey(41, 42)),
]


FROZEN_EVENTS: list[ev.Event] = [
    ev.Restarted(4.0, FROZEN_BOOT, {"version": "0.1.0"}),
    *completed("20260101-120000-abcde", 1),
    ev.Recharged(33.0, "20260101-120000-abcde", 1, {GPU: GB}, "settled"),
    requested("20260101-120001-fghij", at=50.0),
    granted("20260101-120001-fghij", 2, at=51.0),
    ev.Declined(52.0, "20260101-120001-fghij", 2, "busy"),
    granted("20260101-120001-fghij", 3, at=53.0),
    started("20260101-120001-fghij", 3, at=54.0, boot_id=FROZEN_BOOT),
    ev.Measured(55.0, "20260101-120001-fghij", 3, {RAM: GB, GPU: 2 * GB}),
    requested("20260101-120002-klmno", at=60.0),
    ev.Withdrawn(61.0, "20260101-120002-klmno", RunEnd.CANCELLED, "by its owner"),
    requested("20260101-120003-pqrst", at=62.0),
]


FROZEN_OBSERVATIONS = [sedimented(GB), sedimented(2 * GB)]


def test_the_first_versions_journal_loads(tmp_path: Path) -> None:
    """A journal that version 1 wrote gives back every event, fact and observation, for ever."""
    path = tmp_path / "gate.sqlite"
    shutil.copy(DATA / "journal-v1.sqlite", path)

    journal = Journal.open(path, boot_id=FROZEN_BOOT)

    assert journal.notice is None
    assert journal.replay() == [*FROZEN_FACTS, *FROZEN_EVENTS]
    assert journal.observations() == [event.observation for event in FROZEN_OBSERVATIONS]
    state = states_of(journal.replay())
    assert list(state.queue) == ["20260101-120003-pqrst"]
    assert [lease.terms.fence for lease in state.leases.values()] == [3]
