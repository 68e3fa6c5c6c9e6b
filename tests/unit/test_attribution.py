"""Attribution: whose each byte of a sample is, and what is left for everybody else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from jupyter_gpugate.core.memory.attribution import (
    NO_PROCESS_TABLE,
    attribute,
)
from jupyter_gpugate.core.resources import (
    MB,
    RAM,
    Holder,
    HolderKind,
)
from jupyter_gpugate.core.shares import ExternalProcess
from tests.kit.attribution_samples import (
    GPU,
    RUN,
    SERVER,
    gpu,
    key,
    megabytes,
    on_gpu,
    process,
    row,
    sample,
)

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
