"""Caps of runs on their devices: what a first run may use, and how it makes way for neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Usage
from jupyter_gpugate.core.requests import Basis, Enforcement
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    GPU,
    NOW,
    board,
    gate,
    granted_to,
    request,
    sample,
    start,
    using,
)

FLOOR = 256 * MB


def first_run(held: int = 0, charge: int = 12 * GB, workers: int = 1) -> GateState:
    """A live first run of a torch cell that had the whole device before it, and holds so much."""
    state = gate(request("first", vram=None, workers=workers), request("next", vram=4 * GB))
    state = start(
        state,
        "first",
        charges={RAM: GB, GPU: charge},
        basis={RAM: Basis.HINT, GPU: Basis.WATCH},
        caps={GPU: 24 * GB - FLOOR},
    )
    lease = using(state.leases["first"], {GPU: Usage(held_bytes=held, peak_bytes=held)})
    return replace(state, leases={"first": lease})


def test_a_first_run_may_use_all_memory_that_nobody_was_promised() -> None:
    """Its charge is half of the device, its cap all the room there; a known need is its own cap."""
    state = gate(request(vram=None), boards=[board(), board(1)])
    grant = granted_to(decide(state, sample(free={GPU: 20 * GB}), NOW))["run"]
    assert (grant.charges[GPU], grant.caps) == (12 * GB, {GPU: 20 * GB - FLOOR})
    known = granted_to(decide(gate(request()), sample(), NOW))["run"]
    assert known.caps[GPU] == known.charges[GPU]


def test_the_cap_of_a_first_run_leaves_out_what_others_are_promised_in_the_same_tick() -> None:
    """A neighbour that is admitted together with it is not in its cap."""
    state = gate(request("first", vram=None), request("next", vram=4 * GB))
    grants = granted_to(decide(state, sample(), NOW))
    assert grants["first"].caps[GPU] == 24 * GB - FLOOR - grants["next"].charges[GPU]


def test_contexts_are_no_part_of_a_first_runs_cap() -> None:
    """Each worker's context is taken off all the room, as it is taken off a charge."""
    state = replace(gate(request(vram=None, workers=2)), device_overhead={board().model: 500 * MB})
    grant = granted_to(decide(state, sample(), NOW))["run"]
    assert grant.caps[GPU] == 24 * GB - FLOOR - 1000 * MB


def test_a_neighbour_lowers_the_cap_of_a_first_run() -> None:
    """What is left beside the neighbour's charge stays in the cap."""
    state = first_run(held=3 * GB)
    decisions = decide(state, sample(free={GPU: 21 * GB}), NOW)
    promised = decisions.grants[0].charges[GPU]
    assert decisions.caps == {"first": {GPU: 24 * GB - FLOOR - promised}}


def test_a_cap_never_falls_below_the_charge_or_what_is_held() -> None:
    """The charge is promised to the run, and what it holds beyond it has been taken."""
    tight = decide(first_run(), sample(free={GPU: 16 * GB + 512 * MB + FLOOR}), NOW)
    assert tight.grants[0].run_id == "next"
    assert tight.caps["first"][GPU] < 12 * GB + 512 * MB
    assert tight.caps["first"][GPU] >= 12 * GB
    over = decide(first_run(held=18 * GB, charge=12 * GB), sample(free={GPU: 5 * GB}), NOW)
    assert over.grants[0].run_id == "next"
    assert over.caps["first"][GPU] >= 18 * GB


def test_contexts_come_off_a_cap_that_follows() -> None:
    """As off the first one: a framework cannot use them, and they take from the same room."""
    state, seen = first_run(held=3 * GB, workers=2), sample(free={GPU: 21 * GB})
    without = decide(state, seen, NOW).caps["first"][GPU]
    costly = replace(state, device_overhead={board().model: 500 * MB})
    assert decide(costly, seen, NOW).caps["first"][GPU] == without - 1000 * MB


def test_a_cap_rises_again_with_memory_that_nobody_is_promised_any_more() -> None:
    """So its own cap never ends a first run beside free memory; small changes are not followed."""
    state = first_run()
    state = replace(state, queue={}, alike={})
    lowered = ev.Recapped(NOW, "first", state.leases["first"].terms.fence, {GPU: 14 * GB})
    state = apply(state, [lowered])
    assert decide(state, sample(), NOW).caps == {"first": {GPU: 24 * GB - FLOOR}}
    assert decide(state, sample(free={GPU: 14 * GB + FLOOR + 255 * MB}), NOW).caps == {}
    lease = state.leases["first"]
    assert (lease.caps[GPU], lease.widest_caps[GPU]) == (14 * GB, 24 * GB - FLOOR)


def test_others_that_take_memory_lower_no_cap() -> None:
    """A cap makes way for runs that are admitted; what others take shows in the free memory."""
    state = first_run()
    state = replace(state, queue={}, alike={})
    assert decide(state, sample(free={GPU: 14 * GB}), NOW).caps == {}


@pytest.mark.parametrize(
    ("basis", "enforcement"),
    [(Basis.CALIBRATED, Enforcement.ENFORCED), (Basis.WATCH, Enforcement.ADVISED)],
)
def test_only_caps_that_are_enforced_and_not_known_needs_follow(
    basis: Basis, enforcement: Enforcement
) -> None:
    """A framework that is only advised reads its cap once; a known need is a promise both ways."""
    state = first_run()
    lease = state.leases["first"]
    rungs = dict.fromkeys(lease.charges, basis)
    terms = replace(lease.terms, basis=rungs, enforcement=enforcement)
    state = replace(state, leases={"first": replace(lease, terms=terms)})
    decisions = decide(state, sample(), NOW)
    assert decisions.grants
    assert decisions.caps == {}
