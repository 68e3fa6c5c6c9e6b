"""What is set aside so that nobody waits for ever: heads, and devices kept clear."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.decisions import Check, Earmark
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Lingering, Usage
from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.core_builders import (
    GPU,
    NOW,
    board,
    finish,
    gate,
    granted_to,
    reasons,
    request,
    sample,
    start,
    using,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.requests import Request

LONG_AGO = NOW - 700
TWO = [board(0), board(1)]


def busy(*waiting: Request, at: float = LONG_AGO, **charges: int) -> GateState:
    """A live run per device of ``charges``, all of it held; these wait behind it since ``at``."""
    boards = [board(int(name[-1])) for name in charges] or [board()]
    live = [request(f"on-{name}") for name in charges]
    state = gate(*live, boards=boards, at=LONG_AGO - 100)
    for name, charge in charges.items():
        uuid = f"GPU-{name[-1]}"
        state = start(state, f"on-{name}", charges={RAM: GB, uuid: charge})
        lease = state.leases[f"on-{name}"]
        usage = {RAM: Usage(held_bytes=GB), uuid: Usage(held_bytes=charge)}
        state = replace(state, leases={**state.leases, lease.run_id: using(lease, usage)})
    return apply(state, [ev.Requested(at, one, "side") for one in waiting])


def heads(state: GateState, **free: int) -> list[tuple[str, tuple[str, ...]]]:
    """Who heads which devices, the oldest first."""
    return [(mark.run_id, mark.devices) for mark in marks(state, **free) if mark.check is Check.FIT]


def marks(state: GateState, **free: int) -> tuple[Earmark, ...]:
    """What is set aside in a tick with so much free per device."""
    boards = list(state.inventory.values())
    left = {f"GPU-{name[-1]}": held for name, held in free.items()}
    return decide(state, sample(boards=boards, free=left), NOW).earmarks


def test_a_head_has_waited_long_and_for_room_only() -> None:
    """Ten minutes make a head; a lock, a limit or a watch slot in the way does not."""
    large = request("large", vram=18 * GB)
    assert heads(busy(large, gpu0=10 * GB), gpu0=14 * GB) == [("large", (GPU,))]
    assert heads(busy(large, at=NOW - 599, gpu0=10 * GB), gpu0=14 * GB) == []
    locked = apply(busy(large, gpu0=10 * GB), [ev.Locked(NOW, GPU, "bob", NOW + 60)])
    assert heads(locked, gpu0=14 * GB) == []
    limited = replace(busy(large, gpu0=10 * GB), traits=Traits(max_running_per_user=1))
    assert heads(limited, gpu0=14 * GB) == []


def test_a_heads_earmark_covers_all_of_its_need() -> None:
    """Its need of the device and of RAM counts against all that come later."""
    state = busy(request("large", vram=18 * GB, ram=8 * GB), request("small"), gpu0=10 * GB)
    (mark,) = marks(state, gpu0=14 * GB)
    need = 18 * GB + (18 * GB + 9) // 10 + 64 * MB
    assert mark.bytes_by_resource[GPU] == need
    assert mark.bytes_by_resource[RAM] > 8 * GB
    (reason,) = reasons(state, sample(free={GPU: 14 * GB}))["small"]
    assert reason.numbers["earmarked_bytes"] == need
    assert reason.numbers["room_bytes"] == 14 * GB - 256 * MB - need


def test_an_older_run_does_not_wait_for_a_younger_head() -> None:
    """What is set aside for a run never stands in the way of those before it."""
    state = busy(request("older"), request("large", vram=18 * GB), request("younger"), gpu0=10 * GB)
    granted = granted_to(decide(state, sample(free={GPU: 14 * GB}), NOW))
    assert list(granted) == ["older"]
    assert heads(state, gpu0=14 * GB) == [("large", (GPU,))]


def test_a_run_without_gpus_can_be_a_head() -> None:
    """A large need of RAM alone does not starve behind small ones."""
    state = busy(request("large", ram=50 * GB, gpus=0), request("small", ram=4 * GB, gpus=0))
    state = start(apply(state, [ev.Requested(NOW, request("live"), "side")]), "live")
    seen = sample(ram=40 * GB)
    lease = state.leases["live"]
    held = {RAM: Usage(held_bytes=20 * GB)}
    state = replace(state, leases={"live": replace(using(lease, held), charges={RAM: 20 * GB})})
    decisions = decide(state, seen, NOW)
    assert [(mark.run_id, mark.devices) for mark in decisions.earmarks] == [("large", ())]
    assert decisions.grants == ()


def test_each_resource_has_one_head_the_oldest() -> None:
    """Two large runs head a device each; the third waits behind them."""
    waiting = [request(f"large{n}", vram=18 * GB) for n in range(3)]
    state = busy(*waiting, gpu0=10 * GB, gpu1=12 * GB)
    assert heads(state, gpu0=14 * GB, gpu1=12 * GB) == [
        ("large0", ("GPU-0",)),
        ("large1", ("GPU-1",)),
    ]


def test_a_younger_head_never_holds_up_an_older_one() -> None:
    """The oldest sees nothing set aside, so two heads cannot wait for each other."""
    first, second = (
        request("first", vram=18 * GB, ram=30 * GB),
        request("second", vram=18 * GB, ram=30 * GB),
    )
    state = busy(first, second, gpu0=10 * GB, gpu1=12 * GB)
    found = reasons(state, sample(boards=TWO, free={"GPU-0": 14 * GB, "GPU-1": 12 * GB}))
    assert found["first"][0].numbers["earmarked_bytes"] == 0
    freed = sample(boards=TWO, free={"GPU-0": 24 * GB, "GPU-1": 12 * GB})
    leases = {run_id: lease for run_id, lease in state.leases.items() if run_id != "on-gpu0"}
    assert "first" in granted_to(decide(replace(state, leases=leases), freed, NOW))


def test_a_head_is_not_bound_to_a_device_whose_watch_slot_is_taken() -> None:
    """It waits for room on the other device, and only there is its room set aside."""
    state = busy(request("new", vram=None), gpu0=10 * GB, gpu1=23 * GB)
    lease = state.leases["on-gpu0"]
    basis = {**lease.terms.basis, "GPU-0": Basis.WATCH}
    watched = replace(lease, terms=replace(lease.terms, basis=basis))
    state = replace(state, leases={**state.leases, "on-gpu0": watched})
    assert heads(state, gpu0=14 * GB, gpu1=512 * MB) == [("new", ("GPU-1",))]


def test_what_could_not_fit_even_alone_has_no_head() -> None:
    """Others hold the memory: nothing is set aside, and they are named."""
    state = busy(request("large", vram=18 * GB), gpu0=2 * GB)
    assert heads(state, gpu0=8 * GB) == []
    (reason,) = reasons(state, sample(free={GPU: 8 * GB}))["large"]
    assert reason.check is Check.EXTERNAL_HOLDS


def test_a_watched_head_asks_for_no_more_than_its_least() -> None:
    """After its wait an unknown run is content with what is known of it, or 1 GB."""
    state = busy(request("new", vram=None), request("small", vram=100 * MB), gpu0=23 * GB)
    (mark,) = marks(state, gpu0=900 * MB)
    assert mark.bytes_by_resource[GPU] == GB


# -- exclusive runs -----------------------------------------------------------------------------


def test_nothing_new_starts_where_an_exclusive_run_waits() -> None:
    """The oldest that waits for leases only has its device kept clear, at once."""
    state = busy(request("alone", exclusive=True), request("small"), at=NOW, gpu0=GB)
    assert marks(state, gpu0=23 * GB) == (Earmark("alone", Check.EXCLUSIVE, (GPU,), {}),)
    (reason,) = reasons(state, sample(free={GPU: 23 * GB}))["small"]
    assert (reason.check, reason.who) == (Check.EXCLUSIVE, ("alone",))


def test_an_exclusive_run_waits_where_the_fewest_runs_live() -> None:
    """Of several devices those with the fewest leases are kept clear; the others go on."""
    state = busy(request("alone", exclusive=True), at=NOW, gpu0=GB, gpu1=GB)
    more = apply(state, [ev.Requested(NOW, request("more"), "side")])
    crowded = start(more, "more", charges={RAM: GB, "GPU-0": GB})
    (mark,) = marks(crowded, gpu0=22 * GB, gpu1=23 * GB)
    assert mark.devices == ("GPU-1",)


def test_an_exclusive_run_of_several_devices_has_all_of_them_kept_clear() -> None:
    """It waits for both, and one that is free meanwhile stays free for it."""
    state = gate(
        request("live"), request("alone", exclusive=True, gpus=2), request("small"), boards=TWO
    )
    state = start(state, "live", charges={RAM: GB, "GPU-0": GB})
    seen = sample(boards=TWO, free={"GPU-0": 23 * GB})
    decisions = decide(state, seen, NOW)
    (mark,) = decisions.earmarks
    assert (mark.run_id, sorted(mark.devices)) == ("alone", ["GPU-0", "GPU-1"])
    assert granted_to(decisions) == {}
    assert reasons(state, seen)["small"][0].check is Check.EXCLUSIVE


def test_a_device_stays_clear_until_the_last_runs_memory_is_back() -> None:
    """Between the last lease's end and its memory's return nobody slips in."""
    state = busy(request("live"), request("alone", vram=20 * GB, exclusive=True), request("small"))
    state = start(state, "live", charges={RAM: GB, GPU: 10 * GB})
    lease = state.leases["live"]
    state = replace(state, leases={"live": using(lease, {GPU: Usage(held_bytes=10 * GB)})})
    state = apply(state, [finish(state, "live")])
    decisions = decide(state, sample(free={GPU: 14 * GB}), NOW)
    assert {mark.check for mark in decisions.earmarks} == {Check.FIT, Check.EXCLUSIVE}
    assert granted_to(decisions) == {}


def test_an_exclusive_run_that_waits_for_something_else_blocks_nobody() -> None:
    """While RAM is lacking too, others may use the device."""
    for ram in (100 * GB, 50 * GB):  # more than there is, and more than is left beside the live run
        alone = request("alone", ram=ram, exclusive=True)
        state = busy(alone, request("small"), at=NOW, gpu0=GB)
        lease = state.leases["on-gpu0"]
        held = replace(lease, charges={RAM: 8 * GB, GPU: GB})
        state = replace(state, leases={"on-gpu0": held})
        assert marks(state, gpu0=23 * GB) == ()
        assert "small" in granted_to(decide(state, sample(free={GPU: 23 * GB}), NOW))


def test_one_exclusive_run_at_a_time_has_its_devices_kept_clear() -> None:
    """The oldest: behind it the machine goes on."""
    waiting = [request(f"alone{n}", exclusive=True) for n in range(2)]
    state = busy(*waiting, at=NOW, gpu0=GB, gpu1=GB)
    assert [mark.run_id for mark in marks(state, gpu0=23 * GB, gpu1=23 * GB)] == ["alone0"]


def test_an_exclusive_run_is_no_second_head_of_a_device() -> None:
    """It has the device kept clear behind the older head, and nothing more set aside there."""
    large, alone = request("large", vram=18 * GB), request("alone", vram=20 * GB, exclusive=True)
    state = apply(busy(large, alone, gpu1=23 * GB), [ev.DeviceSeen(NOW, board(0))])
    left = Lingering("gone", "ada", GPU, 0, 10 * GB, 10 * GB, NOW, tree_alive=False)
    state = replace(state, lingering={("gone", GPU): left})
    found = marks(state, gpu0=14 * GB, gpu1=GB)
    assert [(mark.run_id, mark.check, mark.devices) for mark in found] == [
        ("large", Check.FIT, (GPU,)),
        ("alone", Check.EXCLUSIVE, (GPU,)),
    ]


def test_a_run_heads_the_device_that_has_no_head_yet() -> None:
    """Even where more is lacking there than behind the other head."""
    waiting = [request("large0", vram=3 * GB), request("large1", vram=10 * GB)]
    state = busy(*waiting, gpu0=21 * GB, gpu1=12 * GB)
    lease = state.leases["on-gpu1"]
    promised = replace(lease, charges={**lease.charges, "GPU-1": 36 * GB})
    state = replace(state, leases={**state.leases, "on-gpu1": promised})
    assert heads(state, gpu0=3 * GB, gpu1=12 * GB) == [
        ("large0", ("GPU-0",)),
        ("large1", ("GPU-1",)),
    ]
