"""The end of an attempt: its report, the record of what was stopped, and warnings of the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from .background import IDLE_S, Background
from .clock import awake_time
from .memory import GROWN_BYTES
from .memory_files import MemoryFiles
from .names import listed
from .processes import Proc, carriers, send, stop_then_kill
from .stopping import PENDING_S, Stopping

BLANK = {"reason": "", "exit_code": None, "oom_resource": None, "oom_evidence": ""}
SWEEP_S = 0.02  # between two rounds of a sweep


def end_report(
    end: dict[str, Any],
    episodes: int,
    resumed: int,
    peaks: dict[str, Any],
    duration_s: float | None,
) -> dict[str, Any]:
    """Return the end as it is recorded and reported; a body that never counts episodes is one."""
    done = episodes or int(end["outcome"] == "completed" and not resumed)
    known = {name: value for name, value in end.items() if name != "stop"}
    counts = {"episodes_done": done, "episodes_resumed": resumed}
    return {**BLANK, **known, **counts, "peaks": peaks, "duration_s": duration_s}


def sweep(run_id: str, wait: Callable[[float], None]) -> tuple[bool, list[Proc]]:
    """Kill what left the tree but kept the tag; whether there was any, and what is still there."""
    tag = f"GPUGATE_RUN_ID={run_id}".encode()
    left = carriers(tag)
    had_any = bool(left)
    until = awake_time() + PENDING_S
    while left and awake_time() < until:
        stop_then_kill(lambda: carriers(tag), send)
        wait(SWEEP_S)
        left = carriers(tag)
    return had_any, left


def kill_record(
    stopping: Stopping | None,
    swept: tuple[bool, list[Proc]],
    clients: Iterable[str],
    ended_at: float,
) -> dict[str, Any] | None:
    """Say how all was stopped; None where nothing had to be."""
    had_any, left = swept
    means = [*(stopping.means if stopping else []), *(["sweep"] if had_any else [])]
    if not means:
        return None
    began_at = stopping.began_at if stopping else None
    ms = round((awake_time() - (ended_at if began_at is None else began_at)) * 1000)
    outside = [f"possibly processes that {name} started outside the run" for name in clients]
    return {"means": " + ".join(means), "ms": ms, "survivors": [*left, *sorted(outside)]}


def remove_cgroup(cgroup: str | None) -> None:
    """Remove the cgroup of the workers, which is empty by now."""
    if cgroup:
        with suppress(OSError):
            os.rmdir(cgroup)


def warning_of_stopped(stopped: list[str], background: Background | None) -> Iterator[str]:
    """Warn of processes that a completed run has left."""
    if stopped:
        is_idle = background is not None and background.is_idle
        why = f", which had not worked for {IDLE_S / 60:.0f} minutes" if is_idle else ""
        yield f"it left {listed(stopped)} in the background{why}: stopped at its end"


def warning_of_clients(clients: Iterable[str]) -> Iterator[str]:
    """Warn of programs whose work is done outside of the run."""
    names = listed(sorted(clients))
    if names:
        yield (
            f"{names} may have started work outside the run; work done by a daemon or another"
            " machine is neither measured nor stopped with the run"
        )


def warning_of_files(files: MemoryFiles | None, left: int) -> Iterator[str]:
    """Warn of files in memory that outlive the run."""
    if files is not None and left > GROWN_BYTES:
        yield (
            f"it left {left >> 20:,} MB in files in memory, which take RAM until they are"
            f" deleted: {listed(files.paths())}"
        )
