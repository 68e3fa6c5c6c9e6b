"""The processes of a run as its run side sees them: living, ended, or without a supervisor.

A process that cannot be read, for want of descriptors for example, never counts as ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import start_ticks, stat_of
from jupyter_gpugate.programs.supervisor.processes import stop_then_kill

#: Rounds of killing; each takes in what was forked during the last.
ROUNDS = 50
ROUND_S = 0.05
#: Until a process that could not be looked at is looked at again.
LOOK_S = 0.25


class OrphanedCgroup(Protocol):
    """The cgroup of a run's processes."""

    def members(self) -> list[ProcessKey]:
        """Return the living processes in it."""

    def kill(self) -> None:
        """Kill all of them at once."""


def is_alive(process: ProcessKey) -> bool:
    """Return whether this very process lives, or may: a reused pid is another process."""
    try:
        return start_ticks(process.pid) == process.start_ticks
    except OSError:
        return True


def send(process: ProcessKey, number: int) -> bool:
    """Signal this very process; False when it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


async def ended(process: ProcessKey) -> None:
    """Wait until this process is gone."""
    while is_alive(process):
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # gone just now, or no descriptor is left
            await asyncio.sleep(LOOK_S)
            continue
        try:
            # Asked again now that the descriptor cannot come to mean another process.
            if is_alive(process):
                await _readable(descriptor)
        finally:
            os.close(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)


def tagged(run_id: str) -> list[ProcessKey]:
    """Every living process of this user that carries the run's mark in its environment."""
    mark = f"GPUGATE_RUN_ID={run_id}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if mark in environment(Path(entry.path)).split(b"\0"):
                ticks = start_ticks(int(entry.name))
                if ticks is not None:
                    found.append(ProcessKey(int(entry.name), ticks))
    return found


def environment(process: Path) -> bytes:
    """The environment of a process in its folder, or in that of a thread that outlived the first.

    Raises `OSError` where it may not be read.
    """
    text = b""
    with suppress(ProcessLookupError):  # reported only by newer kernels
        text = (process / "environ").read_bytes()
    if text:
        return text
    if not stat_of(process.name).is_headless:
        return b""
    for thread in (process / "task").iterdir():
        if thread.name != process.name:
            return (thread / "environ").read_bytes()
    return b""


async def kill_orphans(
    run_id: str, known: Iterable[ProcessKey], cgroup: OrphanedCgroup | None = None
) -> list[ProcessKey]:
    """Kill the processes of a run without a supervisor; return those that survive all rounds."""
    orphans = set(known)

    def living() -> set[ProcessKey]:
        nonlocal orphans
        in_cgroup = cgroup.members() if cgroup is not None else []
        orphans = {p for p in (*orphans, *tagged(run_id), *in_cgroup) if is_alive(p)}
        return orphans

    def kill() -> None:
        with suppress(OSError):  # for want of descriptors, some of them cannot be found
            stop_then_kill(living, send)
            return
        for process in orphans:
            send(process, signal.SIGKILL)

    for _ in range(ROUNDS):
        with suppress(OSError):
            if not await asyncio.to_thread(living):
                return []
        if cgroup is not None:
            cgroup.kill()
        await asyncio.to_thread(kill)
        await asyncio.sleep(ROUND_S)
    return sorted(orphans)
