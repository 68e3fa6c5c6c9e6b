"""The arithmetic of what admission may give: free, floor, reservations, earmarks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.room import Room, earmark, machine_reason, rooms
from jupyter_gpugate.core.decisions import Check, Earmark
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Lingering, Usage
from jupyter_gpugate.core.resources import GB, MACHINE, MB, RAM
from jupyter_gpugate.core.samples import (
    Device,
    Fault,
    ReaderHealth,
    Sample,
)
from jupyter_gpugate.core.shares import Growth
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.checked_simulation import GPU_IS_LOST
from tests.kit.core_builders import GPU, NOW, board, gate, request, sample, start, using


def holding(state: GateState, held: int, run_id: str = "run") -> GateState:
    """The state once a run was seen to hold so much of the GPU."""
    lease = state.leases[run_id]
    usage = {**lease.usage, GPU: Usage(held_bytes=held)}
    return replace(state, leases={**state.leases, run_id: using(lease, usage)})


def test_room_is_free_less_floor_less_reservations() -> None:
    """A run that holds 2 of its 10 GB has 8 GB reserved; what it holds is not free any more."""
    state = holding(start(gate(request()), charges={RAM: GB, GPU: 10 * GB}), 2 * GB)
    room = rooms(state, sample(free={GPU: 22 * GB}), NOW)[GPU]
    assert room.reserved_bytes == 8 * GB
    assert room.floor_bytes == 256 * MB
    assert room.room_bytes == 22 * GB - 256 * MB - 8 * GB
    assert room.alone_bytes == 22 * GB + 2 * GB - 256 * MB
    numbers = room.numbers(5 * GB)
    parts = ("floor_bytes", "reserved_bytes", "earmarked_bytes")
    assert numbers["room_bytes"] == numbers["free_bytes"] - sum(numbers[part] for part in parts)


def test_a_run_above_its_charge_reserves_nothing() -> None:
    """A reservation is never below 0: what is held beyond it is seen in what is free."""
    state = holding(start(gate(request()), charges={GPU: 2 * GB}), 5 * GB)
    assert rooms(state, sample(free={GPU: 19 * GB}), NOW)[GPU].reserved_bytes == 0


def test_a_gone_run_keeps_its_charge_while_somebody_of_it_lives() -> None:
    """The charge of a tree that cannot be killed stands; with its last process it ends."""
    left = Lingering("run", "ada", GPU, 10 * GB, 4 * GB, 4 * GB, NOW)
    alive = replace(gate(), lingering={("run", GPU): left})
    dead = replace(gate(), lingering={("run", GPU): replace(left, tree_alive=False)})
    assert rooms(alive, sample(), NOW)[GPU].reserved_bytes == 6 * GB
    assert rooms(dead, sample(), NOW)[GPU].reserved_bytes == 0
    assert rooms(dead, sample(), NOW)[GPU].runs_held_bytes == 4 * GB


@pytest.mark.parametrize(
    ("total_gb", "floor"),
    [(16, 2 * GB), (50, 2 * GB), (100, 4 * GB), (1000, 40 * GB)],
)
def test_the_floor_of_ram(total_gb: int, floor: int) -> None:
    """2 GB, or 4 % of a large machine."""
    seen = sample(ram_total=total_gb * GB, ram=8 * GB)
    assert rooms(gate(), seen, NOW)[RAM].floor_bytes == floor


@pytest.mark.parametrize(("rise", "floor"), [(0, 256 * MB), (GB, GB), (9 * GB, int(0.1 * 24 * GB))])
def test_the_floor_of_a_gpu_follows_others(rise: int, floor: int) -> None:
    """At least 256 MB, at most a tenth, between them the fastest growth of others."""
    state = replace(gate(), growth={GPU: Growth(rises=((NOW - 300, rise), (NOW, 0)))})
    assert rooms(state, sample(), NOW)[GPU].floor_bytes == floor


@pytest.mark.parametrize(("devices", "share"), [(0, 4), (1, 4), (2, 4), (3, 6), (8, 16)])
def test_the_share_of_ram_of_an_unknown_run(devices: int, share: int) -> None:
    """A quarter, or less on a machine with many devices, so that each can have such a run."""
    state = gate(boards=[board(index) for index in range(devices)])
    seen = sample(boards=[], ram_total=240 * GB, ram=200 * GB)
    assert rooms(state, seen, NOW)[RAM].share_bytes == 240 * GB // share


def test_an_earmark_counts_against_all_that_come_later() -> None:
    """What is set aside lowers the room, and shows in the numbers."""
    here = rooms(gate(), sample(), NOW)
    earmark(here, Earmark("head", Check.FIT, (GPU,), {RAM: 3 * GB, GPU: 20 * GB}))
    assert here[GPU].room_bytes == 24 * GB - 256 * MB - 20 * GB
    assert here[GPU].numbers(1)["earmarked_bytes"] == 20 * GB
    assert here[RAM].earmarked_bytes == 3 * GB
    assert here[GPU].cleared_for is None


def test_a_grant_counts_against_all_that_come_later() -> None:
    """A grant of this tick lowers the room like a reservation, and takes the watch slot."""
    room = rooms(gate(), sample(), NOW)[GPU]
    room.take(5 * GB, request("new", exclusive=True), 9, watch=True)
    assert room.room_bytes == 24 * GB - 256 * MB - 5 * GB
    assert (room.leases, room.exclusive, room.unsettled) == (1, ("new",), ("new",))


def test_recent_work_of_a_device_is_told_in_per_cent() -> None:
    """What lies within one per cent is noise, by which no device is preferred."""
    state = replace(gate(), utilisation={GPU: 0.4567})
    assert rooms(state, sample(), NOW)[GPU].utilisation == 0.46
    assert rooms(gate(), sample(), NOW)[GPU].utilisation == 0.0


def told(state: GateState, seen: Sample, resource: str = GPU, at: float = NOW) -> Check | None:
    """Why there is no number for a resource."""
    unread = rooms(state, seen, at)[resource].unread
    return unread.check if unread else None


def test_a_reading_is_too_old_after_three_seconds() -> None:
    """Each resource ages by itself: the other one goes on."""
    seen = sample(NOW)
    fresh = replace(seen, ram=replace(seen.ram, taken_at=NOW + 3)) if seen.ram else seen
    assert told(gate(), fresh, at=NOW + 3) is None
    assert told(gate(), fresh, at=NOW + 3.01) is Check.STALE
    assert told(gate(), fresh, RAM, at=NOW + 3.01) is None
    assert told(gate(), replace(seen, ram=None), RAM) is Check.STALE


def test_a_driver_that_takes_long_for_its_boards_is_slow_and_not_stale() -> None:
    """A reading may be older by the passes that a slow reader needs, up to a limit."""

    def slow(took_s: float) -> Sample:
        seen = sample(NOW)
        return replace(seen, readers=(replace(seen.readers[0], took_s=took_s),))

    for took_s, oldest in ((0.0, 3.0), (6.0, 15.0), (600.0, 43.0)):
        seen = replace(slow(took_s), ram=None)
        assert told(gate(), seen, at=NOW + oldest) is None
        assert told(gate(), seen, at=NOW + oldest + 0.01) is Check.STALE
        gone = replace(seen, devices=())
        assert told(gate(), gone, at=NOW + oldest) is Check.MISSING
        assert told(gate(), gone, at=NOW + oldest + 0.01) is Check.STALE


@pytest.mark.parametrize(
    "numbers",
    [
        {"free_bytes": 25 * GB},
        {"free_bytes": 20 * GB, "driver_reserved_bytes": 8 * GB},
        {"free_bytes": -1},
    ],
)
def test_a_device_whose_numbers_contradict_each_other_is_not_gated_on(
    numbers: dict[str, Any],
) -> None:
    """Nothing is given away by numbers that cannot be, and the device says what is wrong."""
    seen = sample()
    reading = replace(seen.devices[0], **numbers)
    room = rooms(gate(), replace(seen, devices=(reading,)), NOW)[GPU]
    assert room.unread is not None
    assert room.unread.check is Check.UNMEASURED
    assert str(numbers["free_bytes"]) in room.unread.who[0]
    assert not room.measured


def test_a_device_that_is_gone_is_missing_and_one_that_cannot_be_asked_for_is_stale() -> None:
    """Only a reader that answers proves that a device is not there."""
    state = gate()
    gone = sample(boards=())
    silent = replace(gone, readers=(ReaderHealth("gpu", present=True, taken_at=NOW - 60),))
    fault = Fault("18", "driver and library differ", NOW)
    broken = replace(gone, readers=(ReaderHealth("gpu", True, NOW, fault),))
    present = replace(gone, readers=(ReaderHealth("gpu", present=False, taken_at=NOW),))
    assert told(state, present) is Check.MISSING
    assert told(state, silent) is Check.STALE
    assert told(state, broken) is Check.STALE


def faulty(code: str) -> Sample:
    """A sample whose device could not be read."""
    seen = sample()
    reading = replace(seen.devices[0], free_bytes=None, fault=Fault(code, "its words", NOW))
    return replace(seen, devices=(reading,))


def test_a_lost_device_is_missing_even_where_it_is_declared() -> None:
    """The declared ledger is for devices that cannot be sampled, not for those that are gone."""
    traits = Traits(usable_vram_bytes={GPU: 20 * GB})
    assert told(gate(traits=traits), faulty(GPU_IS_LOST)) is Check.MISSING
    assert told(gate(), faulty("nvml-3")) is Check.UNMEASURED
    room = rooms(gate(traits=traits), faulty("nvml-3"), NOW)[GPU]
    assert (room.declared, room.unread, room.room_bytes) == (True, None, 20 * GB)


def test_the_declared_ledger_adds_up_charges_and_nothing_else() -> None:
    """Declared <= usable - sum(declared): no floor, no measurement, and its own figures to show."""
    traits = Traits(usable_vram_bytes={GPU: 20 * GB})
    state = holding(start(gate(request(), traits=traits), charges={GPU: 8 * GB}), 3 * GB)
    room = rooms(state, faulty("nvml-3"), NOW)[GPU]
    assert room.room_bytes == 12 * GB
    numbers = room.numbers(13 * GB)
    assert (numbers["usable_bytes"], numbers["declared_bytes"]) == (20 * GB, 8 * GB)
    measured = rooms(state, sample(), NOW)[GPU].numbers(13 * GB)
    assert "usable_bytes" not in measured, "where it is measured, nothing is declared"


def test_boards_in_slices_and_unified_boards_are_no_resources() -> None:
    """Slices gate by themselves, and memory that is the machine's RAM is gated as RAM."""
    boards = [
        Device("GPU-0", "A100", 80 * GB, 0, mig_enabled=True),
        Device("MIG-0", "1g.10gb", 10 * GB, 0, parent="GPU-0"),
        Device("GPU-1", "GB10", 128 * GB, 1, unified=True),
    ]
    assert list(rooms(gate(boards=boards), sample(boards=boards), NOW)) == [RAM, "MIG-0"]


def test_a_machine_without_gpu_gates_ram_alone() -> None:
    """No device was ever there: the dimension is absent, not empty."""
    assert list(rooms(gate(boards=()), sample(boards=()), NOW)) == [RAM]


def test_what_would_fit_with_nobody_there() -> None:
    """The whole device less what the driver keeps and the least floor."""
    seen = sample()
    kept = replace(seen.devices[0], driver_reserved_bytes=500 * MB)
    state = replace(gate(), growth={GPU: Growth(rises=((NOW, 2 * GB),))})
    room = rooms(state, replace(seen, devices=(kept,)), NOW)[GPU]
    assert room.most_bytes == 24 * GB - 500 * MB - 256 * MB
    assert isinstance(room, Room)


def test_a_lock_or_a_drain_closes_the_whole_machine() -> None:
    """The lock comes before the drain."""
    drained = apply(gate(), [ev.DrainChanged(NOW, draining=True, reason="reset")])
    reason = machine_reason(drained)
    assert reason is not None
    assert (reason.check, reason.who) == (Check.DRAIN, ("reset",))
    locked = apply(drained, [ev.Locked(NOW, MACHINE, "root", NOW + 60)])
    reason = machine_reason(locked)
    assert reason is not None
    assert (reason.check, reason.who) == (Check.LOCK, ("root",))
    assert machine_reason(gate()) is None


def test_a_locked_device_is_still_measured() -> None:
    """A lock closes a device to runs; what is free there is known all the same."""
    state = apply(gate(), [ev.Locked(NOW, GPU, "bob", NOW + 60)])
    room = rooms(state, sample(free={GPU: 5 * GB}), NOW)[GPU]
    assert room.locked is not None
    assert (room.measured, room.free_bytes) == (True, 5 * GB)
