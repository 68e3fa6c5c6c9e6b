"""Devices by name: a number is one only where it means one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from jupyter_gpugate.core.admission.devices import ignored_settings, resources_of
from jupyter_gpugate.core.admission.room import rooms
from jupyter_gpugate.core.events import Locked
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.naming import matches, name_of
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.faces import words
from jupyter_gpugate.gate.locking import (
    closes,
    device_named,
    present,
    refuse_another,
    refuse_closed_otherwise,
)
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.port import Rejected
from tests.kit.core_builders import NOW, gate, sample


def board(uuid: str, index: int, **fields: Any) -> Device:
    """A board with this number."""
    return Device(uuid, "NVIDIA L4", 24 * GB, index, **fields)


FIRST = board("GPU-aaaaaaaa-1", 0)
GONE = board("GPU-bbbbbbbb-1", 1)
THIRD = board("GPU-cccccccc-1", 1)
CUT = board("GPU-dddddddd-1", 2, mig_enabled=True)
PARTS = [Device(f"MIG-{n}", "1g.10gb", 10 * GB, n, parent=CUT.uuid) for n in range(2)]
SHARED = board("GPU-eeeeeeee-1", 3, unified=True)
EMPTY = board("GPU-ffffffff-1", 4, mig_enabled=True)
ALL = [FIRST, GONE, THIRD, CUT, *PARTS, SHARED, EMPTY]


class Gate:
    """As much of a gate as is asked for a device: its state, and a sample without ``GONE``."""

    def __init__(self, devices: list[Device], *missing: Device) -> None:
        self.state = gate(boards=devices)
        self.sample = sample(boards=[d for d in devices if d not in missing])


def of(devices: list[Device] = ALL, *missing: Device) -> GateLoop:
    """A gate that knows these devices, some of which are missing."""
    return cast("GateLoop", Gate(devices, *missing))


def test_no_two_devices_have_one_name() -> None:
    """Whatever numbers repeat, each row of a table and each message names one device."""
    inventory = {device.uuid: device for device in ALL}
    other = Device("MIG-9", "1g.10gb", 10 * GB, 0, parent=GONE.uuid)
    inventory |= {other.uuid: other, "MIG-8": replace(other, uuid="MIG-8", parent=THIRD.uuid)}
    names = [name_of(inventory, uuid) for uuid in inventory]
    assert len(set(names)) == len(names)
    assert name_of(inventory, FIRST.uuid) == "GPU 0"
    assert name_of(inventory, GONE.uuid) == "GPU 1 [GPU-bbbbbbbb]"
    assert name_of(inventory, PARTS[1].uuid) == "MIG slice 1 of GPU 2"
    rows = [
        {"uuid": u, "index": d.index, "name": name_of(inventory, u)} for u, d in inventory.items()
    ]
    assert {words.resource(uuid, rows) for uuid in inventory} == set(names)


def test_a_uuid_wins_over_a_number_and_a_board_over_a_slice() -> None:
    """A number never means a slice of another board where a board has it."""
    inventory = {device.uuid: device for device in ALL}
    assert matches(inventory, "0") == (FIRST.uuid,)
    assert matches(inventory, "1") == (GONE.uuid, THIRD.uuid)
    assert matches(inventory, "GPU-c") == (THIRD.uuid,)
    assert set(matches(inventory, "MIG-")) == {part.uuid for part in PARTS}
    assert matches(inventory, "7") == matches(inventory, "") == ()
    assert matches({part.uuid: part for part in PARTS}, "1") == (PARTS[1].uuid,)


def test_what_may_be_several_devices_is_refused_with_all_of_them() -> None:
    """An ambiguous number, or beginning of a UUID, is told as such and not as no device."""
    for word in ("1", "GPU-"):
        with pytest.raises(Rejected, match="may be any of") as refused:
            device_named(of(), word, "resource")
        assert {GONE.uuid, THIRD.uuid} <= set(refused.value.detail["candidates"])
        assert "GPU-bbbbbbbb (GPU 1 [GPU-bbbbbbbb])" in str(refused.value)
    with pytest.raises(Rejected, match="no device '7' here"):
        device_named(of(), "7", "resource")


def test_a_board_that_is_there_is_meant_before_one_that_is_missing() -> None:
    """The number of a present board names it, unless two are present, or none is."""
    seen = of(ALL, GONE)
    assert device_named(seen, "1", "resource", present(seen)) == THIRD.uuid
    blind = of(ALL, *ALL)
    with pytest.raises(Rejected, match="may be any of"):
        device_named(blind, "1", "resource", present(blind))
    assert device_named(seen, GONE.uuid[:6], "resource", present(seen)) == GONE.uuid


def test_a_lock_closes_every_resource_of_its_device() -> None:
    """A board in slices is closed slice by slice; those of other boards stay open."""
    seen = of(ALL, GONE)
    assert closes(seen, CUT.uuid) == {part.uuid for part in PARTS}
    locked = apply(seen.state, [Locked(NOW, CUT.uuid, "ada", NOW + 60)])
    closed = {r for r, room in rooms(locked, seen.sample, NOW).items() if room.locked}
    assert closed == closes(seen, CUT.uuid)


@pytest.mark.parametrize(
    ("device", "why"),
    [(SHARED, "shares the machine's memory"), (EMPTY, "no slices"), (GONE, "is missing")],
)
def test_a_lock_that_would_close_nothing_is_refused(device: Device, why: str) -> None:
    """Success is never said of a lock on what no run is kept off by it."""
    with pytest.raises(Rejected, match=why) as refused:
        closes(of(ALL, GONE), device.uuid)
    assert refused.value.error == "state"


def test_locks_of_others_and_overlaps_are_heeded() -> None:
    """A slice of a board that somebody else has locked is theirs; so is it to open."""
    seen = of(ALL, GONE)
    locked = apply(seen.state, [Locked(NOW, CUT.uuid, "bob", NOW + 60)])
    part = PARTS[0].uuid
    with pytest.raises(Rejected, match="GPU 2 is locked by bob"):
        refuse_another(locked, part, closes(seen, part), "ada")
    refuse_another(locked, part, closes(seen, part), "bob")
    refuse_another(locked, FIRST.uuid, closes(seen, FIRST.uuid), "ada")
    with pytest.raises(Rejected, match="locked with GPU 2"):
        refuse_closed_otherwise(locked, part)
    refuse_closed_otherwise(locked, CUT.uuid)
    refuse_closed_otherwise(locked, FIRST.uuid)


def test_a_setting_for_a_device_that_is_not_there_is_told() -> None:
    """A UUID that no device has, or that is no resource, has no effect, and it is said."""
    usable = dict.fromkeys((FIRST.uuid, "GPU-typo", SHARED.uuid, CUT.uuid, "0"), GB)
    told = ignored_settings(gate(boards=ALL, traits=Traits(usable_vram_bytes=usable)))
    assert len(told) == len(usable) - 1
    for name in ("GPU-typo", SHARED.uuid, CUT.uuid, "'0'"):
        assert any(name in line for line in told)
    assert resources_of({d.uuid: d for d in ALL}, FIRST.uuid) == (FIRST.uuid,)
