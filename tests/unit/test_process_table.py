"""The process walk over a fake /proc: identity, descriptors, and what may change unseen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.samples import Process, ProcessKey
from jupyter_gpugate.gate.machine.process_table import NOTABLE_BYTES, REVISIT_WALKS, ProcessTable
from tests.kit.fake_proc import KERNEL_THREAD, MB, FakeProc, gone_is_gone
from tests.kit.proc_tables import KERNEL, deny, open_calls


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    """A /proc in which only process 1 runs."""
    gone_is_gone(monkeypatch)
    return FakeProc(tmp_path / "proc")


@pytest.fixture(params=[100, 0], ids=["descriptors kept", "none kept"])
def table(proc: FakeProc, request: pytest.FixtureRequest) -> Iterator[ProcessTable]:
    """A table of that /proc, with and without descriptors to keep: both must see the same."""
    table = ProcessTable(str(proc.root), budget=request.param)
    yield table
    table.close()


def test_row_is_what_the_kernel_says(proc: FakeProc, table: ProcessTable) -> None:
    """A row has parent, start in raw ticks, user, and resident - shared in bytes."""
    proc.start(50, ticks=777, parent=1, private=3 * MB, shared=9 * MB)

    assert table.walk()[50] == Process(50, 777, 1, os.getuid(), 3 * MB)


@pytest.mark.parametrize("name", ["a b", ")", "x) S 9 9 9 (y", "(((", "1) R 1"])
def test_process_name_cannot_disguise_a_process(
    proc: FakeProc, table: ProcessTable, name: str
) -> None:
    """Blanks and brackets in a process's name do not move the fields behind it."""
    proc.start(50, ticks=777, parent=1, name=name)

    assert (table.walk()[50].parent_pid, table.walk()[50].start_ticks) == (1, 777)


def test_memory_is_read_each_time(proc: FakeProc, table: ProcessTable) -> None:
    """Each walk shows the memory of that moment."""
    proc.start(50, private=1 * MB)
    first = table.walk()
    proc.hold(50, private=3 * MB, shared=1 * MB)

    assert table.walk()[50].private_bytes == 3 * MB
    assert first[50].private_bytes == 1 * MB  # an answer that was given stays as it was


def test_more_shared_than_resident_is_nothing(proc: FakeProc, table: ProcessTable) -> None:
    """The kernel's counters drift apart by a few pages: private memory is never negative."""
    proc.start(50)
    (proc.root / "50" / "statm").write_text("99 10 12 5 0 123 0\n")

    assert table.walk()[50].private_bytes == 0


def test_ended_process_leaves(proc: FakeProc, table: ProcessTable) -> None:
    """A process that is no longer listed is gone from the next walk."""
    proc.start(50)
    table.walk()
    proc.end(50)

    assert set(table.walk()) == {1}


def test_reused_number_is_a_new_process(proc: FakeProc, table: ProcessTable) -> None:
    """A number that another process got between two walks is that process, with its own memory."""
    proc.start(50, ticks=777, private=5 * MB)
    assert table.walk()[50].key == ProcessKey(50, 777)
    proc.end(50)
    proc.start(50, ticks=999, private=1 * MB)

    assert table.walk()[50] == Process(50, 999, 1, os.getuid(), 1 * MB)


def test_reused_number_forgets_the_kernel(proc: FakeProc, table: ProcessTable) -> None:
    """A successor under a kernel's number is not taken for it, though too small to be looked at."""
    proc.start(50, ticks=777, private=5 * MB, command=KERNEL)
    for _ in range(3):
        table.walk()
    assert [kernel.key for kernel in table.kernels()] == [ProcessKey(50, 777)]
    proc.end(50)
    proc.start(50, ticks=999, private=1 * MB, command=("bash",))
    table.walk()

    assert table.kernels() == ()


def test_big_successor_of_a_kernel_is_judged_anew(proc: FakeProc, table: ProcessTable) -> None:
    """A kernel that got another kernel's number is that other one, at once."""
    proc.start(50, ticks=777, private=5 * MB, command=KERNEL)
    for _ in range(3):
        table.walk()
    proc.end(50)
    proc.start(50, ticks=999, private=5 * MB, command=(*KERNEL, "--other"))
    table.walk()

    assert [kernel.key for kernel in table.kernels()] == [ProcessKey(50, 999)]


def test_clock_that_is_set_changes_no_identity(proc: FakeProc, table: ProcessTable) -> None:
    """A process is known by raw ticks since boot, which setting the clock does not change."""
    proc.start(50, ticks=777)
    proc.write("stat", "cpu 1 2 3\nbtime 1700000000\n")
    before = table.walk()[50].key
    proc.write("stat", "cpu 1 2 3\nbtime 1700003600\n")

    assert table.walk()[50].key == before


def test_orphans_show_their_new_parent(proc: FakeProc, table: ProcessTable) -> None:
    """A child whose parent ended shows the parent that it got instead, in that very walk."""
    proc.start(50, parent=1)
    proc.start(60, ticks=1001, parent=50)
    proc.start(70, ticks=1002, parent=60)
    table.walk()
    proc.end(50)
    proc.place(60, ticks=1001, parent=1)
    rows = table.walk()

    assert (rows[60].parent_pid, rows[70].parent_pid) == (1, 60)


def test_reused_parent_is_no_parent(proc: FakeProc, table: ProcessTable) -> None:
    """A process that got the number of an ended parent does not get its children."""
    proc.start(50, ticks=1000)
    proc.start(60, ticks=1001, parent=50)
    table.walk()
    proc.end(50)
    proc.start(50, ticks=2000)
    proc.place(60, ticks=1001, parent=1)

    assert table.walk()[60].parent_pid == 1


def test_reused_parent_without_a_descriptor_is_no_parent(proc: FakeProc) -> None:
    """The same holds where no descriptor is kept on the parent and one is on the child."""
    proc.start(60, ticks=1001, parent=50)
    table = ProcessTable(str(proc.root), budget=2)  # taken by 1 and 60
    table.walk()
    proc.start(50, ticks=1000)
    assert table.walk()[60].parent_pid == 50
    proc.end(50)
    proc.start(50, ticks=2000)
    proc.place(60, ticks=1001, parent=1)

    assert table.walk()[60].parent_pid == 1
    table.close()


def test_successor_gives_no_parent(proc: FakeProc) -> None:
    """What is read by number is only believed of the process that it started with."""
    proc.start(50)
    proc.start(60, ticks=1001, parent=50)
    table = ProcessTable(str(proc.root), budget=100)
    table.walk()
    proc.end(50)
    proc.place(60, ticks=9999, parent=77)  # its number was given again after it was measured

    assert table.walk()[60].key == ProcessKey(60, 1001)
    assert table.walk()[60].parent_pid == 50
    table.close()


def test_parent_that_cannot_be_read_orphans_too(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a parent that may not be read is noticed by its name alone."""
    deny(monkeypatch, "/40/statm")
    proc.start(40, parent=1)
    proc.start(60, parent=40)
    table = ProcessTable(str(proc.root), budget=100)
    assert table.walk()[60].parent_pid == 40
    proc.end(40)
    proc.place(60, parent=1)

    assert table.walk()[60].parent_pid == 1
    table.close()


def test_hidden_processes_are_left_out_and_said(
    proc: FakeProc, table: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that may not be read are absent, the health says so, and they are rarely tried."""
    asked = deny(monkeypatch, "/40/statm")
    proc.start(40)
    proc.start(50)

    walks = [set(table.walk()) for _ in range(REVISIT_WALKS)]
    assert walks == [{1, 50}] * REVISIT_WALKS
    assert "hidden" in table.detail()["processes"]
    assert len(asked) <= 2  # when it was met, and once in REVISIT_WALKS


def test_invisible_processes_are_said(proc: FakeProc, table: ProcessTable) -> None:
    """A table without process 1 is a part of the machine's, and the health says so."""
    proc.start(50)
    table.walk()
    assert "processes" not in table.detail()
    proc.end(1)
    table.walk()

    assert "hidden" in table.detail()["processes"]


def test_kernel_threads_are_left_out(
    proc: FakeProc, table: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel threads hold nothing: they are no rows, and cost nothing once they are known."""
    proc.start(20, parent=2, name="kworker/0:1", flags=KERNEL_THREAD)
    assert set(table.walk()) == {1}
    opened = open_calls(monkeypatch)
    table.walk()

    assert [path for path in opened if "/20/" in path] == []


def test_number_of_a_kernel_thread_is_noticed_when_reused(
    proc: FakeProc, table: ProcessTable
) -> None:
    """A process with the number of an ended kernel thread shows up within REVISIT_WALKS walks."""
    proc.start(20, parent=2, flags=KERNEL_THREAD)
    table.walk()
    proc.end(20)
    proc.start(20, ticks=2000, private=2 * MB)
    walks = [table.walk() for _ in range(REVISIT_WALKS)]

    assert walks[-1][20].key == ProcessKey(20, 2000)


def test_vanishing_processes_are_normal(
    proc: FakeProc, table: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends between the list and its turn is left out and nothing else is."""
    proc.start(50)
    proc.start(60)
    names = [entry.name for entry in proc.root.iterdir()]
    table.walk()
    proc.end(50)
    monkeypatch.setattr(os, "listdir", lambda _path: [*names, "99"])

    assert set(table.walk()) == {1, 60}


def test_garbage_is_left_out(proc: FakeProc, table: ProcessTable) -> None:
    """A row that makes no sense is no row, and comes back once it does."""
    proc.start(50)
    proc.start(60)
    table.walk()
    (proc.root / "50" / "statm").write_text("")
    assert set(table.walk()) == {1, 60}
    proc.hold(50, private=MB)

    assert table.walk()[50].private_bytes == MB


def test_a_process_that_was_to_be_looked_at_and_has_no_row_is_passed_over(
    proc: FakeProc, table: ProcessTable
) -> None:
    """Its number belongs to one that makes no sense, and the walk goes on to all others."""
    proc.start(50, private=NOTABLE_BYTES)
    table.walk()
    proc.end(50)
    proc.start(50, ticks=2000)
    (proc.root / "50" / "statm").write_text("")
    proc.start(60, private=NOTABLE_BYTES, command=KERNEL)

    assert set(table.walk()) == {1, 60}
    assert [kernel.key.pid for kernel in table.kernels()] == [60]


def test_table_that_cannot_be_listed_is_an_error(proc: FakeProc) -> None:
    """No list of processes is an error, never an empty machine."""
    table = ProcessTable(str(proc.root / "nothing"))

    with pytest.raises(FileNotFoundError):
        table.walk()
