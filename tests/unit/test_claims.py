"""Which processes a run may call its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpugate.core.samples import Process, ProcessKey
from jupyter_gpugate.gate import claims
from jupyter_gpugate.gate.claims import Claims

ME, OTHER = 1000, 1001
SUPERVISOR = Process(10, 5, 1, ME, 0)
TABLE = {
    process.pid: process
    for process in (
        Process(1, 0, 0, 0, 0),
        SUPERVISOR,
        Process(11, 6, 10, ME, 0),
        Process(12, 7, 11, ME, 0),
        Process(13, 8, 11, OTHER, 0),
        Process(20, 6, 1, ME, 0),
        Process(21, 6, 1, ME, 0),
        Process(22, 6, 1, OTHER, 0),
        Process(30, 6, 31, ME, 0),
        Process(31, 6, 30, ME, 0),
    )
}


def vetted(
    tmp_path: Path, *pids: int, marked: tuple[int, ...] = (), run_id: str = "run"
) -> list[int]:
    """The pids of a claim that count, where these processes carry the run's mark."""
    for pid in marked:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "environ").write_bytes(b"A=b\0GPUGATE_RUN_ID=run\0C=d\0")
    keys = [TABLE[pid].key if pid in TABLE else ProcessKey(pid, 6) for pid in pids]
    kept = Claims(str(tmp_path)).of_run(run_id, SUPERVISOR.key, keys, ME, TABLE)
    return [key.pid for key in kept]


def test_what_descends_from_the_supervisor_counts(tmp_path: Path) -> None:
    """Of the caller's own user; anybody's other process does not, whoever's it is."""
    assert vetted(tmp_path, *TABLE) == [10, 11, 12]


def test_what_carries_the_runs_mark_counts(tmp_path: Path) -> None:
    """Where it is the caller's user's, and the mark is this run's."""
    assert vetted(tmp_path, 10, 20, 21, 22, marked=(20, 22)) == [10, 20]
    assert vetted(tmp_path, 10, 20, marked=(20,), run_id="ru") == [10]


def test_a_pid_that_is_another_process_by_now_does_not_count() -> None:
    """A claim names a process by its start as well."""
    claimed = [SUPERVISOR.key, ProcessKey(11, 99), ProcessKey(4_000_000, 6), ProcessKey(-1, 6)]
    assert Claims().of_run("run", SUPERVISOR.key, claimed, ME, TABLE) == (SUPERVISOR.key,)


def test_a_process_younger_than_the_table_is_looked_up() -> None:
    """It is read in its own folder."""
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    me, parent = ProcessKey(os.getpid(), ticks), os.getppid()
    table = {parent: Process(parent, 1, 1, os.getuid(), 0)}
    supervisor = ProcessKey(parent, 1)
    assert Claims().of_run("run", supervisor, [supervisor, me], os.getuid(), table) == (
        supervisor,
        me,
    )
    assert Claims().of_run("run", supervisor, [me], os.getuid() + 1, table) == ()


def test_what_was_a_runs_stays_so_while_it_is_named(tmp_path: Path) -> None:
    """An orphan has other parents than before, and is known all the same."""
    vet = Claims(str(tmp_path))
    child = TABLE[12].key
    assert vet.of_run("run", SUPERVISOR.key, [SUPERVISOR.key, child], ME, TABLE)[1:] == (child,)
    orphaned = {12: TABLE[12]._replace(parent_pid=1)}
    assert vet.of_run("run", SUPERVISOR.key, [child], ME, orphaned) == (child,)
    vet.forget({})
    assert vet.of_run("run", SUPERVISOR.key, [child], ME, orphaned) == ()


def test_a_claim_of_very_much_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many strangers of one heartbeat are looked into."""
    monkeypatch.setattr(claims, "MOST_LOOKS", 1)
    assert vetted(tmp_path, 10, 20, 11, 12) == [10]
