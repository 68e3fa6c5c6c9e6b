"""The journal on a real disk: what it keeps, what it refuses, what it lets go of."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.reports import AttemptOutcome, RunEnd
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate import failpoints, loop
from jupyter_gpugate.gate.journal import local_disk
from jupyter_gpugate.gate.journal.journal import Journal, JournalError, state_directory
from jupyter_gpugate.gate.journal.rows import Audited
from jupyter_gpugate.gate.sampling import Sampler
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

DATA = Path(__file__).resolve().parents[1] / "data"
DAY = 86_400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a journal that is not there yet."""
    return tmp_path / "state" / "gate.sqlite"


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def states_of(events: list[ev.Event]) -> GateState:
    """Fold events as a starting gate does."""
    return apply(GateState(), events)


def rows_in(path: Path) -> int:
    """Count the events in a file, without the journal's own code."""
    with closing(sqlite3.connect(path)) as connection:
        count: int = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    return count


# -- what it keeps ------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_what_was_appended_is_there_after_a_restart(path: Path, durable: bool) -> None:
    """Events come back equal and in order."""
    events = [*completed("run-a", 1), requested("run-b"), ev.Measured(41.0, "run-a", 1, {GPU: 5})]
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


# -- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["raise", "enospc"])
@pytest.mark.parametrize("place", ["begin.after", "write.before", "write.after", "commit.before"])
def test_a_failing_disk_leaves_nothing_half_written(path: Path, place: str, action: str) -> None:
    """An append that raises has written nothing, and the next one works again."""
    journal = opened(path)
    journal.append([requested("run-a")], durable=True)
    batch: list[ev.Event] = [requested("run-b"), sedimented(), ev.DrainChanged(1.0, True)]
    failpoints.arm(f"store.{place}:{action}")

    with pytest.raises(
        JournalError, match="disk is full" if action == "enospc" else "Input/output error"
    ):
        journal.append(batch, durable=True)

    assert journal.replay() == [requested("run-a")]
    assert (journal.observations(), journal.audit()) == ([], [])
    failpoints.arm("")
    journal.append(batch, durable=True)
    assert len(journal.replay()) == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_refuses_and_recovers_alone(small_disk: Path) -> None:
    """Appends fail by name while the disk is full and work again once it is not."""
    journal = opened(small_disk / "gate.sqlite")
    journal.append([requested("run-a")], durable=True)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        while _written(filler.fileno(), bytes(4096)):
            pass

    acknowledged, refusal = _append_until_refused(journal)
    kept = len(journal.replay())
    (small_disk / "filler").unlink()

    assert "the disk is full" in refusal
    assert kept == 1 + acknowledged
    journal.append([requested("run-c")], durable=True)
    assert journal.replay()[kept:] == [requested("run-c")]


def _append_until_refused(journal: Journal) -> tuple[int, str]:
    acknowledged = 0
    while True:
        try:
            journal.append([requested(f"run-{number}") for number in range(10)], durable=True)
        except JournalError as error:
            return acknowledged, str(error)
        acknowledged += 10


def _written(descriptor: int, block: bytes) -> bool:
    try:
        return os.write(descriptor, block) > 0
    except OSError:
        return False


def test_a_disk_that_can_only_be_read_is_refused(small_disk: Path) -> None:
    """A journal on a read-only file system is refused with that reason, and stays where it is."""
    opened(small_disk / "gate.sqlite").close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    with pytest.raises(JournalError, match="Read-only"):
        opened(small_disk / "gate.sqlite")

    assert [p.name for p in small_disk.iterdir()] == ["gate.sqlite"]


def test_a_home_that_can_only_be_read_is_passed_over(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state directory that is there but not to be written is not chosen."""
    monkeypatch.setenv("XDG_STATE_HOME", str(small_disk))
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.setattr(places, "FALLBACK", tmp_path)
    assert state_directory() == small_disk / "gpugate"
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    assert state_directory().parent == tmp_path


def test_a_lock_of_another_process_is_waited_for_and_then_refused(path: Path) -> None:
    """While another process writes, an append fails with that reason and writes nothing."""
    journal = opened(path)
    hold = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"

        with pytest.raises(JournalError, match="another process keeps it locked"):
            journal.append([requested("run-a")], durable=True)
        other.communicate(b"\n")

    journal.append([requested("run-b")], durable=True)
    assert journal.replay() == [requested("run-b")]


@pytest.mark.parametrize("removed", ["file", "file and log", "folder"])
def test_a_journal_that_was_removed_is_put_back_whole(removed: str, path: Path) -> None:
    """What is acknowledged stands in a file that the next gate finds, with all that was before."""
    journal = opened(path)
    journal.append([requested("run-a"), sedimented()], durable=True)
    for part in {"file": ("",), "file and log": ("", "-wal", "-shm"), "folder": ()}[removed]:
        Path(f"{path}{part}").unlink()
    if removed == "folder":
        shutil.rmtree(path.parent)

    journal.append([requested("run-b")], durable=True)
    journal.append([requested("run-c")], durable=False)

    left = sorted(entry.name for entry in path.parent.iterdir())
    assert left == ["gate.sqlite", "gate.sqlite-shm", "gate.sqlite-wal"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    journal.close()
    following = opened(path)
    assert following.notice is None
    assert following.replay() == [requested(f"run-{n}") for n in "abc"]
    assert len(following.observations()) == 1


def test_a_removed_journal_is_put_back_at_the_end_of_its_gate(path: Path) -> None:
    """What was learned outlives a removal after which nothing more was written."""
    journal = opened(path)
    journal.append([requested("run-a"), sedimented()], durable=True)
    shutil.rmtree(path.parent)
    journal.close()
    assert opened(path).replay() == [requested("run-a")]


def test_a_journal_is_not_put_back_into_a_folder_of_others(path: Path) -> None:
    """Where somebody else could replace it, nothing is written until the folder is gone."""
    journal = opened(path)
    journal.append([requested("run-a")], durable=True)
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.parent.chmod(0o777)

    with pytest.raises(JournalError, match="state_directory"):
        journal.append([requested("run-b")], durable=True)

    assert list(path.parent.iterdir()) == []
    path.parent.chmod(0o700)
    journal.append([requested("run-c")], durable=True)
    assert opened(path).replay() == [requested("run-a"), requested("run-c")]


def test_a_file_that_was_replaced_is_not_written_to(path: Path) -> None:
    """Nothing is acknowledged into a file that the next gate would not find."""
    journal = opened(path)
    path.unlink()
    opened(path).append([requested("run-b")], durable=True)

    with pytest.raises(JournalError, match="replaced while in use"):
        journal.append([requested("run-a")], durable=True)


def test_a_closed_journal_refuses(path: Path) -> None:
    """After its end a journal says so, and may be closed again."""
    journal = opened(path)
    journal.close()
    journal.close()

    with pytest.raises(JournalError, match="closed"):
        journal.append([requested("run-a")], durable=True)


def test_a_newer_journal_is_refused_and_left_alone(path: Path) -> None:
    """An older gate touches nothing of what a newer one wrote, and says what to do."""
    opened(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()

    with pytest.raises(JournalError, match=r"newer jupyter_gpugate \(format 99.*upgrade"):
        opened(path)

    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    """A path that was set by mistake costs nobody a file."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    before = path.read_bytes()

    with pytest.raises(JournalError, match="another program"):
        opened(path)

    assert path.read_bytes() == before


def test_a_network_file_system_is_refused_with_advice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS locks do not hold: the refusal says so and what to do instead."""
    monkeypatch.setattr(local_disk, "file_system_type", lambda _: 0x6969)

    with pytest.raises(JournalError, match=r"is on NFS.*local disk"):
        opened(path)

    assert not path.parent.exists()


def test_a_directory_in_the_place_of_the_journal_is_refused(path: Path) -> None:
    """What is no file is not moved aside."""
    path.mkdir(parents=True)

    with pytest.raises(JournalError, match="Is a directory"):
        opened(path)


# -- damage -------------------------------------------------------------------------------------


def _filled(path: Path) -> bytes:
    journal = opened(path)
    journal.append([requested(f"run-{number}") for number in range(300)], durable=True)
    journal.append([sedimented() for _ in range(100)], durable=True)
    journal.close()
    return path.read_bytes()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda whole: bytes((i * 197 + 13) % 256 for i in range(len(whole))),
    "short text": lambda _: b"not a journal",
    "json": lambda _: b'{"events": []}' * 100,
    "half of it": lambda whole: whole[: len(whole) // 2],
    "one page": lambda whole: whole[:4096],
    "no header": lambda whole: bytes(100) + whole[100:],
    "broken pages": lambda whole: whole[:8192] + b"\xa5" * 8192 + whole[16384:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_moved_aside_once(path: Path, damage: str) -> None:
    """The gate starts with an empty journal, keeps the damaged one whole and says so, once."""
    broken = DAMAGES[damage](_filled(path))
    path.write_bytes(broken)
    clocks = Clocks(wall=1_700_000_000.0)

    journal = opened(path, clocks)

    (aside,) = path.parent.glob(f"{path.name}.corrupt-*")
    assert aside.read_bytes() == broken
    assert journal.notice is not None
    assert str(aside) in journal.notice
    assert (journal.replay(), journal.observations()) == ([], [])
    journal.append([requested("run-a")], durable=True)
    journal.close()
    again = opened(path, clocks)
    assert again.notice is None
    assert again.replay() == [requested("run-a")]


def test_damage_in_the_same_second_has_a_name_of_its_own(path: Path) -> None:
    """What was moved aside before is not overwritten."""
    for text in (b"first damage", b"second damage"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
        opened(path).close()

    aside = sorted(path.parent.glob("*.corrupt-*"))
    assert [part.read_bytes() for part in aside] == [b"first damage", b"second damage"]


@pytest.mark.parametrize("there", [True, False])
def test_an_empty_or_missing_file_is_a_new_journal(path: Path, there: bool) -> None:
    """Nothing was lost that one would have to be told about."""
    if there:
        path.parent.mkdir()
        path.touch()

    journal = opened(path)

    assert journal.notice is None
    assert (journal.replay(), journal.observations()) == ([], [])


def test_a_journal_without_its_tables_is_damaged(path: Path) -> None:
    """A file with our stamp of a version that never was is moved aside like any damage."""
    _filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 0")

    assert opened(path).notice is not None


def test_entries_that_cannot_be_read_are_left_out_and_said(path: Path) -> None:
    """One bad row costs that row, not the journal."""
    journal = opened(path)
    journal.append([requested("run-a"), requested("run-b"), sedimented()], durable=True)
    journal.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET data = '{' WHERE run_id = 'run-a'")
        connection.execute("UPDATE observations SET data = '[]'")

    journal = opened(path)

    assert journal.replay() == [requested("run-b")]
    assert journal.notice is not None
    assert "left out 1 entries" in journal.notice
    assert journal.observations() == []
    journal.prune(DAY, 100)
    assert journal.replay() == [requested("run-b")]


@pytest.mark.parametrize(
    "data",
    [
        "[" * 100_000,
        '{"at":1e400}',
        '{"at":-1e300}',
        '{"at":NaN}',
        '{"at":' + "9" * 400 + "}",
        '{"at":' + "9" * 5000 + "}",
        b"\xff\xfe{",
        "null",
        "",
        12,
    ],
    ids=lambda data: str(data)[:12],
)
@pytest.mark.parametrize("table", ["events", "standing", "observations"])
def test_whatever_stands_in_a_row_costs_that_row_alone(
    path: Path, table: str, data: object
) -> None:
    """Nesting without end, figures without bound and bytes that are no text stop no start."""
    journal = opened(path)
    standing: list[ev.Event] = [ev.DrainChanged(12.0, True), ev.Locked(13.0, GPU, "ada", 7000.0)]
    learned: list[ev.Event] = [sedimented(), sedimented()]
    journal.append([requested("a"), requested("b"), *standing, *learned], durable=True)
    journal.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        first = f"(SELECT min(rowid) FROM {table})"  # noqa: S608 - a name of ours
        connection.execute(f"UPDATE {table} SET data = ? WHERE rowid = {first}", (data,))  # noqa: S608

    journal = opened(path)

    assert len(journal.replay()) == 4 - (table != "observations")
    assert len(journal.observations()) == 2 - (table == "observations")
    assert journal.notice is not None


@pytest.mark.parametrize("wall", ["x", 1e300, -1e300, float("inf")])
def test_a_row_without_a_time_is_left_out(path: Path, wall: object) -> None:
    """Neither a word nor a moment beyond all bounds moves what stands in other rows."""
    journal = opened(path)
    journal.append([requested("run-a"), requested("run-b")], durable=True)
    journal.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET wall = ? WHERE run_id = 'run-a'", (wall,))

    assert opened(path).replay() == [requested("run-b")]


@pytest.mark.parametrize("table", ["events", "standing", "observations", "audit"])
@pytest.mark.parametrize("damage", ["DROP TABLE {}", "ALTER TABLE {} RENAME COLUMN {} TO x"])
def test_a_journal_that_lacks_a_table_or_a_column_is_moved_aside(
    path: Path, table: str, damage: str
) -> None:
    """It is found at the opening, where an empty one can take its place."""
    _filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(damage.format(table, "reason" if table == "audit" else "data"))

    journal = opened(path)

    assert table in (journal.notice or "")
    assert journal.replay() == []
    journal.append([requested("run-a")], durable=True)


def test_an_event_that_cannot_be_applied_is_left_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate starts with all that it can make sense of."""

    def touchy(state: GateState, events: Iterable[ev.Event]) -> GateState:
        told = list(events)
        if any(isinstance(event, ev.DrainChanged) for event in told):
            raise OverflowError("more than anything")
        return apply(state, told)

    journal = opened(path)
    journal.append([requested("a"), ev.DrainChanged(12.0, True), requested("b")], durable=True)
    monkeypatch.setattr(loop, "apply", touchy)
    gate = loop.GateLoop(cast("Sampler", None), journal)

    state = gate._folded(GateState(), journal.replay())

    assert set(state.queue) == {"a", "b"}


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
