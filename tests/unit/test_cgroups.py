"""The RAM that cgroups leave: fake hierarchies, every expected number worked out in the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jupyter_gpugate.gate.machine.cgroups import CgroupRoom, Cgroups

GB = 1 << 30
MACHINE = 64 * GB
UNLIMITED_V1 = 9223372036854771712
UNLIMITED_V1_64K_PAGES = 9223372036854710272


@dataclass(frozen=True)
class Case:
    """A hierarchy: files below /sys/fs/cgroup by path, and what must come out."""

    why: str
    membership: str
    files: dict[str, str]
    expected: CgroupRoom | None
    mounted: dict[str, str] = field(default_factory=dict)  # mount below the root -> its cgroup


def v2(folder: str, **values: int | str) -> dict[str, str]:
    """The memory files of one level of the unified hierarchy."""
    names = {"max": "memory.max", "high": "memory.high", "current": "memory.current"}
    names |= {"swap": "memory.swap.max"}
    files = {f"{folder}/{names[key]}": f"{v}\n" for key, v in values.items() if key in names}
    stat = "".join(f"{key} {v}\n" for key, v in values.items() if key not in names)
    return {**files, f"{folder}/memory.stat": f"anon 1\n{stat}"}


def v1(folder: str, limit: int, usage: int, cache: int = 0, shmem: int = 0) -> dict[str, str]:
    """The memory files of one level of a v1 hierarchy; ``cache`` includes ``shmem``."""
    # A level's own counters say nothing about the levels below it: only total_* counts.
    own = "cache 7\nshmem 7\nactive_file 7\ninactive_file 7\n"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": f"{own}total_cache {cache}\ntotal_shmem {shmem}\n",
    }


CASES = [
    Case(
        "a container's own limit counts, not the host's memory",
        "0::/box\n",
        v2("box", max=16 * GB, current=4 * GB),
        CgroupRoom("/box", 12 * GB),  # 16 - 4
    ),
    Case(
        "a leaf without a limit has its parent's",
        "0::/user.slice/session.scope\n",
        v2("user.slice/session.scope", max="max", current=1 * GB)
        | v2("user.slice", max=20 * GB, current=5 * GB),
        CgroupRoom("/user.slice", 15 * GB),  # 20 - 5
    ),
    Case(
        "of several limits the one that leaves the least binds, not the smallest limit",
        "0::/a/b/c\n",
        v2("a/b/c", max=10 * GB, current=1 * GB)  # leaves 9
        | v2("a/b", max=12 * GB, current=8 * GB)  # leaves 4
        | v2("a", max=30 * GB, current=24 * GB),  # leaves 6
        CgroupRoom("/a/b", 4 * GB),
    ),
    Case(
        "file cache can be reclaimed and shared memory cannot",
        "0::/box\n",
        v2(
            "box",
            max=62 * GB,
            current=61 * GB,
            active_file=20 * GB,
            inactive_file=30 * GB,
            shmem=5 * GB,
            file=55 * GB,
        ),
        CgroupRoom("/box", 51 * GB),  # 62 - (61 - 20 - 30)
    ),
    Case(
        "above memory.high the kernel stalls, so it limits as well",
        "0::/box\n",
        v2("box", max=16 * GB, high=10 * GB, current=4 * GB),
        CgroupRoom("/box", 6 * GB),  # 10 - 4
    ),
    Case(
        "memory.high limits where there is no memory.max",
        "0::/box\n",
        v2("box", max="max", high=10 * GB, current=4 * GB),
        CgroupRoom("/box", 6 * GB),
    ),
    Case(
        "more used than allowed leaves nothing, not less than nothing",
        "0::/box\n",
        v2("box", max=4 * GB, current=5 * GB),
        CgroupRoom("/box", 0),
    ),
    Case(
        "a limit of 0 is a limit",
        "0::/box\n",
        v2("box", max=0, current=0),
        CgroupRoom("/box", 0),
    ),
    Case(
        "a limit above the machine's memory is none",
        "0::/box\n",
        v2("box", max=MACHINE + 1, current=60 * GB),
        None,
    ),
    Case(
        "a limit of just the machine's memory is one",
        "0::/box\n",
        v2("box", max=MACHINE, current=60 * GB),
        CgroupRoom("/box", 4 * GB),  # 64 - 60
    ),
    Case(
        "swap that is allowed is not memory that is free",
        "0::/a/b\n",
        v2("a/b", max=8 * GB, current=6 * GB, swap="max")
        | v2("a", max=9 * GB, current=6 * GB, swap=0),
        CgroupRoom("/a/b", 2 * GB),  # 8 - 6
    ),
    Case(
        "the root of a container's own namespace has its limit",
        "0::/\n",
        v2("", max=8 * GB, current=1 * GB),
        CgroupRoom("/", 7 * GB),
    ),
    Case(
        "the machine's root has no limit",
        "0::/\n",
        {"cgroup.procs": "", "memory.stat": "anon 1\n"},
        None,
    ),
    Case(
        "v1 counts shared memory as cache, and it is not free",
        "4:memory:/box\n2:cpu,cpuacct:/box\n",
        v1("memory/box", 20 * GB, 18 * GB, cache=12 * GB, shmem=4 * GB),
        CgroupRoom("/box", 10 * GB),  # 20 - (18 - (12 - 4))
    ),
    Case(
        "v1's marks for no limit are none, on every page size, and its parents still count",
        "4:memory:/a/b/c\n",
        v1("memory/a/b/c", UNLIMITED_V1, 1 * GB)
        | v1("memory/a/b", UNLIMITED_V1_64K_PAGES, 1 * GB)
        | v1("memory/a", 9 * GB, 1 * GB)
        | v1("memory", UNLIMITED_V1, 60 * GB),
        CgroupRoom("/a", 8 * GB),  # 9 - 1
    ),
    Case(
        "v1 without any limit leaves it to the machine",
        "4:memory:/a\n",
        v1("memory/a", UNLIMITED_V1, 9 * GB) | v1("memory", UNLIMITED_V1, 60 * GB),
        None,
    ),
    Case(
        "v1 whose statistics do not tell shared memory gives no cache back",
        "4:memory:/box\n",
        {
            **v1("memory/box", 20 * GB, 18 * GB),
            "memory/box/memory.stat": f"total_cache {12 * GB}\n",
        },
        CgroupRoom("/box", 2 * GB),  # 20 - 18
    ),
    Case(
        "hybrid with the memory controller on v1: the unified path says nothing about memory",
        "5:memory:/job/7\n1:name=systemd:/elsewhere\n0::/elsewhere\n",
        v1("memory/job/7", 6 * GB, 2 * GB) | {"unified/elsewhere/cgroup.procs": ""},
        CgroupRoom("/job/7", 4 * GB),  # 6 - 2
    ),
    Case(
        "hybrid with the memory controller on the unified hierarchy",
        "3:devices:/x\n1:name=systemd:/x\n0::/user.slice\n",
        v2("unified/user.slice", max=6 * GB, current=2 * GB),
        CgroupRoom("/user.slice", 4 * GB),
    ),
    Case(
        "a container without a namespace finds its own path mounted as the root",
        "4:memory:/docker/abc\n",
        v1("memory", 5 * GB, 1 * GB),
        CgroupRoom("/docker/abc", 4 * GB),  # 5 - 1
        mounted={"memory": "/docker/abc"},
    ),
    Case(
        "a level below a container's own path is found below its mount",
        "4:memory:/docker/abc/inner\n",
        v1("memory", 9 * GB, 1 * GB) | v1("memory/inner", 5 * GB, 1 * GB),
        CgroupRoom("/docker/abc/inner", 4 * GB),
        mounted={"memory": "/docker/abc"},
    ),
    Case(
        "a mounted path that only looks like a prefix is none",
        "0::/docker/abcdef\n",
        v2("", max=9 * GB, current=1 * GB) | v2("def", max=1 * GB, current=0),
        CgroupRoom("/docker/abc", 8 * GB),
        mounted={"": "/docker/abc"},
    ),
    Case(
        "a process moved out of the namespace that it sees is bound by what it sees",
        "0::/../sibling\n",
        v2("", max=9 * GB, current=1 * GB) | v2("../sibling", max=1 * GB, current=0),
        CgroupRoom("/", 8 * GB),
    ),
    Case(
        "a cache is no larger than what is left beside anonymous and shared memory",
        "0::/box\n",
        v2("box", max=16 * GB, current=10 * GB, inactive_file=11 * GB, shmem=4 * GB),
        CgroupRoom("/box", 12 * GB - 1),  # 16 - 4, and the byte of anonymous memory
    ),
    Case(
        "under v1 file pages that are locked are no cache that can be dropped",
        "4:memory:/box\n",
        {
            **v1("memory/box", limit=16 * GB, usage=10 * GB),
            "memory/box/memory.stat": (
                f"total_cache {9 * GB}\ntotal_shmem {1 * GB}\ntotal_unevictable {5 * GB}\n"
                f"total_active_file {1 * GB}\ntotal_inactive_file {2 * GB}\n"
            ),
        },
        CgroupRoom("/box", 9 * GB),  # 16 - (10 - 3)
    ),
    Case("a kernel without cgroups leaves it to the machine", "", {}, None),
]


def hierarchy(tmp_path: Path, case: Case) -> Cgroups:
    """Write the files of a case and read them."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    root.mkdir()
    (proc / "self" / "cgroup").write_text(case.membership)
    mounts = [
        f"31 23 0:28 {cgroup} {root / mount} rw - cgroup cgroup rw\n"
        for mount, cgroup in case.mounted.items()
    ]
    (proc / "self" / "mountinfo").write_text(
        "22 27 0:21 / /proc rw - proc proc rw\n" + "".join(mounts)
    )
    for path, text in case.files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Cgroups(str(proc), str(root))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_tightest_level_binds(tmp_path: Path, case: Case) -> None:
    """Free RAM is bounded by the level that leaves the least, whatever the version."""
    cgroups = hierarchy(tmp_path, case)

    assert cgroups.tightest(MACHINE) == case.expected
    cgroups.close()


def test_changes_are_seen(tmp_path: Path) -> None:
    """Usage, limits and the process's own place are read anew each time."""
    case = Case(
        "", "0::/a\n", v2("a", max=8 * GB, current=2 * GB) | v2("b", max=3 * GB, current=0), None
    )
    cgroups = hierarchy(tmp_path, case)
    assert cgroups.tightest(MACHINE) == CgroupRoom("/a", 6 * GB)

    (tmp_path / "cgroup/a/memory.current").write_text(f"{5 * GB}\n")
    assert cgroups.tightest(MACHINE) == CgroupRoom("/a", 3 * GB)
    (tmp_path / "cgroup/a/memory.max").write_text(f"{6 * GB}\n")
    assert cgroups.tightest(MACHINE) == CgroupRoom("/a", 1 * GB)
    (tmp_path / "cgroup/a/memory.max").write_text("max\n")
    assert cgroups.tightest(MACHINE) is None
    (tmp_path / "proc/self/cgroup").write_text("0::/b\n")
    assert cgroups.tightest(MACHINE) == CgroupRoom("/b", 3 * GB)
    cgroups.close()


def test_controller_enabled_later_counts(tmp_path: Path) -> None:
    """A limit that appears after the first reading binds from then on."""
    cgroups = hierarchy(tmp_path, Case("", "0::/a\n", {"a/cgroup.procs": ""}, None))
    assert cgroups.tightest(MACHINE) is None

    for path, text in v2("a", max=8 * GB, current=2 * GB).items():
        (tmp_path / "cgroup" / path).write_text(text)
    assert cgroups.tightest(MACHINE) == CgroupRoom("/a", 6 * GB)
    cgroups.close()


@pytest.mark.parametrize(
    ("why", "files", "error"),
    [
        ("its usage cannot be read", {"a/memory.max": "4096\n"}, OSError),
        (
            "its usage is not a number",
            {"a/memory.max": "4096\n", "a/memory.current": "?\n"},
            ValueError,
        ),
        ("its limit is not a number", {"a/memory.max": "lots\n"}, ValueError),
    ],
)
def test_limit_without_measure_is_an_error(
    tmp_path: Path, why: str, files: dict[str, str], error: type[Exception]
) -> None:
    """A limit whose room cannot be told is an error, never a level without a limit."""
    cgroups = hierarchy(tmp_path, Case(why, "0::/a\n", files, None))

    with pytest.raises(error):
        cgroups.tightest(MACHINE)
    cgroups.close()


def test_statistics_that_cannot_be_read_free_nothing(tmp_path: Path) -> None:
    """Without statistics no cache counts as reclaimable."""
    files = {"a/memory.max": f"{8 * GB}\n", "a/memory.current": f"{5 * GB}\n"}
    cgroups = hierarchy(tmp_path, Case("", "0::/a\n", files, None))

    assert cgroups.tightest(MACHINE) == CgroupRoom("/a", 3 * GB)
    cgroups.close()
