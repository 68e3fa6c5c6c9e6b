"""Processes of a run as its run side sees them: who lives, and the end of what was left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Rounds of killing; each takes in what was forked during the last.
ROUNDS = 50
ROUND_S = 0.05


class ProcessName(NamedTuple):
    """A process of this boot."""

    pid: int
    start_ticks: int


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None when there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(process: ProcessName) -> bool:
    """Whether this very process lives: a reused pid is somebody else."""
    return start_ticks(process.pid) == process.start_ticks


def send(process: ProcessName, number: int) -> bool:
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


async def ended(process: ProcessName) -> None:
    """Wait until this process is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    try:
        if not is_alive(process):
            return
        loop.add_reader(descriptor, gone.set)
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def tagged(run_id: str) -> list[ProcessName]:
    """Every living process of this user that carries the run's mark in its environment."""
    mark = f"GPUGATE_RUN_ID={run_id}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                ticks = start_ticks(int(entry.name))
                if ticks is not None:
                    found.append(ProcessName(int(entry.name), ticks))
    return found


async def kill_all(run_id: str, known: Iterable[ProcessName]) -> list[ProcessName]:
    """Kill what is left of a run whose supervisor is gone; whoever still lives after all rounds."""
    left = set(known)
    for _ in range(ROUNDS):
        marked = await asyncio.to_thread(tagged, run_id)
        left = {p for p in (*left, *marked) if is_alive(p)}
        if not left:
            return []
        for process in left:
            send(process, signal.SIGKILL)
        await asyncio.sleep(ROUND_S)
    return sorted(left)
