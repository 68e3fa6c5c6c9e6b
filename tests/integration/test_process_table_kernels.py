"""Kernels, namespaces and hidden processes in the machine reading over real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jupyter_gpugate.core.samples import Process, ProcessKey
from jupyter_gpugate.gate.machine.reader import MachineReader
from tests.integration.started_programs import listed, started, stat_of

ROOT = Path(__file__).resolve().parents[2]


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")


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
