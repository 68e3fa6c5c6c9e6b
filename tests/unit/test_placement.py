"""Which devices a run is put on, and which ones a head waits for."""

from __future__ import annotations

from typing import Any

from jupyter_gpugate.core.admission.placement import bind, place
from jupyter_gpugate.core.admission.room import Room
from jupyter_gpugate.core.resources import GB
from tests.kit.core_builders import board


def room(index: int, free_gb: float, **fields: Any) -> Room:
    """A device with so much room; ``held_gb`` is what runs hold there."""
    model = fields.pop("model", "A")
    parent = fields.pop("parent", None)
    held = int(fields.pop("held_gb", 0) * GB)
    return Room(
        resource=f"GPU-{index}",
        total_bytes=24 * GB,
        free_bytes=int(free_gb * GB),
        floor_bytes=0,
        reserved_bytes=0,
        runs_held_bytes=held,
        device=board(index, model=model, parent=parent),
        **fields,
    )


def put(*rooms: Room, count: int = 1, need_gb: float = 4, policy: str = "spread") -> Any:
    """Where a run of this need is put."""
    charges = {one.resource: int(need_gb * GB) for one in rooms}
    return place({one.resource: one for one in rooms}, charges, count, policy)


def bound(*rooms: Room, count: int = 1, need_gb: float = 10, exclusive: bool = False) -> Any:
    """What a head of this need waits for."""
    charges = {one.resource: int(need_gb * GB) for one in rooms}
    by_uuid = {one.resource: one for one in rooms}
    return bind(by_uuid, charges, count, exclusive=exclusive)


def test_the_emptiest_device_comes_first() -> None:
    """Fewest leases before anything else, whatever fits more tightly elsewhere."""
    assert put(room(0, 5, leases=2), room(1, 20, leases=1)) == ("GPU-1",)


def test_the_idlest_of_equally_empty_devices_comes_first() -> None:
    """Between devices with as many leases the one with less recent work is taken."""
    assert put(room(0, 5, utilisation=0.9), room(1, 20, utilisation=0.1)) == ("GPU-1",)


def test_the_tightest_fit_comes_first_where_nothing_else_tells() -> None:
    """Large room is kept for large runs, and the lower index decides between equals."""
    assert put(room(0, 20), room(1, 5)) == ("GPU-1",)
    assert put(room(1, 5), room(0, 5)) == ("GPU-0",)


def test_pack_fills_one_device_before_the_next() -> None:
    """Under ``pack`` the tightest fit comes first, however many leases live there."""
    assert put(room(0, 5, leases=3), room(1, 20), policy="pack") == ("GPU-0",)
    assert put(room(0, 5), room(1, 5, leases=1), policy="pack") == ("GPU-1",)


def test_several_devices_are_of_one_model_or_none() -> None:
    """A run gets all its devices of one model at once, or none of them."""
    mixed = (room(0, 20, model="A"), room(1, 20, model="B"))
    assert put(*mixed, count=2) is None
    assert put(*mixed, room(2, 20, model="B"), count=2) == ("GPU-1", "GPU-2")


def test_a_run_without_devices_is_put_nowhere() -> None:
    """Nothing is asked, nothing is given, and that is no refusal."""
    assert put(room(0, 20), count=0) == ()
    assert bound(room(0, 20), count=0) == ()


def test_slices_of_a_board_are_never_given_together() -> None:
    """A process sees one MIG slice and no more."""
    slices = (room(0, 9, parent="GPU-9"), room(1, 9, parent="GPU-9"))
    assert put(*slices, count=2) is None
    assert put(*slices, count=1) == ("GPU-0",)


def test_a_head_waits_where_least_is_lacking() -> None:
    """Of the devices that could hold it, the one that lacks least; full ones of others are out."""
    lacks_six = room(0, 4, held_gb=10)
    lacks_two = room(1, 8, held_gb=10)
    never = room(2, 9, held_gb=0)
    assert bound(lacks_six, lacks_two, never) == ("GPU-1",)
    assert bound(never) is None


def test_an_exclusive_run_waits_where_the_fewest_runs_live() -> None:
    """Runs have to leave before room matters."""
    crowded = room(0, 20, leases=3)
    nearly_alone = room(1, 8, leases=1, held_gb=10)
    assert bound(crowded, nearly_alone) == ("GPU-0",)
    assert bound(crowded, nearly_alone, exclusive=True) == ("GPU-1",)
