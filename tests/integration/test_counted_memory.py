"""Memory that nobody can be given counts for the run that took it, by whatever means it did."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.programs.supervisor.clock import awake_time
from jupyter_gpugate.programs.supervisor.memory import memory_mounts
from jupyter_gpugate.programs.supervisor.memory_files import MemoryFiles
from jupyter_gpugate.programs.supervisor.meter import RamMeter
from tests.integration.supervisor_process import Attempt, Make, python, until
from tests.kit.headless_process import code as headless_code

MB = 1 << 20
SHM = Path("/dev/shm")  # noqa: S108 - this is about files in memory

#: Ends when it is told to, in whatever process it is.
WAIT = "import os, time\nwhile not os.path.exists({gone!r}): time.sleep(0.02)\n"


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Name a file in shared memory that is gone after the test."""
    path = SHM / f"gpugate-test-{os.getpid()}"
    if not SHM.is_dir() or memory_mounts().get(SHM.stat().st_dev) is None:
        pytest.skip("needs a file system in memory at /dev/shm")
    yield path
    for left in SHM.glob(f"{path.name}*"):
        left.unlink()


def held(attempt: Attempt, least: int) -> int:
    """Wait for a report of so much, and return it."""
    beat = attempt.gate.wait_for(
        "heartbeat", lambda b: (b["report"]["ram_held_bytes"] or 0) > least
    )
    return int(beat["report"]["ram_held_bytes"])


FILL = "def fill(file):\n    for _ in range(150): file.write(bytes(1 << 20))\n"
WRITERS = {
    "closed at once": "with open({path!r}, 'wb') as file: fill(file)",
    "by a child that is gone": (
        "import subprocess\n"
        "subprocess.run(['dd', 'if=/dev/zero', 'of=' + {path!r}, 'bs=1M', 'count=150'])"
    ),
    "under a name that changed": (
        "with open({path!r}, 'wb') as file: fill(file)\nos.rename({path!r}, {path!r} + '.npy')"
    ),
    "without a name": (
        "file = open({path!r}, 'wb'); os.unlink({path!r}); fill(file); file.flush()"
    ),
    "nowhere": "file = open(os.memfd_create('x'), 'wb'); fill(file); file.flush()",
    "in a segment that nobody has attached": (
        "import atexit, ctypes; libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p\n"
        "segment = libc.shmget(0, ctypes.c_size_t(150 << 20), 0o1600)\n"
        "atexit.register(lambda: libc.shmctl(segment, 0, None))\n"
        "at = libc.shmat(segment, None, 0); ctypes.memset(at, 1, 150 << 20)\n"
        "libc.shmdt(ctypes.c_void_p(at))"
    ),
    "mapped as well": (
        "file = open({path!r}, 'wb+'); fill(file); file.flush()\n"
        "import mmap; seen = mmap.mmap(file.fileno(), 0); sum(seen[::4096])"
    ),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_what_a_run_writes_to_memory_is_its_own_once(
    make: Make, in_memory: Path, tmp_path: Path, writer: str
) -> None:
    """A file in memory counts for the run that wrote it, open or closed, and never twice."""
    gone = str(tmp_path / "go")
    code = f"import os\n{FILL}{writer.format(path=str(in_memory))}\n{WAIT.format(gone=gone)}"
    attempt = make(argv=python(code), heartbeat_s=0.2).start()
    assert 150 * MB < held(attempt, 150 * MB) < 210 * MB
    Path(gone).touch()
    assert 150 * MB < attempt.end()["peaks"]["ram_bytes"] < 230 * MB


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_a_neighbour_writes_to_memory_is_not_the_runs(
    make: Make, in_memory: Path, tmp_path: Path, *, is_closed: bool
) -> None:
    """Another process of the same user, which is no part of the run, fills shared memory."""
    gone = str(tmp_path / "go")
    attempt = make(argv=python(WAIT.format(gone=gone)), heartbeat_s=0.2).start()
    held(attempt, 0)
    with in_memory.open("wb") as file:
        file.write(bytes(150 * MB))
        file.flush()
        if is_closed:
            file.close()
        seen = len(attempt.gate.all("heartbeat"))
        until(lambda: len(attempt.gate.all("heartbeat")) > seen + 10, "some more heartbeats")
    Path(gone).touch()
    assert attempt.end()["peaks"]["ram_bytes"] < 100 * MB


@pytest.mark.parametrize("keeps_open", [True, False])
def test_what_a_run_writes_to_its_own_files_proves_nothing_of_others(
    in_memory: Path, *, keeps_open: bool
) -> None:
    """Of two files that appear at once only the run's counts, however much the run has written."""
    own, other = f"{in_memory}-own", f"{in_memory}-other"
    end = "" if keeps_open else "\nfile.close()"
    code = f"{FILL}file = open({own!r}, 'wb'); fill(file); file.flush(); print(flush=True); input()"
    files = MemoryFiles(time.time())
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}{end}\nprint(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin
        assert program.stdout
        program.stdout.readline()
        if not keeps_open:
            files.look([0, program.pid])
        subprocess.run(["cp", own, other], check=True)
        program.stdin.write(b"\n")
        program.stdin.flush()
        program.stdout.readline()
        held = files.look([0, program.pid])
        program.kill()
    assert 150 * MB <= held < 160 * MB


def test_a_writer_that_was_not_in_the_list_yet_is_found_at_the_next_look(in_memory: Path) -> None:
    """The list of the tree is older than a short-lived writer: its bytes show later."""
    code = (
        "import subprocess\ninput()\n"
        f"subprocess.run(['dd', 'if=/dev/zero', 'of={in_memory}', 'bs=1M', 'count=150'])\n"
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin
        assert program.stdout
        files = MemoryFiles(time.time())
        files.look([0, program.pid])
        program.stdin.write(b"\n")
        program.stdin.flush()
        program.stdout.readline()
        assert files.look([0]) == 0
        held = files.look([0, program.pid])
        program.kill()
    assert 150 * MB <= held < 160 * MB


def test_what_was_written_through_a_mapping_stays_when_that_is_gone(
    make: Make, in_memory: Path, tmp_path: Path
) -> None:
    """A file in memory that was mapped, filled and let go is the run's as long as it is there."""
    filled, gone = str(tmp_path / "filled"), str(tmp_path / "go")
    code = (
        f"import mmap\n{FILL}"
        f"file = open({str(in_memory)!r}, 'wb+'); file.truncate(150 << 20)\n"
        "seen = mmap.mmap(file.fileno(), 0); file.close(); fill(seen)\n"
        f"{WAIT.format(gone=filled)}\nseen.close()\n{WAIT.format(gone=gone)}"
    )
    attempt = make(argv=python(code), heartbeat_s=0.2)
    attempt.change_supervisor("READING_S = 5.0", "READING_S = 0.2")
    attempt.start()
    held(attempt, 150 * MB)
    Path(filled).touch()
    seen = len(attempt.gate.all("heartbeat"))
    until(lambda: len(attempt.gate.all("heartbeat")) > seen + 6, "some more heartbeats")
    last = attempt.gate.all("heartbeat")[-1]["report"]["ram_held_bytes"]
    Path(gone).touch()
    attempt.end()
    assert 150 * MB < last < 210 * MB


def test_a_run_held_at_least_what_it_leaves_in_memory(in_memory: Path) -> None:
    """A file that grows after the last reading of the tree counts for what the run needs."""
    source = f"""
        import sys
        with open({str(in_memory)!r}, "wb", buffering=0) as file:
            for _ in range(2):
                for _ in range(80): file.write(bytes(1 << 20))
                print(flush=True)
                sys.stdin.readline()
        """
    meter = RamMeter(MemoryFiles(time.time()))
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        meter.read([os.getpid(), writer.pid], awake_time())
        assert set(meter.files.sizes.values()) == {80 * MB} if meter.files else False
        meter.peak = 0  # of the tree, this test with it
        writer.communicate(b"\n\n")
    assert meter.left_behind(os.getpid()) == 160 * MB
    assert meter.peak == 160 * MB


@pytest.mark.parametrize("way", ["open", "mapped"])
def test_a_neighbours_segment_that_a_run_joins_is_not_all_its_own(
    make: Make, in_memory: Path, tmp_path: Path, way: str
) -> None:
    """A segment that both have is the run's by its share of what it has mapped alone."""
    joined, gone = tmp_path / "joined", str(tmp_path / "go")
    made = str(tmp_path / "made")
    code = (
        f"{WAIT.format(gone=made)}\nimport mmap\n"
        f"file = open({str(in_memory)!r}, 'rb+'); seen = mmap.mmap(file.fileno(), 0)\n"
        f"sum(seen[::4096]); open({str(joined)!r}, 'w').close()\n{WAIT.format(gone=gone)}"
    )
    attempt = make(argv=python(code), heartbeat_s=0.2).start()
    held(attempt, 0)
    with in_memory.open("wb+") as file:
        file.truncate(150 * MB)
        segment = mmap.mmap(file.fileno(), 0)
        segment[:] = bytes(150 * MB)
        if way == "mapped":
            file.close()
        Path(made).touch()
        until(joined.exists, "the run has joined")
        seen = len(attempt.gate.all("heartbeat"))
        until(lambda: len(attempt.gate.all("heartbeat")) > seen + 6, "some more heartbeats")
        Path(gone).touch()
        peak = attempt.end()["peaks"]["ram_bytes"]
    assert 75 * MB <= peak < 140 * MB


def test_what_is_deleted_is_held_no_more(make: Make, in_memory: Path, tmp_path: Path) -> None:
    """A run's file in memory counts as long as it is there."""
    gone = str(tmp_path / "go")
    write = f"{FILL}with open({str(in_memory)!r}, 'wb') as file: fill(file)\n"
    attempt = make(argv=python(write + WAIT.format(gone=gone)), heartbeat_s=0.2).start()
    held(attempt, 150 * MB)
    in_memory.unlink()
    seen = len(attempt.gate.all("heartbeat"))
    until(
        lambda: any(
            beat["report"]["ram_held_bytes"] < 100 * MB
            for beat in attempt.gate.all("heartbeat")[seen:]
        ),
        "a report without the file",
    )
    Path(gone).touch()
    attempt.end()


def test_a_process_that_has_lost_its_first_thread_is_measured_and_stopped(make: Make) -> None:
    """What its other threads hold counts, and the run lasts until they have ended too."""
    attempt = make(argv=python(headless_code(150)), heartbeat_s=0.2).start()
    held(attempt, 150 * MB)
    workers = attempt.tagged()
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"
    assert attempt.outcome()["kill"]["survivors"] == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
