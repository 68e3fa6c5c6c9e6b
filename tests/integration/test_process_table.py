"""The machine reading over real processes: whose memory, whose child, which kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jupyter_gpugate.core.samples import Process, ProcessKey
from jupyter_gpugate.gate.machine.reader import MachineReader
from tests.integration.supervisor_process import until
from tests.kit.headless_process import code as headless_code
from tests.kit.headless_process import headless, is_headless

MB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")


class Program:
    """A Python program that says "here" when it is as the test wants it, and then waits.

    ``go`` lets it go on to the next time that it says so.
    """

    def __init__(
        self,
        source: str,
        *,
        command: tuple[str, ...] = (),
        cwd: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command or (sys.executable, "-c", PRELUDE + textwrap.dedent(source)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, **(environ or {})},
        )
        self.pid = self.process.pid
        self.said = self.hear()

    def hear(self) -> list[str]:
        """Return what it says before and after "here"."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == ["here"], f"it said {words}"
        return words[1:]

    def go(self) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


PRELUDE = """
import ctypes, mmap, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the test
MB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
def here(*words):
    os.write(1, (" ".join(["here", *map(str, words)]) + "\\n").encode())
    if not os.read(0, 3):
        os._exit(0)
def hold(megabytes):
    ballast = bytearray(megabytes * MB)
    ballast[::4096] = b"x" * len(ballast[::4096])
    return ballast
"""


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


def started(programs: ExitStack, source: str, **options: object) -> Program:
    """Start a program and wait until it is there."""
    program = Program(source, **options)  # type: ignore[arg-type]
    programs.callback(program.kill)
    return program


def stat_of(pid: int) -> list[str]:
    """Fields 3 and on of /proc/PID/stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


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


STUB = """
import os, signal
ballast = bytearray(8 << 20)
ballast[::4096] = b"x" * len(ballast[::4096])
child = os.fork()
if child == 0:
    ballast[::4096] = b"y" * len(ballast[::4096])
    signal.pause()
os.write(1, f"here {child}\\n".encode())
os.read(0, 3)
os.kill(child, signal.SIGKILL)
"""


def test_kernel_is_found_with_its_notebook(
    reader: MachineReader, programs: ExitStack, tmp_path: Path
) -> None:
    """A kernel is known by its command line and named by its notebook; its forks are part of it."""
    (tmp_path / "ipykernel_launcher.py").write_text(STUB)
    kernel = started(
        programs,
        "",
        command=(sys.executable, "-m", "ipykernel_launcher", "-f", "/none/kernel-1.json"),
        cwd=tmp_path,
        environ={"JPY_SESSION_NAME": "/home/ada/notes.ipynb"},
    )
    programs.callback(kernel.process.communicate)  # lets it end its fork
    reading = reader.read()
    found = {kernel.key.pid: kernel for kernel in reading.kernels}

    assert int(kernel.said[0]) in reading.processes
    assert int(kernel.said[0]) not in found
    assert found[kernel.pid].name == "/home/ada/notes.ipynb"
    assert found[kernel.pid].key == reading.processes[kernel.pid].key
    assert found[kernel.pid].owner == subprocess.check_output(["id", "-un"], text=True).strip()


def test_kernel_behind_a_wrapper_is_found(
    reader: MachineReader, programs: ExitStack, tmp_path: Path
) -> None:
    """A wrapper script that was seen before it became the kernel is the kernel once it is."""
    (tmp_path / "ipykernel_launcher.py").write_text(STUB)
    line = (
        f'echo here; read go; exec "{sys.executable}" -m ipykernel_launcher -f /none/kernel-2.json'
    )
    (tmp_path / "wrapper").write_text(line)
    kernel = started(programs, "", command=("sh", "wrapper"), cwd=tmp_path)
    programs.callback(kernel.process.communicate)
    assert kernel.pid not in {found.key.pid for found in reader.read().kernels}
    kernel.go()

    assert kernel.pid in {found.key.pid for found in reader.read().kernels}


@as_root
def test_change_of_user_is_seen(reader: MachineReader, programs: ExitStack) -> None:
    """A process that was seen before it became another user's is that user's from the next walk."""
    program = started(programs, "ballast = hold(8); here(); os.setuid(12345); here()")
    assert reader.read().processes[program.pid].uid == 0
    program.go()

    assert reader.read().processes[program.pid].uid == 12345


def in_namespaces(script: str, *flags: str) -> str:
    """Run a script in namespaces of its own; skip where the machine gives none."""
    probe = subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no namespaces here: {probe.stderr.decode().strip()}")
    result = subprocess.run(
        ["unshare", *flags, sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


REUSE = """
import ctypes, os, signal, sys
from jupyter_gpugate.gate.machine.process_table import ProcessTable

def start(megabytes):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
        ballast = b"x" * (megabytes << 20)
        os.write(done, b"x")
        signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(done)
    return child

tables = {"kept": ProcessTable(budget=100), "not kept": ProcessTable(budget=0)}
pid = start(64)
first = {name: table.walk()[pid] for name, table in tables.items()}
while True:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    if start(1) != pid:
        sys.exit("the number was not given again")
    ticks = int(open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[19])
    if ticks != first["kept"].start_ticks:
        break
for name, table in tables.items():
    row = table.walk()[pid]
    assert row.key == (pid, ticks) != first[name].key, name
    assert row.private_bytes < first[name].private_bytes - (32 << 20), name
print("two processes")
os.kill(pid, signal.SIGKILL)
"""


def test_number_given_again_is_another_process() -> None:
    """A real pid that was given to another process between two walks is that process."""
    flags = ("--user", "--map-root-user", "--pid", "--fork", "--mount-proc")

    assert in_namespaces(REUSE, *flags) == "two processes\n"


HIDDEN = """
import ctypes, os, signal, subprocess
from jupyter_gpugate.gate.machine.reader import MachineReader

subprocess.run(["mount", "-t", "proc", "-o", "hidepid={level}", "proc", "/proc"], check=True)
whole = MachineReader().read()
os.setgid(12345)
os.setuid(12345)
prctl = ctypes.CDLL(None).prctl
prctl(4, 1)  # readable to its own user again, as after an exec
ready, done = os.pipe()
child = os.fork()
if child == 0:
    prctl(1, signal.SIGKILL)  # ends with its parent
    os.write(done, b"x")
    signal.pause()
os.read(ready, 1)
reader = MachineReader()
reading = reader.read()
assert {{os.getpid(), child}} <= set(reading.processes), reading.processes
assert {{row.uid for row in reading.processes.values()}} == {{12345}}, reading.processes
assert reading.health.fault is None, reading.health
assert "hidden" in reading.health.detail["processes"], reading.health
assert reading.ram.total_bytes == whole.ram.total_bytes
assert reading.ram.bound_by == whole.ram.bound_by
assert reading.ram.free_bytes > 0
assert reading.boot_id == whole.boot_id
assert len(whole.processes) > 2
assert "processes" not in whole.health.detail
os.kill(child, signal.SIGKILL)
print("own processes")
"""


@as_root
@pytest.mark.parametrize("level", [1, 2])
def test_hidden_processes_are_normal(level: int) -> None:
    """Under hidepid a user's gate reads RAM as before and its own user's processes, and says so."""
    assert in_namespaces(HIDDEN.format(level=level), "--mount") == "own processes\n"


def test_walk_within_few_descriptors() -> None:
    """A process that may open few files walks the same table, and can still open files after it."""
    script = """
    import os, resource
    from jupyter_gpugate.gate.machine.process_table import ProcessTable
    from jupyter_gpugate.gate.machine.statm_files import descriptor_budget
    table = ProcessTable()
    whole = set(table.walk())
    table.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (270, 270))
    few = ProcessTable()
    assert descriptor_budget() == 14
    few.walk()
    rows = few.walk()
    assert os.getpid() in rows and 1 in rows
    assert len(rows.keys() & whole) > len(whole) // 2, rows
    spare = [os.open("/", os.O_RDONLY) for _ in range(200)]
    print("room left")
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert (result.stdout, result.stderr) == ("room left\n", "")


def test_every_process_is_in_the_table(reader: MachineReader) -> None:
    """Whoever lives before and after a walk and is no kernel thread has a row that agrees."""
    before = living()
    rows = reader.read().processes
    after = living()

    for key in before & after:
        assert ProcessKey(*key) == rows[key[0]].key
        assert isinstance(rows[key[0]], Process)


def listed() -> list[int]:
    """Every number in /proc."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def living() -> set[tuple[int, int]]:
    """Pid and start of every process that has memory, by the slow way."""
    found = set()
    for pid in listed():
        try:
            fields = stat_of(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if not int(fields[6]) & 0x00200000:
            found.add((pid, int(fields[19])))
    return found
