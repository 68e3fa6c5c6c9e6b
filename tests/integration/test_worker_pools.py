"""Pools whose processes end before they do any work."""

from __future__ import annotations

import pytest

from tests.integration.cell_process import CellRun

#: The function, the pool's options, and how the cell waits.
BROKEN = {
    "its initializer fails": ("work", "initializer=fails", "pool.map({job}, range(20))"),
    "its processes leave": (
        "work",
        "initializer=os._exit, initargs=(3,)",
        "pool.apply({job}, [1])",
    ),
    "no function, map": ("lost", "", "pool.map({job}, range(20))"),
    "no function, imap": ("lost", "", "list(pool.imap({job}, range(20)))"),
    "no function, in no order": (
        "lost",
        "",
        "list(pool.imap_unordered({job}, range(20), chunksize=3))",
    ),
}


@pytest.mark.parametrize(("job", "options", "wait"), BROKEN.values(), ids=BROKEN)
def test_a_pool_whose_processes_end_at_once_fails_instead_of_waiting(
    cell: CellRun, job: str, options: str, wait: str
) -> None:
    """Whatever way the cell waits for such a pool, it gets an error that says so."""
    cell.source = f"""
        import multiprocessing, os

        def fails():
            raise OSError("no device here")

        def work(x):
            return x

        if multiprocessing.parent_process() is None:
            def lost(x):
                return x

        with multiprocessing.get_context("spawn").Pool(2, {options}) as pool:
            {wait.format(job=job)}
        """
    ended = cell.run()
    assert (ended.code, ended.error["ename"]) == (1, "RuntimeError"), ended.stderr
    assert "the processes of this pool end before they do any work" in ended.error["evalue"]


def test_a_pool_that_loses_processes_now_and_then_goes_on(cell: CellRun) -> None:
    """Processes that end after their work, or one by one with work done in between, are no end."""
    cell.source = """
        import multiprocessing, os, time

        def work(x):
            return x

        def leave(x):
            os._exit(1)

        with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
            for round in range(4):
                lost = pool.apply_async(leave, (0,))
                assert pool.map(work, range(6), chunksize=1) == list(range(6))
                assert not lost.ready()
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
