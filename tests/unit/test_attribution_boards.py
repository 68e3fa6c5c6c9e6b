"""Attribution on boards of other kinds: slices, memory shared with RAM, several devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpugate.core.memory.attribution import (
    EXTERNAL_LISTED,
    attribute,
)
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
)
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
)
from tests.kit.attribution_samples import (
    OTHER_GPU,
    OTHER_RUN,
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
