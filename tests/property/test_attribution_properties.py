"""What holds of every share-out, whatever the sample, the roots and the claims."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpugate.core.memory.attribution import attribute
from jupyter_gpugate.core.memory.holders import DEPTH
from jupyter_gpugate.core.resources import RAM, Holder, HolderKind
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    GpuProcess,
    KernelProcess,
    Process,
    ProcessKey,
    RamReading,
    Sample,
)
from jupyter_gpugate.core.shares import Attribution

PIDS = st.integers(1, 12)
TICKS = st.integers(0, 6)
KEYS = st.builds(ProcessKey, PIDS, TICKS)
BYTES = st.integers(0, 40)
OURS = st.sampled_from([HolderKind.RUN, HolderKind.KERNEL, HolderKind.MODEL_SERVER])
HOLDERS = st.builds(Holder, OURS, st.sampled_from("abc"))
RUNS = st.builds(Holder, st.just(HolderKind.RUN), st.sampled_from("abc"))
UUIDS = ("GPU-0", "GPU-1")

K = TypeVar("K")
V = TypeVar("V")


@st.composite
def processes(draw: st.DrawFn) -> dict[int, Process]:
    """Draw a process table: reused parents, missing parents and cycles of parents included."""
    pids = draw(st.sets(PIDS))
    return {p: Process(p, draw(TICKS), draw(PIDS), 1000, draw(BYTES)) for p in pids}


@st.composite
def readings(draw: st.DrawFn, uuid: str) -> DeviceReading:
    """Draw what a board shows, impossible numbers and a missing list included."""
    rows = st.builds(GpuProcess, st.integers(0, 14), st.none() | st.integers(-1, 120), st.just("C"))
    return DeviceReading(
        Device(uuid, "H200", 100, 0, unified=draw(st.booleans())),
        1.0,
        draw(st.none() | st.integers(-5, 105)),
        draw(st.sampled_from([None, 0, 5])),
        draw(st.none() | st.lists(rows, max_size=6).map(tuple)),
    )


class Case(NamedTuple):
    """Everything that `attribute` is given."""

    sample: Sample
    roots: Mapping[ProcessKey, Holder]
    remembered: Mapping[ProcessKey, Holder]
    lingering: Mapping[str, Mapping[Holder, int]]
    run_ram: Mapping[str, int]
    run_vram: Mapping[str, Mapping[str, int]]

    def attribute(self) -> Attribution:
        return attribute(*self)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a sample with everything that may be known about it."""
    kernels = st.builds(KernelProcess, KEYS, st.sampled_from("kl"), st.just("1000"))
    return Case(
        Sample(
            ram=RamReading(1.0, 100, draw(st.integers(0, 110)), 0),
            processes=draw(processes()),
            devices=tuple(draw(readings(uuid)) for uuid in UUIDS),
            kernels=tuple(draw(st.lists(kernels, max_size=2, unique_by=lambda k: k.key))),
            pids_are_ours=draw(st.booleans()),
        ),
        draw(st.dictionaries(KEYS, HOLDERS, max_size=6)),
        draw(st.dictionaries(KEYS, HOLDERS, max_size=6)),
        draw(st.dictionaries(st.sampled_from([RAM, *UUIDS]), st.dictionaries(RUNS, BYTES))),
        draw(st.dictionaries(st.sampled_from("abc"), BYTES)),
        draw(
            st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from(UUIDS), BYTES))
        ),
    )


@given(cases())
def test_the_identity_holds_to_the_byte(case: Case) -> None:
    """Attributed + external - overlap is used, on every resource, whatever was read."""
    for shares in case.attribute().resources.values():
        total = shares.attributed_bytes + shares.external_bytes - shares.overlap_bytes
        assert total == shares.used_bytes
        assert min(shares.external_bytes, shares.overlap_bytes) == 0
        assert all(held >= 0 for held in shares.by_holder.values())


@given(cases())
def test_everything_is_attributed_at_most_once(case: Case) -> None:
    """Holders together have no more than the processes show, unless a claim fits into used."""
    for resource, shares in case.attribute().resources.items():
        shown = sum(_shown(case.sample, resource).values())
        assert shares.attributed_bytes <= max(shown, shares.used_bytes)


def _shown(sample: Sample, resource: str) -> dict[int, int]:
    """Read what a resource's processes show, by pid, from the lists alone."""
    if resource == RAM:
        return {pid: p.private_bytes for pid, p in sample.processes.items()}
    reading = sample.device(resource)
    shown: dict[int, int] = {}
    for row in (reading.processes if reading else None) or ():
        if row.pid > 0 and row.held_bytes is not None and 0 <= row.held_bytes <= 100:
            shown[row.pid] = max(row.held_bytes, shown.get(row.pid, 0))
    return shown


@given(cases())
def test_without_claims_each_process_counts_for_its_holder(case: Case) -> None:
    """What holders and listed others have of RAM is what the processes show, each counted once."""
    result = attribute(case.sample, case.roots, case.remembered)

    unified = any(r.device.unified for r in case.sample.devices)
    shares = result.resources[RAM]
    named = sum(p.held_bytes or 0 for p in shares.external if p.pid)
    shown = sum(_shown(case.sample, RAM).values())
    if not unified or not case.sample.pids_are_ours:
        assert shares.attributed_bytes + named == shown


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_reading_does_not_matter(case: Case, chance: random.Random) -> None:
    """Shuffled tables, lists and roots give the same share-out."""
    sample = case.sample
    shuffled = Case(
        Sample(
            ram=sample.ram,
            processes=_shuffled(sample.processes, chance),
            devices=tuple(
                DeviceReading(
                    r.device,
                    r.taken_at,
                    r.free_bytes,
                    r.driver_reserved_bytes,
                    None if r.processes is None else tuple(_mixed(r.processes, chance)),
                )
                for r in _mixed(sample.devices, chance)
            ),
            kernels=tuple(_mixed(sample.kernels, chance)),
            pids_are_ours=sample.pids_are_ours,
        ),
        *(_shuffled(table, chance) for table in case[1:]),
    )

    assert shuffled.attribute() == case.attribute()


def _mixed(items: tuple[V, ...], chance: random.Random) -> list[V]:
    mixed = list(items)
    chance.shuffle(mixed)
    return mixed


def _shuffled(table: Mapping[K, V], chance: random.Random) -> dict[K, V]:
    items = list(table.items())
    chance.shuffle(items)
    return dict(items)


@given(cases())
def test_a_reused_pid_never_inherits(case: Case) -> None:
    """Knowledge of a pid's earlier process says nothing about the one that has the pid now."""
    table = case.sample.processes
    roots, remembered = (_of_these(known, table) for known in (case.roots, case.remembered))

    everything = attribute(case.sample, case.roots, case.remembered)
    of_the_living = attribute(case.sample, roots, remembered)

    alive = {p.key for p in table.values()}
    assert {k: h for k, h in everything.holder_of.items() if k in alive} == {
        k: h for k, h in of_the_living.holder_of.items() if k in alive
    }


def _of_these(
    known: Mapping[ProcessKey, Holder], table: Mapping[int, Process]
) -> dict[ProcessKey, Holder]:
    alive = {p.key for p in table.values()}
    return {key: holder for key, holder in known.items() if key in alive}


@given(cases(), st.integers(0, 60))
def test_each_process_has_the_holder_that_climbing_by_hand_finds(case: Case, stretch: int) -> None:
    """One pass over the table gives what climbing from each process alone would give."""
    table = case.sample.processes
    # A chain longer than the limit, hanging on whatever the table starts with.
    chain = {100 + i: Process(100 + i, 7, 99 + i, 1000, 1) for i in range(stretch)}
    if table and chain:
        chain[100] = chain[100]._replace(parent_pid=min(table))
    sample = Sample(processes={**chain, **table}, kernels=case.sample.kernels)

    holder_of = attribute(sample, case.roots, case.remembered).holder_of

    for process in sample.processes.values():
        expected = _by_hand(process, sample, case.roots, case.remembered)
        assert holder_of.get(process.key) == expected


def _by_hand(
    process: Process,
    sample: Sample,
    roots: Mapping[ProcessKey, Holder],
    remembered: Mapping[ProcessKey, Holder],
) -> Holder | None:
    kernels = {k.key: Holder(HolderKind.KERNEL, k.name) for k in sample.kernels}
    line = [process]
    while len(line) <= DEPTH:
        parent = sample.processes.get(line[-1].parent_pid)
        if parent is None or parent.start_ticks > line[-1].start_ticks:
            break
        line.append(parent)
    known = [{**kernels, **roots}.get(p.key) for p in line]
    memory = [remembered.get(p.key) for p in line]
    for holder in [h for h in known if h] + [h for h in memory if h]:
        if holder.kind is not HolderKind.KERNEL:
            return holder
    for here, before in zip(known, memory, strict=True):
        if here or before:
            return here or before
    return None
