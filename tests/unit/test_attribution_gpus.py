"""Attribution on GPUs: process lists that overlap, lack rows or lack numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core.memory.attribution import (
    EMPTY_LIST,
    FOREIGN_PIDS,
    NO_LIST,
    attribute,
)
from jupyter_gpugate.core.resources import (
    MB,
    Holder,
    HolderKind,
)
from jupyter_gpugate.core.samples import (
    Fault,
    GpuProcess,
)
from jupyter_gpugate.core.shares import ExternalProcess
from tests.kit.attribution_samples import (
    GPU,
    KERNEL,
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
