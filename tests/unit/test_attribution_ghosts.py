"""Attribution of memory whose processes are gone: ghosts in lists, and memory that lingers."""

from __future__ import annotations

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
    ProcessKey,
)
from jupyter_gpugate.core.shares import ExternalProcess
from tests.kit.attribution_samples import (
    GPU,
    OTHER_RUN,
    RUN,
    gpu,
    key,
    megabytes,
    on_gpu,
    process,
    row,
    sample,
)

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
