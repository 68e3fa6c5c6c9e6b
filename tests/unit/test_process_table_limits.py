"""The process walk and its descriptors: reads per process, bounds, exhaustion."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.gate.machine.process_table import ProcessTable
from jupyter_gpugate.gate.machine.statm_files import descriptor_budget
from tests.kit.fake_proc import MB, FakeProc, gone_is_gone, open_descriptors
from tests.kit.proc_tables import open_calls


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
