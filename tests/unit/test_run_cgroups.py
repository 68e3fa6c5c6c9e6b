"""A run is admitted by, and lives under, the memory limits of the notebook that submits it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.admission.room import earmark, ram_in, rooms
from jupyter_gpugate.core.decisions import Check, Earmark
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.samples import CgroupReading, Sample
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate.machine.cgroups import CgroupRoom, Cgroups
from jupyter_gpugate.gate.machine.reader import MachineReader
from jupyter_gpugate.proc import boot_id, start_ticks
from jupyter_gpugate.runs import notebook_cgroup
from jupyter_gpugate.runs.notebook_cgroup import notebook_cgroup_of
from tests.kit.core_builders import NOW, gate, granted_to, reasons, request, sample, start

# -- admission ----------------------------------------------------------------------------------


def machine(free: int = 40 * GB, bound_by: str = "machine", **cgroups: tuple[int, str]) -> Sample:
    """A machine with 60 GB available, what the gate's cgroup /gate leaves, and that of others."""
    seen = sample()
    assert seen.ram is not None
    others = {f"/{name}": CgroupReading(*told) for name, told in cgroups.items()}
    ram = replace(seen.ram, free_bytes=free, bound_by=bound_by, cgroup="/gate", cgroups=others)
    return replace(seen, ram=ram)


def ask(run_id: str, ram: int, cgroup: str = "", **fields: Any) -> Any:
    """A request for RAM alone, by a notebook of this cgroup."""
    return request(run_id, gpus=0, vram=None, ram=ram, cgroup=cgroup, **fields)


def started(state: GateState, seen: Sample) -> set[str]:
    """The runs that get a grant in this tick."""
    return set(granted_to(decide(state, seen, NOW)))


def test_the_gates_limit_does_not_bind_a_run_that_lives_elsewhere() -> None:
    """Beside the gate a run waits for what the gate's cgroup leaves, elsewhere it does not."""
    seen = machine(3 * GB, "/gate", notebook=(60 * GB, "machine"))
    state = gate(ask("beside", 20 * GB), ask("elsewhere", 20 * GB, "/notebook"))
    assert started(state, seen) == {"elsewhere"}
    (reason,) = reasons(state, seen)["beside"]
    assert reason.check is Check.EXTERNAL_HOLDS
    assert "the limit of cgroup /gate, in which the gate runs" in explain(state, reason)
    assert "used by others" not in explain(state, reason)


def test_a_notebooks_limit_binds_its_run_though_the_gate_has_none() -> None:
    """The reason names the cgroup, and whose it is; on the machine's own limit there is no word."""
    seen = machine(60 * GB, "machine", notebook=(3 * GB, "/notebook"))
    state = gate(ask("big", 4 * GB, "/notebook"), ask("fits", 2 * GB, "/notebook"))
    assert started(state, seen) == {"fits"}
    (reason,) = reasons(state, seen)["big"]
    assert reason.bound == "the limit of cgroup /notebook, in which its notebook runs"
    alone = gate(ask("huge", 70 * GB))
    assert not reasons(alone, seen)["huge"][0].bound


def test_only_runs_below_a_limit_take_from_it() -> None:
    """Reservations of others leave a cgroup's room as it is; within one tick all are counted."""
    seen = machine(60 * GB, "machine", a=(10 * GB, "/a"), b=(10 * GB, "/b"))
    live = start(gate(ask("a1", 6 * GB, "/a")), "a1", charges={RAM: 6 * GB})
    queued = gate(ask("a2", 6 * GB, "/a"), ask("b1", 6 * GB, "/b"))
    state = replace(live, queue=queued.queue, alike=queued.alike, run_sides=queued.run_sides)
    assert started(state, seen) == {"b1"}
    room = rooms(state, seen, NOW)
    assert room[ram_in("/a")].reserved_bytes == 6 * GB
    assert room[ram_in("/b")].reserved_bytes == 0
    assert room[RAM].reserved_bytes == 6 * GB
    assert started(gate(ask("b1", 6 * GB, "/b"), ask("b2", 6 * GB, "/b")), seen) == {"b1"}


def test_the_machine_binds_whatever_the_cgroups_leave() -> None:
    """A cgroup without a limit, or with a far one, gives no more than there is."""
    seen = machine(60 * GB, "machine", a=(50 * GB, "/a"))
    live = start(gate(ask("one", 30 * GB)), "one", charges={RAM: 30 * GB})
    queued = gate(ask("two", 40 * GB, "/a"))
    state = replace(live, queue=queued.queue, alike=queued.alike, run_sides=queued.run_sides)
    (reason,) = reasons(state, seen)["two"]
    assert (reason.check, reason.bound) == (Check.FIT, "")


def test_a_cgroup_that_was_not_read_yet_is_waited_for() -> None:
    """What is unknown is not free."""
    (reason,) = reasons(gate(ask("new", GB, "/new")), machine())["new"]
    assert (reason.check, reason.resource) == (Check.STALE, RAM)


def test_what_is_set_aside_counts_where_it_is_taken_from() -> None:
    """A head of one cgroup leaves the room below another's limit alone."""
    seen = machine(60 * GB, "machine", a=(10 * GB, "/a"), b=(10 * GB, "/b"))
    room = rooms(gate(ask("x", GB, "/a"), ask("y", GB, "/b")), seen, NOW)
    before = {key: one.room_bytes for key, one in room.items()}
    earmark(room, Earmark("head", Check.FIT, (), {RAM: 4 * GB}, "/a"))
    lost = {key: before[key] - one.room_bytes for key, one in room.items() if one.resource == RAM}
    assert lost == {RAM: 4 * GB, ram_in("/a"): 4 * GB, ram_in("/b"): 0}


# -- readings -----------------------------------------------------------------------------------


def write(root: Path, **files: str) -> None:
    """Files of a v2 tree: the limit and the usage of each cgroup, in MB."""
    for name, figures in files.items():
        limit, usage = figures.split()
        folder = root / "fs" / name.replace("__", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(limit if limit == "max" else str(int(limit) * MB))
        (folder / "memory.current").write_text(str(int(usage) * MB))
        (folder / "memory.stat").write_text("anon 0\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A machine of 64 GB; the gate is in /gate, which leaves 1,000 MB."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/gate\n")
    (proc / "self" / "mountinfo").write_text("")
    (proc / "meminfo").write_text("MemTotal: 67108864 kB\nMemAvailable: 41943040 kB\n")
    write(tmp_path, gate="2000 1000", user="9000 4000", user__a="max 1", user__b="3000 1000")
    return tmp_path


def test_the_limits_above_any_cgroup_are_read(tree: Path) -> None:
    """Each level above it counts, and one that is gone has no limits to read."""
    read = Cgroups(str(tree / "proc"), str(tree / "fs"))
    assert read.tightest(64 * GB) == CgroupRoom("/gate", 1000 * MB)
    assert read.own == "/gate"
    assert read.tightest_of("/user/a", 64 * GB) == CgroupRoom("/user", 5000 * MB)
    assert read.tightest_of("/user/b", 64 * GB) == CgroupRoom("/user/b", 2000 * MB)
    with pytest.raises(FileNotFoundError):
        read.tightest_of("/user/gone", 64 * GB)
    with pytest.raises(FileNotFoundError):
        read.tightest_of("/../outside", 64 * GB)
    read.close()


def test_a_machine_is_read_with_the_cgroups_of_its_runs(tree: Path) -> None:
    """A run whose cgroup is gone lives where the gate does."""
    reader = MachineReader(str(tree / "proc"), str(tree / "fs"))
    reader.watched = frozenset({"/user/a", "/user/gone"})
    ram = reader.read().ram
    reader.close()
    assert ram is not None
    assert (ram.cgroup, ram.bound_by) == ("/gate", "/gate")
    assert ram.cgroups == {
        "/user/a": CgroupReading(5000 * MB, "/user"),
        "/user/gone": CgroupReading(1000 * MB, "/gate"),
    }


# -- where a run is to live ---------------------------------------------------------------------


def kernel(**fields: Any) -> dict[str, Any]:
    """The kernel of a submit: this process."""
    ticks = start_ticks(os.getpid())
    return {"pid": os.getpid(), "start_ticks": ticks, "boot_id": boot_id(), **fields}


@pytest.fixture
def places(tree: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The cgroups of the gate ("self") and of the kernel, in the tree; all may be joined."""
    found: dict[str, dict[str, str]] = {"self": {"": "/gate"}, str(os.getpid()): {"": "/user/b"}}
    for folder in ("", "gate", "user", "user/b"):
        (tree / "fs" / folder / "cgroup.procs").write_text("")
        (tree / "fs" / folder / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(notebook_cgroup, "memberships", lambda pid: found.get(str(pid), {}))
    monkeypatch.setattr(notebook_cgroup, "cgroup_directory", lambda _, place: f"{tree}/fs{place}")
    return found


def test_a_run_joins_the_cgroup_of_its_notebook(places: dict[str, dict[str, str]]) -> None:
    """Where the notebook lives beside the gate, or is not known for certain, there is none."""
    assert notebook_cgroup_of(kernel()) == ({"": "/user/b"}, "/user/b", "")
    for stranger in (None, {}, kernel(start_ticks=1), kernel(boot_id="other"), kernel(pid=1)):
        assert notebook_cgroup_of(stranger) == ({}, "", "")
    places["self"] = {"": "/user/b"}
    assert notebook_cgroup_of(kernel()) == ({}, "", "")


@pytest.mark.usefixtures("places")
def test_a_run_that_cannot_join_it_says_whose_limits_hold(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without permission, or where a cgroup takes no processes, the difference is one sentence."""
    (tree / "fs/user/b/cgroup.subtree_control").write_text("memory\n")
    cgroup = notebook_cgroup_of(kernel())
    assert (cgroup.joins, cgroup.memory) == ({}, "")
    assert cgroup.note == (
        "the run cannot be moved into cgroup /user/b of its notebook, so its limit of 3,000 MB "
        "does not apply; the limit of 2,000 MB of the gate's cgroup /gate applies"
    )
    monkeypatch.setattr(os, "access", lambda path, _: "/user/b" not in path)
    (tree / "fs/user/b/cgroup.subtree_control").write_text("")
    assert notebook_cgroup_of(kernel()).note == cgroup.note
    for name in ("gate", "user", "user__b"):
        write(tree, **{name: "max 1"})
    assert not notebook_cgroup_of(kernel()).note
