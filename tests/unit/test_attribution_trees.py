"""Attribution by process trees: each process belongs to the nearest known process above it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpugate.core.memory.attribution import (
    attribute,
)
from jupyter_gpugate.core.resources import (
    MB,
    RAM,
    Holder,
    HolderKind,
)
from jupyter_gpugate.core.samples import (
    KernelProcess,
    ProcessKey,
    Sample,
)
from tests.kit.attribution_samples import (
    INIT,
    KERNEL,
    RUN,
    SERVER,
    gpu,
    key,
    megabytes,
    process,
    row,
    sample,
)

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
