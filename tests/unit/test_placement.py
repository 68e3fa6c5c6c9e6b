"""Which devices a run is put on, and which ones a head waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.admission.placement import bind, place
from jupyter_gpugate.core.admission.room import Room
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Device
from tests.kit.core_builders import BOOT, NOW, board, gate, grant, key_of, request, sample


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


def put(
    *rooms: Room, count: int = 1, need_gb: float = 4, policy: str = "spread", watch: bool = False
) -> Any:
    """Where a run of this need is put."""
    charges = {one.resource: int(need_gb * GB) for one in rooms}
    return place({one.resource: one for one in rooms}, charges, count, policy, watch=watch)


def bound(*rooms: Room, count: int = 1, need_gb: float = 10, exclusive: bool = False) -> Any:
    """What a head of this need waits for."""
    charges = {one.resource: int(need_gb * GB) for one in rooms}
    by_uuid = {one.resource: one for one in rooms}
    return bind(by_uuid, charges, count, exclusive=exclusive)


def test_the_emptiest_device_comes_first() -> None:
    """Fewest neighbours before anything else, whatever fits more tightly elsewhere."""
    assert put(room(0, 5, leases=2), room(1, 20, leases=1)) == ("GPU-1",)
    assert put(room(0, 5, strangers=2), room(1, 20, leases=1)) == ("GPU-1",)
    assert put(room(0, 5, strangers=1, leases=1), room(1, 20, leases=1)) == ("GPU-1",)


def test_the_idlest_of_equally_empty_devices_comes_first() -> None:
    """Between devices with as many leases the one with less recent work is taken."""
    assert put(room(0, 5, utilisation=0.9), room(1, 20, utilisation=0.1)) == ("GPU-1",)


def test_the_tightest_fit_comes_first_where_nothing_else_tells() -> None:
    """Large room is kept for large runs, and the lower index decides between untouched equals."""
    assert put(room(0, 20), room(1, 5)) == ("GPU-1",)
    assert put(room(1, 5), room(0, 5)) == ("GPU-0",)


def test_a_watch_run_is_put_where_the_most_room_is() -> None:
    """Nobody knows what it will need, so company and a tight fit come second."""
    crowded = room(0, 20, leases=2, utilisation=0.9)
    assert put(crowded, room(1, 15), watch=True) == ("GPU-0",)
    assert put(crowded, room(1, 20), watch=True) == ("GPU-1",)
    assert put(room(0, 5), room(1, 20), watch=True, policy="pack") == ("GPU-0",)


@pytest.mark.parametrize("policy", ["spread", "pack"])
@pytest.mark.parametrize("watch", [False, True])
def test_equal_devices_are_taken_in_turn(policy: str, watch: bool) -> None:
    """The one whose last grant is the oldest comes first; a few MB make no difference."""
    rooms = (room(0, 20, last_fence=7), room(1, 19.9, last_fence=5), room(2, 20, last_fence=6))
    assert put(*rooms, policy=policy, watch=watch) == ("GPU-1",)
    assert put(*rooms, policy=policy, watch=watch, count=2) == ("GPU-1", "GPU-2")
    assert put(*rooms, room(3, 20), policy=policy, watch=watch) == ("GPU-3",)


def test_thirty_first_runs_on_seven_equal_slices_are_taken_in_turn() -> None:
    """One after another, each alone on the board, they use every slice as often as any other."""
    slices = [Device(f"MIG-{n}", "1g.10gb", 10 * GB, n, parent="GPU-0") for n in range(7)]
    boards = [replace(board(), mig_enabled=True), *slices]
    state, chosen = gate(boards=boards), list[str]()
    for n in range(30):
        asked = request(f"r{n}", vram=None, name=f"eval{n}")
        state = apply(state, [ev.Requested(NOW, asked, "side")])
        (granted,) = decide(state, sample(boards=boards), NOW).grants
        chosen += granted.devices
        state = apply(state, [ev.Granted(NOW, granted), ev.Withdrawn(NOW, asked.run_id)])
    assert [chosen.count(one.uuid) for one in slices] == [5, 5, 4, 4, 4, 4, 4]
    assert len(set(chosen[:7])) == 7


def test_first_runs_of_one_tick_go_to_different_devices() -> None:
    """A grant counts at once: as a neighbour, and as the device's turn."""
    boards = [board(n) for n in range(3)]
    asked = [request(f"r{n}", vram=None, name=f"eval{n}") for n in range(3)]
    grants = decide(gate(*asked, boards=boards), sample(boards=boards), NOW).grants
    assert [one.devices for one in grants] == [("GPU-0",), ("GPU-1",), ("GPU-2",)]


def test_turns_survive_a_restart_that_folds_the_journal() -> None:
    """The grants of the last day are folded again, those of runs that have ended included."""
    boards = [board(0), board(1)]
    first = request("first")
    events: list[ev.Event] = [
        ev.Requested(NOW, first, "side"),
        ev.Granted(NOW, grant("first", {"GPU-0": GB})),
        ev.Started(NOW, "first", 1, key_of("first"), BOOT),
        ev.Finished(NOW, "first", 1, EndReport(AttemptOutcome.COMPLETED)),
        ev.Released(NOW, "first", "GPU-0"),
    ]
    state = apply(gate(boards=boards), [*events, ev.Restarted(NOW, BOOT)])
    assert state.last_fences == {"GPU-0": 1}
    state = apply(state, [ev.Requested(NOW, request("second"), "side"), ev.Present(NOW, "side")])
    (granted,) = decide(state, sample(boards=boards), NOW).grants
    assert granted.devices == ("GPU-1",)
    forgotten = apply(state, [ev.DeviceForgotten(NOW, "GPU-0")])
    assert not forgotten.last_fences


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
