"""Pools whose processes end as soon as they begin."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


def end_broken_pools(module: Any) -> None:
    """Make a pool fail, instead of waiting for ever, if its workers end as soon as they begin.

    It fails after twice as many ends as it has workers, with nothing done in between.
    """
    pools: Any = weakref.WeakSet()
    kind: Any = module.Pool
    begin, join_exited = kind.__init__, kind._join_exited_workers  # noqa: SLF001

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        begin(self, *args, **options)
        pools.add(self)

    def _join_exited_workers(workers: list[Any]) -> Any:
        codes = [code for code in [worker.exitcode for worker in workers] if code]
        cleaned = join_exited(workers)
        for pool in [pool for pool in list(pools) if pool._pool is workers] if codes else ():  # noqa: SLF001
            jobs = dict(pool._cache)  # noqa: SLF001
            done = {key: _progress(job) for key, job in jobs.items()}
            before, ends = vars(pool).get("_gpugate_ends", (done, 0))
            ends = (ends if before == done else 0) + len(codes)
            if jobs and ends >= 2 * max(2, pool._processes):  # noqa: SLF001
                _fail_jobs(jobs.values(), codes[0])
                ends = 0
            pool._gpugate_ends = (done, ends)  # noqa: SLF001
        return cleaned

    kind.__init__, kind._join_exited_workers = __init__, staticmethod(_join_exited_workers)  # noqa: SLF001


def _progress(job: Any) -> tuple[object, ...]:
    return tuple(vars(job).get(name) for name in ("_number_left", "_index"))


def _fail_jobs(jobs: Iterable[Any], code: int) -> None:
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    error = RuntimeError(
        f"the processes of this pool end before they do any work ({how}); "
        "their own errors are in the output"
    )
    for job in jobs:
        if hasattr(job, "_items"):  # of `imap`: the next item that is waited for
            with job._cond:  # noqa: SLF001
                job._items.append((False, error))  # noqa: SLF001
                job._cond.notify()  # noqa: SLF001
        else:
            while not job.ready():  # each chunk of a `map`
                job._set(0, (False, error))  # noqa: SLF001
