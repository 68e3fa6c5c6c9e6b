"""The machine reading: RAM in numbers worked out by hand, and what an unreadable thing does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpugate.core.samples import Fault, Process, RamReading
from jupyter_gpugate.gate.machine.reader import MachineReader
from tests.kit.fake_proc import MB, FakeProc, gone_is_gone, open_descriptors

GB = 1 << 30
BOOT_ID = "458687a4-cf47-4815-9871-412a901094f9"


class Machine:
    """A machine of plain files, and a clock that stands still until it is set."""

    def __init__(self, folder: Path) -> None:
        self.proc = FakeProc(folder / "proc")
        self.cgroup = folder / "cgroup"
        self.shm = folder / "shm"
        self.now = 100.0
        self.memory(total=64 * GB, available=40 * GB)
        self.proc.write("sys/kernel/random/boot_id", f"{BOOT_ID}\n")
        self.proc.write("self/cgroup", "0::/box\n")
        self.limit("max", current=0)
        self.reader = MachineReader(
            str(self.proc.root), str(self.cgroup), str(self.shm), lambda: self.now
        )

    def memory(self, *, total: int, available: int, **more: int) -> None:
        lines = {"MemTotal": total, "MemFree": 1 * GB, "MemAvailable": available, **more}
        # Swap and huge pages are there and count for nothing.
        lines |= {"SwapTotal": 99 * GB, "SwapFree": 99 * GB}
        text = "".join(f"{name}: {size >> 10:>14} kB\n" for name, size in lines.items())
        self.proc.write("meminfo", f"{text}HugePages_Free: 7\n")

    def arc(self, *, size: int, least: int) -> None:
        self.proc.write(
            "spl/kstat/zfs/arcstats",
            "13 1 0x01 147 39984 5 6\nname type data\n"
            f"hdr_size 4 1\nc 4 9\nc_min 4 {least}\nc_max 4 {99 * GB}\nsize 4 {size}\n",
        )

    def limit(self, limit: int | str, *, current: int) -> None:
        folder = self.cgroup / "box"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")
        (folder / "memory.stat").write_text("active_file 0\ninactive_file 0\n")

    def ram(self) -> RamReading:
        ram = self.reader.read().ram
        assert ram is not None
        return ram


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """64 GB of which 40 are available, no limit, no ZFS."""
    gone_is_gone(monkeypatch)
    machine = Machine(tmp_path)
    yield machine
    machine.reader.close()


@dataclass(frozen=True)
class Case:
    """What the machine shows, and what must come out, in GB."""

    why: str
    available: int
    expected_available: int
    expected_free: int
    bound_by: str = "machine"
    limit: int | None = None
    current: int = 0
    arc: tuple[int, int] | None = None  # size, c_min


CASES = [
    Case("without limits the machine's memory binds", 40, 40, 40),
    Case("the cgroup binds where it leaves less", 40, 40, 12, "/box", limit=16, current=4),
    Case("a full host binds though the limit is far", 2, 2, 2, limit=60, current=8),
    Case("the machine is named where both leave the same", 12, 12, 12, limit=16, current=4),
    Case("ZFS gives back what is above its least", 40, 47, 47, arc=(8, 1)),  # 40 + 8 - 1
    Case("ZFS below its least gives nothing back", 40, 40, 40, arc=(1, 2)),
    Case("ZFS never makes more than there is", 60, 64, 64, arc=(9, 1)),
    Case("ZFS lifts no limit", 40, 47, 3, "/box", limit=4, current=1, arc=(8, 1)),
    Case("nothing available is 0, and a reading", 0, 0, 0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_free_ram(machine: Machine, case: Case) -> None:
    """Free RAM is MemAvailable and reclaimable ARC, bounded by the cgroup, whose name is told."""
    machine.memory(total=64 * GB, available=case.available * GB)
    if case.limit is not None:
        machine.limit(case.limit * GB, current=case.current * GB)
    if case.arc is not None:
        machine.arc(size=case.arc[0] * GB, least=case.arc[1] * GB)
    ram = machine.ram()

    assert (ram.total_bytes, ram.available_bytes, ram.free_bytes, ram.bound_by) == (
        64 * GB,
        case.expected_available * GB,
        case.expected_free * GB,
        case.bound_by,
    )
    assert ram.used_bytes == (64 - case.expected_available) * GB


@pytest.mark.parametrize(("before", "after"), [(40, 30), (30, 40)])
def test_smaller_of_two_looks_counts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    """What is available before and after the walk is compared, and the smaller counts."""
    machine.memory(total=64 * GB, available=before * GB)
    during_the_walk(monkeypatch, lambda: machine.memory(total=64 * GB, available=after * GB))
    ram = machine.ram()

    assert (ram.available_bytes, ram.free_bytes) == (30 * GB, 30 * GB)


@pytest.mark.parametrize(("before", "after"), [(4, 9), (9, 4)])
def test_smaller_of_two_looks_counts_for_limits(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    """The same holds for what a cgroup leaves, and the level that was tighter is named."""
    machine.limit(16 * GB, current=before * GB)
    during_the_walk(monkeypatch, lambda: machine.limit(16 * GB, current=after * GB))
    ram = machine.ram()

    assert (ram.free_bytes, ram.bound_by) == (7 * GB, "/box")  # 16 - 9


def during_the_walk(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen while the processes are being listed."""
    listdir = os.listdir

    def list_meanwhile(path: str) -> list[str]:
        happens()
        return listdir(path)

    monkeypatch.setattr(os, "listdir", list_meanwhile)


def test_reading_is_whole(machine: Machine) -> None:
    """One reading has RAM, processes, kernels, the boot, and a healthy reader."""
    kernel = ("python", "-m", "ipykernel_launcher")
    environ = ("JPY_SESSION_NAME=/n/a.ipynb",)
    machine.proc.start(50, ticks=7, private=9 * MB, command=kernel, environ=environ)
    reading = machine.reader.read()

    assert reading.processes[50] == Process(50, 7, 1, os.getuid(), 9 * MB)
    assert [found.name for found in reading.kernels] == ["/n/a.ipynb"]
    assert reading.boot_id == BOOT_ID
    assert reading.ram is not None
    assert reading.ram.taken_at == 100.0
    health = reading.health
    assert (health.name, health.present, health.taken_at) == ("machine", True, 100.0)
    assert (health.fault, dict(health.detail)) == (None, {})


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "MemTotal: 64 kB\n",
        "MemAvailable: 64 kB\n",
        "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
        "MemTotal: 64 kB\nMemAvailable: 65 kB\n",
        "MemTotal: lots kB\nMemAvailable: some kB\n",
    ],
    ids=["missing", "empty", "no available", "no total", "total 0", "more than all", "no numbers"],
)
def test_unreadable_memory_is_absent(machine: Machine, text: str | None) -> None:
    """Memory that cannot be read, or cannot be, is no reading at all, never 0; the rest goes on."""
    if text is None:
        (machine.proc.root / "meminfo").unlink()
        machine.reader.close()
    else:
        machine.proc.write("meminfo", text)
    reading = machine.reader.read()

    assert reading.ram is None
    assert set(reading.processes) == {1}
    assert reading.health.taken_at is None
    assert reading.health.fault is not None
    assert reading.health.fault.code == "meminfo"


def test_limit_that_cannot_be_measured_is_no_free_ram(machine: Machine) -> None:
    """A cgroup that limits and hides its usage makes RAM unreadable, not free."""
    machine.limit(16 * GB, current=0)
    (machine.cgroup / "box" / "memory.current").unlink()
    reading = machine.reader.read()

    assert reading.ram is None
    assert reading.health.fault is not None
    assert reading.health.fault.code == "cgroup"


def test_memory_lost_during_the_walk_is_absent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look of two is not enough."""
    meminfo = machine.proc.root / "meminfo"
    during_the_walk(monkeypatch, lambda: os.truncate(meminfo, 0))

    assert machine.reader.read().ram is None


def test_processes_that_cannot_be_listed_leave_ram(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a process table RAM is still read, and the health says what is missing."""

    def refuse(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(os, "listdir", refuse)
    reading = machine.reader.read()

    assert reading.ram is not None
    assert reading.processes == {}
    assert reading.health.fault is not None
    assert reading.health.fault.code == "processes"


def test_fault_lasts_and_passes(machine: Machine) -> None:
    """A fault keeps its first moment while it lasts, the last good reading its own, and it ends."""
    machine.reader.read()
    machine.now = 101.0
    machine.proc.write("meminfo", "")
    first = machine.reader.read().health
    machine.now = 102.0
    second = machine.reader.read().health
    machine.memory(total=64 * GB, available=40 * GB)
    machine.now = 103.0
    third = machine.reader.read().health

    assert isinstance(second.fault, Fault)
    assert first.fault == second.fault
    assert (second.fault.since, second.taken_at) == (101.0, 100.0)
    assert (third.fault, third.taken_at) == (None, 103.0)


def test_shared_memory_has_a_limit_of_its_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may still be written to /dev/shm is told beside RAM: blocks for users, in bytes."""
    asked = []

    def statvfs(path: str) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(f_bavail=100, f_bfree=900, f_frsize=4096, f_bsize=1 << 20)

    monkeypatch.setattr(os, "statvfs", statvfs)

    assert machine.ram().shm_free_bytes == 409_600  # 100 * 4096
    assert asked == [str(machine.shm)]


def test_missing_shared_memory_is_absent(machine: Machine) -> None:
    """Without /dev/shm its free space is unknown, not 0, and RAM is read."""
    assert machine.ram().shm_free_bytes is None
    machine.shm.mkdir()

    assert machine.ram().shm_free_bytes is not None


def test_boot_is_read_once_it_can_be(machine: Machine) -> None:
    """An unreadable boot id is empty and asked for again."""
    boot_id = machine.proc.root / "sys/kernel/random/boot_id"
    boot_id.unlink()
    assert machine.reader.read().boot_id == ""
    boot_id.write_text(f"{BOOT_ID}\n")

    assert machine.reader.read().boot_id == BOOT_ID


def test_hidden_processes_leave_the_totals(machine: Machine) -> None:
    """Under hidepid the totals are the same; only who holds what is not known."""
    whole = machine.reader.read()
    machine.proc.end(1)
    machine.proc.start(50)
    partial = machine.reader.read()

    assert partial.ram == whole.ram
    assert partial.health.fault is None
    assert "hidden" in partial.health.detail["processes"]


def test_a_cache_is_no_larger_than_what_nothing_else_can_hold(machine: Machine) -> None:
    """Whatever ZFS says of its size, memory that others certainly hold is not given back."""
    machine.memory(
        total=32 * GB,
        available=6 * GB,
        AnonPages=16 * GB,
        Shmem=2 * GB,
        SUnreclaim=1 * GB,
        Hugetlb=3 * GB,
    )
    machine.arc(size=64 * GB, least=0)
    assert machine.ram().available_bytes == 10 * GB  # 32 - 16 - 2 - 1 - 3

    machine.arc(size=2 * GB, least=0)
    assert machine.ram().available_bytes == 8 * GB


def test_what_no_process_shows_is_read_of_the_machine(machine: Machine) -> None:
    """Shared memory, locked pages and huge pages are told, a pool apart from what exceeds it."""
    machine.memory(
        total=32 * GB,
        available=6 * GB,
        Shmem=2 * GB,
        Mlocked=1 * GB,
        Hugetlb=4 * GB,
        Hugepagesize=1 * GB,
        HugePages_Surp=1 << 10,
    )
    ram = machine.ram()
    assert (ram.shared_bytes, ram.huge_pool_bytes) == (2 * GB, 3 * GB)
    assert ram.unmovable_bytes == 4 * GB  # 2 shared, 1 locked, 1 beyond the pool


def test_reader_reads_on_after_close(machine: Machine) -> None:
    """Closing gives every descriptor back and loses nothing: the next reading opens them anew."""
    before = open_descriptors()
    first = machine.reader.read()
    assert open_descriptors() > before
    machine.reader.close()
    assert open_descriptors() == before

    assert machine.reader.read() == first
