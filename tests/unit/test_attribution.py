"""Attribution: whose each byte of a sample is, and what is left for everybody else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core.memory.attribution import (
    EMPTY_LIST,
    EXTERNAL_LISTED,
    FOREIGN_PIDS,
    NO_LIST,
    NO_PROCESS_TABLE,
    attribute,
)
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    Holder,
    HolderKind,
)
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    Fault,
    GpuProcess,
    KernelProcess,
    Process,
    ProcessKey,
    RamReading,
    Sample,
)
from jupyter_gpugate.core.shares import Attribution, ExternalProcess, ResourceAttribution

GPU = "GPU-0"
OTHER_GPU = "GPU-1"
INIT = 1

RUN = Holder(HolderKind.RUN, "run-a")
OTHER_RUN = Holder(HolderKind.RUN, "run-b")
KERNEL = Holder(HolderKind.KERNEL, "lab.ipynb")
SERVER = Holder(HolderKind.MODEL_SERVER, "clip")


def process(pid: int, parent: int = INIT, mb: int = 0, ticks: int | None = None) -> Process:
    """Make a process that started at ``ticks``, by default in the order of pids."""
    return Process(pid, pid if ticks is None else ticks, parent, 1000, mb * MB)


def key(pid: int) -> ProcessKey:
    """Name a process that `process` made with its default ticks."""
    return ProcessKey(pid, pid)


def gpu(
    used_mb: int,
    *rows: GpuProcess,
    uuid: str = GPU,
    total: int = 80 * GB,
    reserved: int | None = 0,
    **changes: Any,
) -> DeviceReading:
    """Make the reading of a board whose list holds ``rows``."""
    free = total - (reserved or 0) - used_mb * MB
    reading = DeviceReading(Device(uuid, "H200", total, 0), 1.0, free, reserved, rows)
    return replace(reading, **changes)


def row(pid: int, mb: int | None, kinds: str = "C") -> GpuProcess:
    """Make one row of a device's process list."""
    return GpuProcess(pid, None if mb is None else mb * MB, kinds)


def sample(
    *processes: Process, used_mb: int | None = None, devices: tuple[DeviceReading, ...] = ()
) -> Sample:
    """Make a sample of the given processes; init is always there."""
    ram = None
    if used_mb is not None:
        available = 64 * GB - used_mb * MB
        ram = RamReading(1.0, 64 * GB, available, available)
    table = {p.pid: p for p in (process(INIT, 0), *processes)}
    return Sample(ram=ram, processes=table, devices=devices)


def megabytes(shares: ResourceAttribution) -> dict[str, int]:
    """Read a share-out as name -> MB, with the totals under their own names."""
    named = {holder.name: held // MB for holder, held in shares.by_holder.items()}
    return {
        **named,
        "external": shares.external_bytes // MB,
        "overlap": shares.overlap_bytes // MB,
    }


def on_gpu(attribution: Attribution, uuid: str = GPU) -> ResourceAttribution:
    """Pick one device's share-out."""
    return attribution.resources[uuid]


# -- the arithmetic -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "run_held", "others_held", "attributed", "external", "used", "charge", "reserved"),
    [
        ("gpu", 543, 222, 765, 0, 765, 2049, 1506),
        ("ram", 2480, 1674, 4154, 9386, 13540, 3515, 1035),
    ],
)
def test_the_arithmetic_of_one_snapshot_holds(
    *,
    resource: str,
    run_held: int,
    others_held: int,
    attributed: int,
    external: int,
    used: int,
    charge: int,
    reserved: int,
) -> None:
    """What runs and servers hold, plus external, is what is used; charge - held is reserved."""
    machine = sample(
        process(10, mb=run_held),
        process(20, mb=others_held),
        used_mb=used,
        devices=(gpu(used, row(10, run_held), row(20, others_held)),),
    )

    result = attribute(machine, {key(10): RUN, key(20): SERVER})

    shares = result.resources[GPU if resource == "gpu" else RAM]
    assert shares.by_holder == {RUN: run_held * MB, SERVER: others_held * MB}
    assert shares.attributed_bytes == attributed * MB
    assert shares.external_bytes == external * MB
    assert shares.used_bytes == used * MB
    assert charge * MB - shares.by_holder[RUN] == reserved * MB


def test_what_no_process_explains_is_external_and_said_to_be_unlisted() -> None:
    """A device that uses more than its list shows keeps the remainder as external (B005, B014)."""
    machine = sample(process(10), process(30, mb=1), devices=(gpu(20_000, row(10, 4_000)),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"run-a": 4_000, "external": 16_000, "overlap": 0}
    assert shares.external == (ExternalProcess(0, None, 16_000 * MB, "unlisted"),)
    assert shares.fault is None


def test_a_list_that_shows_more_than_the_device_uses_overlaps() -> None:
    """External is never negative: what is counted twice is called overlap (B005)."""
    machine = sample(
        process(10, mb=3_000),
        process(11, 10, mb=3_000),
        used_mb=4_000,
        devices=(gpu(5_000, row(10, 6_000)),),
    )

    result = attribute(machine, {key(10): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 6_000, "external": 0, "overlap": 2_000}
    assert megabytes(on_gpu(result)) == {"run-a": 6_000, "external": 0, "overlap": 1_000}


def test_what_the_driver_keeps_for_itself_is_nobodys() -> None:
    """The driver's reserve is neither used nor external."""
    machine = sample(process(10), devices=(gpu(1_000, row(10, 1_000), reserved=600 * MB),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"run-a": 1_000, "external": 0, "overlap": 0}


# -- whose a process is -------------------------------------------------------------------------


def test_a_process_belongs_to_the_nearest_known_process_above_it() -> None:
    """A run inside a kernel's tree, and a server inside a run's, have what they hold themselves."""
    machine = sample(
        process(10, mb=1),
        process(11, 10, mb=2),
        process(20, 11, mb=4),
        process(21, 20, mb=8),
        process(30, 21, mb=16),
        process(31, 30, mb=32),
        used_mb=63,
    )

    result = attribute(machine, {key(10): KERNEL, key(20): RUN, key(30): SERVER})

    assert megabytes(result.resources[RAM]) == {
        "lab.ipynb": 3,
        "run-a": 12,
        "clip": 48,
        "external": 0,
        "overlap": 0,
    }


def test_a_kernel_that_a_run_starts_is_the_runs() -> None:
    """A run that executes a notebook is charged with that notebook's kernel."""
    machine = replace(
        sample(process(10, mb=1), process(11, 10, mb=2), process(12, 11, mb=4), used_mb=7),
        kernels=(KernelProcess(key(11), "made-by-the-run.ipynb", "1000"),),
    )

    result = attribute(machine, {key(10): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 7, "external": 0, "overlap": 0}


def test_kernels_of_the_sample_are_holders() -> None:
    """A notebook kernel that the machine reader found holds what its tree holds."""
    machine = replace(
        sample(process(10, mb=1), process(11, 10, mb=2), used_mb=3),
        kernels=(KernelProcess(key(10), "lab.ipynb", "1000"),),
    )

    result = attribute(machine, {})

    assert megabytes(result.resources[RAM]) == {"lab.ipynb": 3, "external": 0, "overlap": 0}


def test_sessions_and_groups_do_not_matter() -> None:
    """Nested sub-kernels, each in a session of its own, belong to the run above them (B118)."""
    nested = [process(pid, pid - 1, mb=1) for pid in range(11, 20)]

    result = attribute(sample(process(10), *nested, used_mb=9), {key(10): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 9, "external": 0, "overlap": 0}


def test_a_process_whose_parent_is_gone_stays_whose_it_was() -> None:
    """A worker given to init after its parent's death is remembered, and so are its children."""
    roots = {key(10): RUN}
    before = attribute(sample(process(10), process(11, 10, mb=5), used_mb=8), roots)

    orphaned = sample(process(11, INIT, mb=5), process(12, 11, mb=3), used_mb=8)
    after = attribute(orphaned, roots, before.holder_of)
    later = attribute(orphaned, {}, after.holder_of)

    for result in (after, later):
        assert megabytes(result.resources[RAM]) == {"run-a": 8, "external": 0, "overlap": 0}


def test_an_orphan_that_a_kernel_takes_in_stays_the_runs() -> None:
    """What a process is remembered by outranks the kernel that it was given to."""
    orphaned = sample(process(10), process(30, 10, mb=5), used_mb=5)

    result = attribute(orphaned, {key(10): KERNEL}, {key(30): RUN})

    assert result.resources[RAM].by_holder == {KERNEL: 0, RUN: 5 * MB}


def test_a_kernel_below_another_kernel_has_what_it_holds() -> None:
    """A process that turns out to be a kernel leaves the kernel that started it."""
    machine = sample(process(10, mb=1), process(11, 10, mb=2), used_mb=3)
    before = attribute(machine, {key(10): KERNEL})
    found = replace(machine, kernels=(KernelProcess(key(11), "inner.ipynb", "1000"),))

    after = attribute(found, {key(10): KERNEL}, before.holder_of)

    assert megabytes(after.resources[RAM]) == {
        "lab.ipynb": 1,
        "inner.ipynb": 2,
        "external": 0,
        "overlap": 0,
    }


def test_a_kernel_process_that_a_run_names_is_the_runs() -> None:
    """A run's own word about its tree outranks what a process looks like."""
    machine = replace(
        sample(process(11, mb=2), used_mb=2),
        kernels=(KernelProcess(key(11), "inner.ipynb", "1000"),),
    )

    result = attribute(machine, {key(11): RUN})

    assert result.resources[RAM].by_holder == {RUN: 2 * MB}


def test_an_orphan_of_a_kernel_stays_the_kernels() -> None:
    """A child that outlives its notebook kernel is remembered by it."""
    result = attribute(sample(process(30, mb=5), used_mb=5), {}, {key(30): KERNEL})

    assert megabytes(result.resources[RAM]) == {"lab.ipynb": 5, "external": 0, "overlap": 0}


def test_what_is_known_now_outranks_what_is_remembered() -> None:
    """A process moves to the server above it once that is known to be one."""
    machine = sample(process(10), process(20, 10), process(21, 20, mb=5), used_mb=5)
    before = attribute(machine, {key(10): RUN})

    after = attribute(machine, {key(10): RUN, key(20): SERVER}, before.holder_of)

    assert megabytes(after.resources[RAM]) == {"run-a": 0, "clip": 5, "external": 0, "overlap": 0}


def test_a_table_that_could_not_be_read_forgets_nobody() -> None:
    """An orphan is still known after a moment without a process table."""
    blind = attribute(Sample(), {}, {key(30): RUN})

    result = attribute(sample(process(30, mb=5), used_mb=5), {}, blind.holder_of)

    assert megabytes(result.resources[RAM]) == {"run-a": 5, "external": 0, "overlap": 0}


def test_the_dead_are_forgotten() -> None:
    """A process that neither lives nor is listed by a device is not remembered for ever."""
    result = attribute(sample(used_mb=5), {key(30): RUN}, {key(30): RUN})

    assert result.holder_of == {}


@pytest.mark.parametrize("known", ["root", "remembered"])
def test_a_reused_pid_inherits_nothing(known: str) -> None:
    """A process that only has the pid of a run's process is external (B125)."""
    machine = sample(process(10, mb=5, ticks=999), used_mb=5, devices=(gpu(7, row(10, 7)),))
    holders = {ProcessKey(10, 10): RUN}

    result = attribute(machine, holders) if known == "root" else attribute(machine, {}, holders)

    for shares in result.resources.values():
        assert shares.by_holder == {}
    assert result.holder_of == {}


def test_a_parent_is_older_than_its_child() -> None:
    """A younger process with the pid of a dead parent is no parent (B125)."""
    machine = sample(process(10, ticks=500), process(11, 10, mb=5, ticks=400), used_mb=5)

    result = attribute(machine, {ProcessKey(10, 500): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 0, "external": 5, "overlap": 0}


def test_a_parent_of_the_same_tick_is_a_parent() -> None:
    """A child forked within one clock tick of its parent's start still belongs to it."""
    machine = sample(process(10, ticks=500), process(11, 10, mb=5, ticks=500), used_mb=5)

    result = attribute(machine, {ProcessKey(10, 500): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 5, "external": 0, "overlap": 0}


@pytest.mark.parametrize("known", [10, 11])
def test_a_cycle_of_parents_ends(known: int) -> None:
    """Two processes that name each other as parents are both whose either is."""
    machine = sample(
        process(10, 11, mb=1, ticks=5),
        process(11, 10, mb=2, ticks=5),
        process(12, 12, mb=4),
        used_mb=7,
    )

    result = attribute(machine, {ProcessKey(known, 5): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 3, "external": 4, "overlap": 0}


@pytest.mark.parametrize(("steps", "held"), [(24, 1), (25, 0)])
def test_at_most_24_parents_are_climbed(steps: int, held: int) -> None:
    """The limit counts steps from the process itself, whatever was climbed before it."""
    chain = [process(pid, pid - 1, mb=int(pid == 10 + steps)) for pid in range(11, 11 + steps)]

    result = attribute(sample(process(10), *chain, used_mb=1), {key(10): RUN})

    assert megabytes(result.resources[RAM])["run-a"] == held


def test_replicas_of_a_server_are_one_server() -> None:
    """`clip#1` and `clip#2` are the one server `clip`; a name with no number keeps its sign."""
    machine = sample(process(10, mb=1), process(20, mb=2), process(30, mb=4), used_mb=7)
    replicas = {
        key(10): Holder(HolderKind.MODEL_SERVER, "clip#1"),
        key(20): Holder(HolderKind.MODEL_SERVER, "clip#2"),
        key(30): Holder(HolderKind.MODEL_SERVER, "f#sharp"),
    }

    result = attribute(machine, replicas)

    assert megabytes(result.resources[RAM]) == {
        "clip": 3,
        "f#sharp": 4,
        "external": 0,
        "overlap": 0,
    }


# -- RAM ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "held"),
    [({}, 500), ({"run-a": 300 * MB}, 300), ({"run-a": 900 * MB}, 500), ({"run-b": 0}, 500)],
)
def test_a_runs_ram_is_the_smaller_of_its_report_and_its_processes(
    report: Mapping[str, int], held: int
) -> None:
    """A report lowers what processes show, since they share pages; it never raises it."""
    machine = sample(process(10, mb=200), process(11, 10, mb=300), used_mb=1_000)

    result = attribute(machine, {key(10): RUN}, run_ram=report)

    assert megabytes(result.resources[RAM])["run-a"] == held


def test_an_exit_counts_as_soon_as_the_sample_shows_it() -> None:
    """A run's last report holds nothing once no process of it is left."""
    result = attribute(sample(used_mb=900), {key(10): RUN}, run_ram={"run-a": 800 * MB})

    assert megabytes(result.resources[RAM]) == {"external": 900, "overlap": 0}


def test_a_report_speaks_for_runs_only() -> None:
    """A kernel whose notebook is named like a run is not lowered by the run's report."""
    named = Holder(HolderKind.KERNEL, "run-a")

    result = attribute(
        sample(process(10, mb=5), used_mb=5), {key(10): named}, run_ram={"run-a": 1 * MB}
    )

    assert megabytes(result.resources[RAM])["run-a"] == 5


def test_ram_that_cannot_be_read_is_absent() -> None:
    """A sample without a RAM reading says nothing about RAM, rather than 0."""
    assert RAM not in attribute(sample(process(10, mb=5)), {key(10): RUN}).resources


def test_without_a_process_table_nobody_is_named() -> None:
    """An empty table is a fault, not a machine without processes: all used RAM is external."""
    machine = replace(sample(used_mb=900, devices=(gpu(900, row(10, 700)),)), processes={})

    result = attribute(machine, {key(10): RUN})

    for shares in result.resources.values():
        assert megabytes(shares) == {"external": 900, "overlap": 0}
        assert shares.fault == NO_PROCESS_TABLE
        assert shares.unknown == (RUN,)


# -- one device's process list ------------------------------------------------------------------


def test_two_lists_of_one_process_count_once() -> None:
    """A process of the compute and the graphics list holds the greater number (B016)."""
    machine = sample(
        process(10), devices=(gpu(700, row(10, 700, "C"), row(10, 650, "G"), row(10, None, "M")),)
    )

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"run-a": 700, "external": 0, "overlap": 0}
    assert shares.unknown == ()


@pytest.mark.parametrize("kinds", ["G", "M", "CM"])
def test_graphics_and_shared_contexts_count(kinds: str) -> None:
    """A run that renders, or that computes through the shared server, is seen (B016, B025)."""
    machine = sample(process(10), devices=(gpu(700, row(10, 700, kinds)),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"run-a": 700, "external": 0, "overlap": 0}


def test_a_shared_servers_own_memory_is_not_external() -> None:
    """The overhead of a server that is known as one stands under its name (B025)."""
    machine = sample(
        process(10), process(20), devices=(gpu(750, row(10, 700, "M"), row(20, 50, "MC")),)
    )

    shares = on_gpu(attribute(machine, {key(10): RUN, key(20): SERVER}))

    assert megabytes(shares) == {"run-a": 700, "clip": 50, "external": 0, "overlap": 0}


@pytest.mark.parametrize("held", [999_999 * MB, -1 * MB])
def test_a_number_that_cannot_be_true_is_none(held: int) -> None:
    """A row above the device's total is an unknown number, not a huge one (B010, B011, B012)."""
    machine = sample(process(10), devices=(gpu(700, GpuProcess(10, held, "C")),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"external": 700, "overlap": 0}
    assert shares.unknown == (RUN,)


def test_a_row_without_a_process_is_nobodys() -> None:
    """A row of pid 0 is left out, and its bytes stay unlisted (B010)."""
    machine = sample(process(10), devices=(gpu(700, row(0, 99), row(10, 600)),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"run-a": 600, "external": 100, "overlap": 0}
    assert [(p.pid, p.note) for p in shares.external] == [(0, "unlisted")]


@pytest.mark.parametrize(
    ("changes", "ours", "fault"),
    [
        ({"processes": None}, True, NO_LIST),
        (
            {"processes": None, "processes_fault": Fault("NOT_SUPPORTED", "Not Supported", 0.0)},
            True,
            "Not Supported",
        ),
        ({}, False, FOREIGN_PIDS),
    ],
)
def test_where_nobody_can_be_named_all_is_external_and_runs_are_unknown(
    changes: dict[str, Any], ours: bool, fault: str
) -> None:
    """No list, or one in foreign pids, names nobody, least of all a pid that exists here too.

    That is B015 (the call is not supported), B017 and B018 (pids of another namespace).
    """
    machine = sample(process(10), devices=(gpu(700, row(10, 700), **changes),))

    result = attribute(replace(machine, pids_are_ours=ours), {key(10): RUN, key(1): KERNEL})

    shares = on_gpu(result)
    assert megabytes(shares) == {"external": 700, "overlap": 0}
    assert shares.fault == fault
    assert shares.unknown == (RUN,)


@pytest.mark.parametrize(
    ("used", "reserved", "fault"),
    [
        (10_000, 0, EMPTY_LIST),
        (257, 0, EMPTY_LIST),
        (256, 0, None),
        (1536, None, None),
        (1537, None, EMPTY_LIST),
    ],
)
def test_an_empty_list_beside_used_memory_is_a_fault(
    used: int, reserved: int | None, fault: str | None
) -> None:
    """Hidden processes are told from an idle board, whatever its driver reserves (B019, B002)."""
    machine = sample(devices=(gpu(used, reserved=reserved),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert shares.fault == fault
    assert shares.external_bytes == used * MB
    assert shares.unknown == ((RUN,) if fault else ())


def test_a_holder_without_a_number_is_unknown() -> None:
    """Where the driver tells no bytes of a process, its holder has no number, not 0 (B021)."""
    machine = sample(
        process(10),
        process(11, 10),
        process(30),
        devices=(gpu(700, row(10, None), row(11, 100), row(30, None)),),
    )

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert shares.unknown == (RUN,)
    assert megabytes(shares) == {"run-a": 100, "external": 600, "overlap": 0}
    assert ExternalProcess(30, 30, None, "ghost") in shares.external


def test_a_runs_own_report_stands_in_for_an_unknown_number() -> None:
    """A report of GPU bytes counts where the driver tells none, and only up to what is unexplained.

    The driver's own numbers are never overruled by a report.
    """
    machine = sample(process(10), process(20), devices=(gpu(700, row(10, None), row(20, 500)),))
    reports = {"run-a": {GPU: 900 * MB, OTHER_GPU: 5 * MB}, "run-b": {GPU: 900 * MB}}

    shares = on_gpu(attribute(machine, {key(10): RUN, key(20): OTHER_RUN}, run_vram=reports))

    assert megabytes(shares) == {"run-a": 200, "run-b": 500, "external": 0, "overlap": 0}
    assert shares.unknown == (RUN,)


def test_a_report_of_gpu_bytes_speaks_for_runs_only() -> None:
    """A kernel whose notebook is named like a run does not get the run's report."""
    named = Holder(HolderKind.KERNEL, "run-a")
    machine = sample(process(10), devices=(gpu(700, row(10, None)),))

    shares = on_gpu(attribute(machine, {key(10): named}, run_vram={"run-a": {GPU: 300 * MB}}))

    assert megabytes(shares) == {"external": 700, "overlap": 0}


def test_reports_count_where_nobody_can_be_named() -> None:
    """In a container a run's own report is all there is, and the rest is external."""
    machine = replace(sample(devices=(gpu(700),)), pids_are_ours=False)

    shares = on_gpu(attribute(machine, {key(10): RUN}, run_vram={"run-a": {GPU: 300 * MB}}))

    assert megabytes(shares) == {"run-a": 300, "external": 400, "overlap": 0}


# -- ghosts -------------------------------------------------------------------------------------


def test_a_listed_process_that_does_not_exist_is_a_ghost() -> None:
    """Memory of a pid that is not in the process table is external, never free (B017, B120)."""
    machine = sample(process(10), devices=(gpu(900, row(10, 200), row(40170, 700)),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"run-a": 200, "external": 700, "overlap": 0}
    assert shares.external == (ExternalProcess(40170, None, 700 * MB, "ghost"),)


def test_a_zombie_of_nobody_is_a_ghost() -> None:
    """A process without any memory of its own that a device still lists is a zombie (B121)."""
    machine = sample(process(30), process(31, mb=9), devices=(gpu(3, row(30, 1), row(31, 2)),))

    shares = on_gpu(attribute(machine, {}))

    assert shares.external == (
        ExternalProcess(31, 31, 2 * MB, ""),
        ExternalProcess(30, 30, 1 * MB, "ghost"),
    )


def test_a_zombie_of_a_run_is_the_runs() -> None:
    """While an unreaped worker's memory is listed, its run still holds it (B121)."""
    machine = sample(process(10, mb=5), process(11, 10), devices=(gpu(700, row(11, 700)),))

    shares = on_gpu(attribute(machine, {key(10): RUN}))

    assert megabytes(shares) == {"run-a": 700, "external": 0, "overlap": 0}


def test_a_live_run_keeps_what_its_dead_worker_left_listed() -> None:
    """A process that ends between the two readers' looks stays its run's (B020)."""
    roots = {key(10): RUN, key(11): RUN}
    before = attribute(sample(process(10), process(11, 10)), roots)
    machine = sample(process(10), devices=(gpu(700, row(11, 700)),))

    first = attribute(machine, {key(10): RUN}, before.holder_of)
    second = attribute(machine, {key(10): RUN}, first.holder_of)

    for result in (first, second):
        assert megabytes(on_gpu(result)) == {"run-a": 700, "external": 0, "overlap": 0}


@pytest.mark.parametrize("order", [1, -1])
def test_a_ghost_is_the_last_process_of_its_pid(order: int) -> None:
    """Of two gone processes of one pid, the younger is the one that is still listed."""
    remembered = {ProcessKey(11, 3): OTHER_RUN, ProcessKey(11, 5): RUN}
    machine = sample(process(10), process(20), devices=(gpu(700, row(11, 700)),))

    result = attribute(
        machine, {key(10): RUN, key(20): OTHER_RUN}, dict(list(remembered.items())[::order])
    )

    assert on_gpu(result).by_holder == {RUN: 700 * MB}


def test_what_an_ended_run_left_listed_is_external() -> None:
    """A run without a root has ended: what the driver does not let go of is a ghost (B120)."""
    machine = sample(devices=(gpu(700, row(11, 700)),))

    result = attribute(machine, {}, {key(11): RUN})

    assert on_gpu(result).external == (ExternalProcess(11, None, 700 * MB, "ghost"),)
    assert result.holder_of == {}


# -- what lingers -------------------------------------------------------------------------------


def test_lingering_memory_stays_the_runs() -> None:
    """What a gone run left behind is attributed to it, not to the outside."""
    machine = sample(process(30, mb=1), used_mb=900, devices=(gpu(800, row(30, 100)),))
    lingering = {GPU: {RUN: 500 * MB}, RAM: {RUN: 50 * MB}}

    result = attribute(machine, {}, lingering=lingering)

    assert megabytes(on_gpu(result)) == {"run-a": 500, "external": 300, "overlap": 0}
    assert megabytes(result.resources[RAM]) == {"run-a": 50, "external": 850, "overlap": 0}


@pytest.mark.parametrize("order", [1, -1])
def test_lingering_memory_is_bounded_by_what_is_unexplained(order: int) -> None:
    """Memory that living processes explain cannot linger, and two claims share what is left."""
    machine = sample(
        process(10), process(30, mb=1), devices=(gpu(800, row(10, 200), row(30, 300)),)
    )
    gone = [OTHER_RUN, Holder(HolderKind.RUN, "run-c")][::order]
    lingering = {GPU: dict.fromkeys(gone, 250 * MB)}

    shares = on_gpu(attribute(machine, {key(10): RUN}, lingering=lingering))

    assert megabytes(shares) == {
        "run-a": 200,
        "run-b": 250,
        "run-c": 50,
        "external": 300,
        "overlap": 0,
    }


def test_a_ghost_does_not_hide_what_lingers() -> None:
    """A gone run's memory that is still listed by pid is the run's, and listed once."""
    machine = sample(devices=(gpu(800, row(11, 500), row(99, 200)),))

    result = attribute(machine, {key(11): RUN}, {key(11): RUN}, lingering={GPU: {RUN: 550 * MB}})

    shares = on_gpu(result)
    assert megabytes(shares) == {"run-a": 550, "external": 250, "overlap": 0}
    assert sum(p.held_bytes or 0 for p in shares.external) == 250 * MB


# -- boards, slices, shared memory ----------------------------------------------------------------


def test_a_run_is_measured_on_every_device_it_uses() -> None:
    """Bytes count on the physical device that lists them, wherever a run was placed (B053-B055)."""
    machine = sample(
        process(10),
        process(20),
        devices=(gpu(700, row(10, 700)), gpu(500, row(10, 100), row(20, 400), uuid=OTHER_GPU)),
    )

    result = attribute(machine, {key(10): RUN, key(20): OTHER_RUN})

    assert megabytes(on_gpu(result)) == {"run-a": 700, "external": 0, "overlap": 0}
    assert megabytes(on_gpu(result, OTHER_GPU)) == {
        "run-a": 100,
        "run-b": 400,
        "external": 0,
        "overlap": 0,
    }


def test_a_board_cut_into_slices_is_no_resource_and_its_slices_are() -> None:
    """A slice is attributed by itself, also where its board cannot be read (B056, B057)."""
    board = Device("GPU-m", "A100", 40 * GB, 0, mig_enabled=True)
    slice_ = Device("MIG-1", "1g.5gb", 5 * GB, 0, parent="GPU-m")
    machine = sample(
        process(10),
        devices=(
            DeviceReading(board, 1.0, 25 * GB, 0, (row(10, 700),)),
            DeviceReading(replace(board, uuid="GPU-n"), 1.0, None),
            DeviceReading(slice_, 1.0, 4 * GB, 0, (row(10, 700),)),
        ),
    )

    result = attribute(machine, {key(10): RUN})

    assert list(result.resources) == ["MIG-1"]
    assert megabytes(on_gpu(result, "MIG-1")) == {"run-a": 700, "external": 324, "overlap": 0}


@pytest.mark.parametrize("free", [None, 50 * GB])
def test_a_board_that_shares_ram_is_no_resource_and_its_bytes_are_ram(free: int | None) -> None:
    """On one pool of memory 10 GB of GPU and 4 GB of RAM are 14 GB of RAM, charged once (B062)."""
    board = Device("GPU-u", "GB10", 64 * GB, 0, unified=True)
    machine = sample(
        process(10, mb=4_000),
        process(30, mb=1_000),
        used_mb=16_000,
        devices=(DeviceReading(board, 1.0, free, None, (row(10, 10_000), row(30, 200))),),
    )

    result = attribute(machine, {key(10): RUN})

    assert list(result.resources) == [RAM]
    assert megabytes(result.resources[RAM]) == {"run-a": 14_000, "external": 2_000, "overlap": 0}


def test_foreign_pids_on_a_shared_pool_name_nobody() -> None:
    """Where the driver's pids are not ours, a process of the same number holds nothing there."""
    board = Device("GPU-u", "GB10", 64 * GB, 0, unified=True)
    reading = DeviceReading(board, 1.0, None, None, (row(10, 10_000),))
    machine = sample(process(10, mb=4_000), used_mb=16_000, devices=(reading,))

    result = attribute(replace(machine, pids_are_ours=False), {key(10): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 4_000, "external": 12_000, "overlap": 0}


def test_bytes_of_a_shared_pool_are_not_counted_twice() -> None:
    """GPU bytes that RAM in use does not leave room for are pages counted already (B062)."""
    board = Device("GPU-u", "GB10", 64 * GB, 0, unified=True)
    machine = sample(
        process(10, mb=4_000),
        used_mb=5_000,
        devices=(DeviceReading(board, 1.0, None, None, (row(10, 4_000),)),),
    )

    result = attribute(machine, {key(10): RUN})

    assert megabytes(result.resources[RAM]) == {"run-a": 5_000, "external": 0, "overlap": 0}


@pytest.mark.parametrize(
    "reading",
    [
        gpu(0, free_bytes=None),
        gpu(0, free_bytes=81 * GB),
        gpu(0, free_bytes=-1 * GB),
        gpu(0, total=0),
    ],
)
def test_a_device_that_shows_no_possible_number_is_absent(reading: DeviceReading) -> None:
    """What is no reading gives no share-out; it is not a device with 0 used."""
    result = attribute(sample(process(10), devices=(reading,)), {key(10): RUN})

    assert dict(result.resources) == {}


def test_a_run_on_no_device_is_absent_and_one_with_zero_bytes_is_zero() -> None:
    """A measured 0 is a number; where nothing was listed there is none."""
    machine = sample(process(10), process(20), devices=(gpu(0, row(20, 0)),))

    shares = on_gpu(attribute(machine, {key(10): RUN, key(20): SERVER}))

    assert shares.by_holder == {SERVER: 0}


# -- who the others are -------------------------------------------------------------------------


def test_external_processes_are_listed_largest_first_and_the_rest_is_summed() -> None:
    """Everybody else is named one by one up to 50, so that a human can act (B026)."""
    others = [process(pid, mb=pid) for pid in range(100, 160)]

    shares = attribute(sample(*others, used_mb=20_000), {}).resources[RAM]

    *listed, more, unlisted = shares.external
    assert [p.pid for p in listed] == list(range(159, 159 - EXTERNAL_LISTED, -1))
    assert [p.start_ticks for p in listed] == [p.pid for p in listed]
    assert more == (0, None, sum(range(100, 110)) * MB, "10 more processes")
    assert unlisted.held_bytes == (20_000 - sum(range(100, 160))) * MB
    assert sum(p.held_bytes or 0 for p in shares.external) == shares.external_bytes


def test_processes_without_memory_are_not_listed() -> None:
    """Kernel threads do not fill the list of RAM."""
    shares = attribute(sample(process(30), process(31, mb=1), used_mb=1), {}).resources[RAM]

    assert [p.pid for p in shares.external] == [31]
