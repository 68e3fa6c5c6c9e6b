"""The machine reading over real processes: whose memory, whose child, which kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jupyter_gpugate.gate.machine.reader import MachineReader
from tests.integration.started_programs import listed, started, stat_of
from tests.integration.supervisor_process import until
from tests.kit.headless_process import code as headless_code
from tests.kit.headless_process import headless, is_headless

MB = 1 << 20


PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def reader() -> Iterator[MachineReader]:
    """A reader of this machine."""
    reader = MachineReader()
    yield reader
    reader.close()


@pytest.fixture
def programs() -> Iterator[ExitStack]:
    """What is started here is gone after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.behaviour(42)
def test_memory_of_others_is_seen(reader: MachineReader, programs: ExitStack) -> None:
    """What a process of nobody of ours holds is in one walk, with its parent, start and user."""
    before = started(programs, "here()")
    small = reader.read().processes[before.pid]
    program = started(programs, "ballast = hold(64); here()")
    row = reader.read().processes[program.pid]

    assert row[:4] == (program.pid, int(stat_of(program.pid)[19]), os.getpid(), os.getuid())
    assert abs(row.private_bytes - small.private_bytes - 64 * MB) < 4 * MB


def test_growth_is_seen_through_the_same_descriptor(
    reader: MachineReader, programs: ExitStack
) -> None:
    """A process that grows and shrinks is seen to do so, without being opened again."""
    program = started(programs, "here(); ballast = hold(64); here(); del ballast; here()")
    sizes = [reader.read().processes[program.pid].private_bytes]
    for _ in range(2):
        program.go()
        sizes.append(reader.read().processes[program.pid].private_bytes)

    assert sizes[1] - sizes[0] > 60 * MB
    assert sizes[1] - sizes[2] > 60 * MB


def test_shared_and_mapped_pages_are_not_private(
    reader: MachineReader, programs: ExitStack, tmp_path: Path
) -> None:
    """Shared memory and pages of mapped files are nobody's private memory."""
    big = tmp_path / "big"
    big.write_bytes(b"x" * 64 * MB)
    program = started(
        programs,
        f"""
        here()
        file = open({str(big)!r}, "rb")
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        shared = mmap.mmap(-1, 64 * MB)  # anonymous and shared: shmem
        touched = sum(mapped[::4096]) and shared.write(b"y" * 64 * MB)
        here()
        """,
    )
    before = reader.read().processes[program.pid].private_bytes
    program.go()
    after = reader.read().processes[program.pid].private_bytes

    assert int(Path(f"/proc/{program.pid}/statm").read_text().split()[2]) * PAGE > 128 * MB
    assert after - before < 4 * MB


@pytest.mark.behaviour(48)
def test_forked_pages_are_counted_for_each(reader: MachineReader, programs: ExitStack) -> None:
    """Pages that forks share until one writes count for each: maybe too much, never too little."""
    program = started(
        programs,
        """
        ballast = hold(64)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
        here(*children)
        """,
    )
    children = [int(word) for word in program.said]
    for child in children:
        programs.callback(os.kill, child, signal.SIGKILL)
    rows = reader.read().processes

    assert all(rows[pid].private_bytes > 64 * MB for pid in (program.pid, *children))


def test_child_in_its_own_session_keeps_its_parent(
    reader: MachineReader, programs: ExitStack
) -> None:
    """Neither setsid nor setpgid hides a child: the parent in its row stays."""
    program = started(
        programs,
        """
        moves = (os.setsid, os.setpgrp)
        children = []
        for move in moves:
            ready, done = os.pipe()
            child = os.fork()
            if child == 0:
                move()
                os.write(done, b"x")
                signal.pause()
            os.read(ready, 1)
            children.append(child)
        here(*children)
        """,
    )
    children = [int(word) for word in program.said]
    for child in children:
        programs.callback(os.kill, child, signal.SIGKILL)
    rows = reader.read().processes

    assert [rows[child].parent_pid for child in children] == [program.pid, program.pid]
    assert [os.getpgid(child) for child in children] == children


def test_orphan_goes_to_its_subreaper(reader: MachineReader, programs: ExitStack) -> None:
    """When its parent ends, a process shows the subreaper that took it over."""
    program = started(
        programs,
        """
        ctypes.CDLL(None).prctl(36, 1)  # child subreaper
        child = os.fork()
        if child == 0:
            grandchild = os.fork()
            if grandchild:
                here(os.getpid(), grandchild)
                os._exit(0)
            signal.pause()
        os.waitpid(child, 0)
        here()
        """,
    )
    child, grandchild = (int(word) for word in program.said)
    programs.callback(os.kill, grandchild, signal.SIGKILL)
    assert reader.read().processes[grandchild].parent_pid == child
    program.go()
    rows = reader.read().processes

    assert child not in rows
    assert rows[grandchild].parent_pid == program.pid


def test_ended_process_holds_nothing(reader: MachineReader, programs: ExitStack) -> None:
    """A process that has ended holds nothing while it waits to be reaped, and then is gone."""
    program = started(programs, "ballast = hold(64); here()")
    key = reader.read().processes[program.pid].key
    os.kill(program.pid, signal.SIGKILL)
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)  # ended, and left as it is
    zombie = reader.read().processes[program.pid]
    program.process.wait()

    assert (zombie.key, zombie.private_bytes) == (key, 0)
    assert program.pid not in reader.read().processes


def test_a_process_without_its_first_thread_holds_what_it_held(reader: MachineReader) -> None:
    """State Z is that of the first thread: what the others hold is read, met then or known before.

    When the whole process has ended it holds nothing.
    """
    with headless(64) as program:
        rows = reader.read().processes
        assert rows[program.pid].private_bytes >= 64 * MB
        assert reader.read().processes[program.pid] == rows[program.pid]
        os.kill(program.pid, signal.SIGKILL)
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert reader.read().processes[program.pid].private_bytes == 0


def test_a_known_process_that_loses_its_first_thread_is_followed(reader: MachineReader) -> None:
    """The kept descriptor shows nothing any more: another thread's takes its place."""
    with subprocess.Popen(
        [sys.executable, "-c", f"input()\n{headless_code(64)}"], stdin=subprocess.PIPE
    ) as program:
        try:
            assert reader.read().processes[program.pid].private_bytes < 64 * MB
            assert program.stdin
            program.stdin.write(b"\n")
            program.stdin.flush()
            until(lambda: is_headless(program.pid), "the end of the first thread")
            until(
                lambda: reader.read().processes[program.pid].private_bytes >= 64 * MB,
                "what the other one holds",
            )
        finally:
            program.kill()


def test_kernel_threads_are_no_rows(reader: MachineReader) -> None:
    """Rows are processes with memory of their own; the kernel's threads have none."""
    rows = reader.read().processes
    threads = {
        pid
        for pid in listed()
        if Path(f"/proc/{pid}/stat").exists() and int(stat_of(pid)[6]) & 0x00200000
    }

    assert os.getpid() in rows
    assert threads.isdisjoint(rows)
