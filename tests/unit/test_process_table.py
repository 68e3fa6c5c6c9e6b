"""The process walk over a fake /proc: identity, descriptors, and what may change unseen."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.samples import Process, ProcessKey
from jupyter_gpugate.gate.machine.process_table import NOTABLE_BYTES, REVISIT_WALKS, ProcessTable
from jupyter_gpugate.gate.machine.statm_files import descriptor_budget
from tests.kit.fake_proc import KERNEL_THREAD, MB, PAGE, FakeProc, gone_is_gone, open_descriptors

KERNEL = ("python", "-m", "ipykernel_launcher", "-f", "/run/kernel-1.json")


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


def open_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every path that is opened from here on."""
    opened: list[str] = []
    real = os.open

    def recording(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", recording)
    return opened


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


def deny(monkeypatch: pytest.MonkeyPatch, end: str) -> list[str]:
    """Refuse to open paths that end so, as hidepid=1 does; returns what was asked for."""
    asked: list[str] = []
    real = os.open

    def refusing(path: str, flags: int) -> int:
        if path.endswith(end):
            asked.append(path)
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    return asked


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


def test_steady_walk_is_one_read_per_process(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk in which nobody came or went opens nothing and reads each process once."""
    for pid in range(100, 140):
        proc.start(pid, private=MB)
    table = ProcessTable(str(proc.root), budget=100)
    table.walk()
    opened = open_calls(monkeypatch)
    reads: list[int] = []
    pread = os.pread

    def counting(descriptor: int, size: int, offset: int) -> bytes:
        reads.append(descriptor)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counting)

    assert len(table.walk()) == 41
    assert (opened, len(reads)) == ([], 41)
    table.close()


def test_descriptors_are_bounded_and_given_back(proc: FakeProc) -> None:
    """At most the budget is kept open, everybody is read all the same, and the end frees all."""
    for pid in range(100, 140):
        proc.start(pid, private=MB)
    before = open_descriptors()
    table = ProcessTable(str(proc.root), budget=10)
    rows = table.walk()

    assert open_descriptors() - before == 10
    assert rows == table.walk()
    assert len(rows) == 41
    assert "RLIMIT_NOFILE" in table.detail()["descriptors"]
    for pid in range(100, 140):
        proc.end(pid)
    table.walk()
    assert open_descriptors() - before == 1  # process 1 got one that fell free
    assert "descriptors" not in table.detail()
    table.close()
    assert open_descriptors() == before


def test_a_descriptor_that_falls_free_goes_to_one_process_alone(proc: FakeProc) -> None:
    """Who has one keeps it, and none is opened beside it and lost."""
    before = open_descriptors()
    proc.start(50)
    table = ProcessTable(str(proc.root), budget=2)
    table.walk()
    proc.start(60)
    table.walk()
    proc.end(50)
    for _ in range(3):
        table.walk()
        assert open_descriptors() - before == 2
    table.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_exhausted_descriptors_are_given_back(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """When nothing more can be opened, half of the kept ones go, and the walk misses nobody."""
    for pid in range(100, 120):
        proc.start(pid)
    table = ProcessTable(str(proc.root), budget=100)
    table.walk()
    most = open_descriptors()
    real = os.open

    def limited(path: str, flags: int) -> int:
        descriptor = real(path, flags)
        if open_descriptors() <= most:
            return descriptor
        os.close(descriptor)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "open", limited)
    proc.start(200)
    rows = table.walk()

    assert set(rows) == {1, 200, *range(100, 120)}
    assert open_descriptors() < most
    table.close()


def test_walk_without_any_descriptor_is_an_error(
    proc: FakeProc, table: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When no file can be opened at all, a new process makes the walk fail, not the table short."""
    table.walk()
    proc.start(200)

    def exhausted(path: str, _flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as within:
        within.setattr(os, "open", exhausted)
        with pytest.raises(OSError, match="Too many open files"):
            table.walk()

    assert set(table.walk()) == {1, 200}


@pytest.mark.parametrize(
    ("soft", "expected"),
    [(256, 0), (300, 44), (1024, 512), (20_000, 10_000), (1 << 20, 16_384), (-1, 16_384)],
)
def test_budget_leaves_descriptors_to_others(
    monkeypatch: pytest.MonkeyPatch, soft: int, expected: int
) -> None:
    """Half of the limit is left to the rest of the process, and 256 in any case."""
    monkeypatch.setattr("resource.getrlimit", lambda _which: (soft, soft))

    assert descriptor_budget() == expected


def test_kernels_have_a_notebook_and_an_owner(proc: FakeProc, table: ProcessTable) -> None:
    """A kernel is named by its notebook where its environment tells, else by its number."""
    proc.start(50, private=9 * MB, command=KERNEL, environ=("JPY_SESSION_NAME=/n/a.ipynb",))
    proc.start(60, private=9 * MB, command=KERNEL)
    proc.start(70, private=9 * MB, command=("python", "train.py"))
    table.walk()

    assert {kernel.key.pid: kernel.name for kernel in table.kernels()} == {
        50: "/n/a.ipynb",
        60: "pid 60",
    }


def test_environment_of_others_is_not_needed(
    proc: FakeProc, table: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's kernel is a kernel, though its environment cannot be read."""
    deny(monkeypatch, "/environ")
    proc.start(50, private=9 * MB, command=KERNEL, environ=("JPY_SESSION_NAME=/n/a.ipynb",))
    table.walk()

    assert [kernel.name for kernel in table.kernels()] == ["pid 50"]


def test_fork_of_a_kernel_is_part_of_it(proc: FakeProc, table: ProcessTable) -> None:
    """A child that a kernel forked, and a child of that, are no kernels of their own."""
    proc.start(50, ticks=1000, private=9 * MB, command=KERNEL)
    proc.start(51, ticks=1001, parent=50, private=9 * MB, command=KERNEL)
    proc.start(52, ticks=1002, parent=51, private=9 * MB, command=KERNEL)
    other = (*KERNEL[:-1], "/run/kernel-2.json")
    proc.start(53, ticks=1003, parent=50, private=9 * MB, command=other)
    table.walk()

    assert sorted(kernel.key.pid for kernel in table.kernels()) == [50, 53]


def test_small_processes_cost_no_look(
    proc: FakeProc, table: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line of a process is read only once it holds something."""
    opened = open_calls(monkeypatch)
    proc.start(50, private=NOTABLE_BYTES - PAGE, command=KERNEL)
    table.walk()
    assert [path for path in opened if path.endswith("cmdline")] == []
    proc.hold(50, private=NOTABLE_BYTES)
    table.walk()

    assert [kernel.key.pid for kernel in table.kernels()] == [50]


def test_program_is_looked_at_again_after_exec(proc: FakeProc, table: ProcessTable) -> None:
    """A process seen between fork and exec is judged by what it became, in the next walk."""
    proc.start(50, private=9 * MB, command=("jupyter-lab",))
    table.walk()
    assert table.kernels() == ()
    proc.command(50, *KERNEL)
    table.walk()

    assert [kernel.key.pid for kernel in table.kernels()] == [50]


def test_late_exec_is_noticed(proc: FakeProc, table: ProcessTable) -> None:
    """A wrapper that becomes a kernel late is noticed within REVISIT_WALKS walks, and back."""
    proc.start(50, private=9 * MB, command=("bash", "wrapper.sh"))
    for _ in range(3):
        table.walk()
    proc.command(50, *KERNEL)
    for _ in range(REVISIT_WALKS):
        table.walk()
    assert [kernel.key.pid for kernel in table.kernels()] == [50]
    proc.command(50, "python", "something_else.py")
    for _ in range(REVISIT_WALKS):
        table.walk()

    assert table.kernels() == ()


def test_table_that_cannot_be_listed_is_an_error(proc: FakeProc) -> None:
    """No list of processes is an error, never an empty machine."""
    table = ProcessTable(str(proc.root / "nothing"))

    with pytest.raises(FileNotFoundError):
        table.walk()
