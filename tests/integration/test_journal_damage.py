"""Journals that are damaged, newer, or of another program."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate import loop
from jupyter_gpugate.gate.journal import local_disk
from jupyter_gpugate.gate.journal.journal import JournalError
from jupyter_gpugate.gate.sampling import Sampler
from tests.kit.journal_events import (
    GPU,
    Clocks,
    opened,
    requested,
    sedimented,
)
from tests.kit.journal_files import DAY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a journal that is not there yet."""
    return tmp_path / "state" / "gate.sqlite"


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
