"""Notebook kernels in the process walk over a fake /proc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.gate.machine.process_table import NOTABLE_BYTES, REVISIT_WALKS, ProcessTable
from tests.kit.fake_proc import MB, PAGE, FakeProc, gone_is_gone
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
