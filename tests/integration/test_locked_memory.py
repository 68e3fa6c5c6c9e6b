"""File pages that the kernel cannot drop, and huge pages, as a supervisor counts them."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpugate.programs.supervisor import meter as meter_module
from jupyter_gpugate.programs.supervisor.memory import Reading, read_memory
from jupyter_gpugate.programs.supervisor.meter import RamMeter

MB = 1 << 20


def need_locking() -> None:
    """Skip where 120 MB may not be locked."""
    page = mmap.mmap(-1, 120 * MB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(120 * MB)):
        pytest.skip("needs root or a larger RLIMIT_MEMLOCK")


LOCKING = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def mapped(path, size):
    with open(path, "rb") as file:
        at = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(),
                       ctypes.c_long(0))
    ctypes.string_at(at, size)
    return at
def lock(at, size):
    if libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(size)): sys.exit("not allowed")
def anonymous(size):
    at = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE,
                   mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    ctypes.memset(at, 1, size)
    return at
"""
#: What a process does with a file of 120 MB, and what it then holds of it and of memory, in MB.
LOCKERS = {
    "a file": ("lock(mapped(path, size), size)", 120),
    "memory beside a mapped file": ("lock(anonymous(size), size); mapped(path, size)", 120),
    "both": ("lock(anonymous(size), size); lock(mapped(path, size), size)", 240),
    "everything": ("anonymous(size); mapped(path, size); libc.mlockall(3)", 240),
    "nothing": ("mapped(path, size)", 0),
}


@pytest.mark.parametrize(("what", "most"), LOCKERS.values(), ids=LOCKERS)
def test_locked_file_pages_are_held_and_others_are_not(
    tmp_path: Path, what: str, most: int
) -> None:
    """The kernel cannot drop file pages that are locked; anonymous ones are not counted again."""
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(range(256)) * (120 * 4096))
    need_locking()
    code = (
        f"{LOCKING}\npath, size = {str(weights)!r}, 120 << 20\n{what}\nprint(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin
        assert program.stdout
        program.stdout.readline()
        reading = read_memory(program.pid)
        program.stdin.close()
    assert reading is not None
    assert most * MB <= reading.held < (most + 40) * MB


def test_a_file_locked_by_several_is_held_once(tmp_path: Path) -> None:
    """Processes that lock the same pages hold a share each."""
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(range(256)) * (120 * 4096))
    need_locking()
    code = (
        f"{LOCKING}\nimport os\nlock(mapped({str(weights)!r}, 120 << 20), 120 << 20)\n"
        "print(flush=True); input()"
    )
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for program in programs:
        assert program.stdout
        program.stdout.readline()
    readings = [read_memory(program.pid) for program in programs]
    for program in programs:
        program.communicate()
    total = sum(reading.held for reading in readings if reading is not None)
    assert 120 * MB <= total < 170 * MB


@pytest.mark.parametrize(("surplus", "charged"), [(0, 0), (64, 64), (500, 200)])
def test_only_huge_pages_beyond_the_reserved_pool_are_held(
    monkeypatch: pytest.MonkeyPatch, surplus: int, charged: int
) -> None:
    """A reserved pool is out of what is available, used or not; surplus pages come out of that."""
    monkeypatch.setattr(meter_module, "surplus_huge_pages", lambda: surplus * MB)
    pages = Reading(10 * MB, 0, 20 * MB, exact=True, huge=100 * MB)
    monkeypatch.setattr(meter_module, "read_memory", lambda _: pages)
    meter = RamMeter()
    meter.read([1, 2], 0.0)
    assert (meter.held, meter.shared) == ((20 + charged) * MB, charged * MB)
