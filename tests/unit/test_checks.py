"""The checks in their order: what a run is told first, and what makes it start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.checks import Admission
from jupyter_gpugate.core.admission.decide import decide, enforcement_of, verdict_on
from jupyter_gpugate.core.decisions import Check, KeptWaiting, Reason
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Usage
from jupyter_gpugate.core.requests import Basis, Enforcement
from jupyter_gpugate.core.resources import (
    GB,
    MACHINE,
    MB,
    RAM,
    VRAM,
)
from jupyter_gpugate.core.samples import Fault, ProcessKey
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.core_builders import (
    GPU,
    NOW,
    board,
    gate,
    granted_to,
    process,
    reasons,
    request,
    sample,
    start,
    using,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.samples import Sample

#: A need of 2 GB as a hint: 10 % and 64 MB on top.
NEED = 2 * GB + (2 * GB + 9) // 10 + 64 * MB


def told(state: GateState, seen: Sample | None = None, run_id: str = "run") -> list[Check]:
    """What a run is told, in order; nothing if it starts."""
    return [reason.check for reason in reasons(state, seen).get(run_id, ())]


def locked(state: GateState, resource: str) -> GateState:
    """Somebody works there by hand."""
    return apply(state, [ev.Locked(NOW, resource, "bob", NOW + 60)])


def drained(state: GateState) -> GateState:
    """The gate takes no new runs."""
    return apply(state, [ev.DrainChanged(NOW, draining=True)])


def crowded(traits: Traits | None = None) -> GateState:
    """An exclusive run of the same owner has the device; one more waits."""
    state = gate(request("alone", exclusive=True), request("run"), traits=traits)
    return start(state, "alone")


FULL = sample(free={GPU: GB})
LIMITED = Traits(max_running_per_user=1)


def test_each_check_is_told_before_those_that_come_after_it() -> None:
    """Lock, drain, exclusive, limits, fit: the first that does not pass stands first."""
    state = crowded(LIMITED)
    assert told(drained(locked(state, MACHINE)), FULL)[0] is Check.LOCK
    assert told(drained(state), FULL) == [Check.DRAIN, Check.EXCLUSIVE, Check.LIMITS]
    assert told(state, FULL) == [Check.EXCLUSIVE, Check.LIMITS]
    shared = start(gate(request("live"), request("run"), traits=LIMITED), "live")
    assert told(shared, FULL) == [Check.LIMITS, Check.EXTERNAL_HOLDS]
    free = start(gate(request("live"), request("run")), "live")
    assert told(free, FULL) == [Check.EXTERNAL_HOLDS]
    assert told(free) == []


def test_a_parked_run_is_told_only_that() -> None:
    """While the server that submitted it is away, nothing else matters."""
    state = drained(gate(request()))
    away = replace(state, run_sides={"side": NOW - 31})
    assert told(away, FULL) == [Check.PARKED]
    assert told(replace(away, patient_until=NOW - 1), FULL)[0] is Check.DRAIN
    first_heard_of = apply(away, [ev.Requested(NOW, request("new"), "another side")])
    assert told(first_heard_of, FULL, "new")[0] is Check.DRAIN


def test_a_locked_device_closes_only_itself() -> None:
    """The other device and runs without one go on."""
    boards = [board(0), board(1)]
    state = locked(gate(request(), request("none", gpus=0), boards=boards), GPU)
    granted = granted_to(decide(state, sample(boards=boards), NOW))
    assert granted["run"].devices == ("GPU-1",)
    assert granted["none"].devices == ()


def test_runs_per_device_and_per_user_have_limits() -> None:
    """Eight runs on a device, any number of one user, unless a site says otherwise."""
    state = gate(*(request(f"r{n}", vram=100 * MB) for n in range(9)))
    granted = granted_to(decide(state, sample(), NOW))
    assert len(granted) == 8
    (reason,) = reasons(state)["r8"]
    assert (reason.check, reason.resource) == (Check.LIMITS, GPU)
    assert reason.numbers == {"running": 8, "limit": 8}
    user = gate(request("a"), request("b"), traits=LIMITED)
    (reason,) = reasons(user)["b"]
    assert (reason.check, reason.resource) == (Check.LIMITS, None)
    two = gate(*(request(run_id) for run_id in "abc"), traits=Traits(max_running_per_user=2))
    assert [*granted_to(decide(two, sample(), NOW))] == ["a", "b"]


def test_a_run_that_is_exactly_as_large_as_the_room_starts() -> None:
    """Need <= room: to the byte."""
    state = gate(request())
    floor = 256 * MB
    assert told(state, sample(free={GPU: NEED + floor})) == []
    (reason,) = reasons(state, sample(free={GPU: NEED + floor - 1}))["run"]
    assert reason.numbers["need_bytes"] == NEED
    assert reason.numbers["room_bytes"] == NEED - 1


def test_one_that_does_not_fit_blocks_nobody() -> None:
    """A large run is passed over, and the small one behind it starts in the same tick."""
    state = gate(request("large", vram=20 * GB), request("small"))
    seen = sample(free={GPU: 10 * GB})
    assert list(granted_to(decide(state, seen, NOW))) == ["small"]


def test_grants_of_a_tick_add_up() -> None:
    """Each grant lowers what the next request sees: of three runs of 10 GB two fit on 24."""
    state = gate(*(request(f"r{n}", vram=10 * GB) for n in range(3)))
    assert list(granted_to(decide(state, sample(), NOW))) == ["r0", "r1"]
    (reason,) = reasons(state)["r2"]
    assert reason.numbers["reserved_bytes"] == 2 * (11 * GB + 64 * MB)


@pytest.mark.parametrize("present", [True, False], ids=["lost", "not listed"])
def test_a_run_on_a_machine_whose_only_device_is_gone_waits(present: bool) -> None:
    """It is told so, is no head however long it waits, and runs without GPUs go on."""
    seen = sample()
    lost = replace(seen.devices[0], free_bytes=None, fault=Fault("nvml-15", "GPU is lost", NOW))
    seen = replace(seen, devices=(lost,) if present else ())
    state = gate(request(), request("none", gpus=0), at=NOW - 5000)
    decisions = decide(state, seen, NOW)
    assert list(granted_to(decisions)) == ["none"]
    assert told(state, seen) == [Check.MISSING]
    assert decisions.earmarks == ()


def test_several_devices_at_once_or_none() -> None:
    """With one of two devices full nothing is granted, and the full one is named."""
    boards = [board(0), board(1)]
    state = gate(request(gpus=2), boards=boards)
    assert told(state, sample(boards=boards)) == []
    (reason,) = reasons(state, sample(boards=boards, free={"GPU-1": GB}))["run"]
    assert (reason.check, reason.resource) == (Check.EXTERNAL_HOLDS, "GPU-1")


def test_of_several_obstacles_the_one_that_lasts_is_told() -> None:
    """With one device full and the other missing, a run of two is not told that room will do."""
    boards = [board(0), board(1)]
    state = gate(request(gpus=2), boards=boards)
    seen = sample(boards=[board(0)], free={"GPU-0": GB})
    assert told(state, seen) == [Check.MISSING]


def test_more_devices_than_there_are_of_one_model() -> None:
    """With devices of two models a run of two is told how many there are."""
    boards = [board(0, model="A"), board(1, model="B")]
    (reason,) = reasons(gate(request(gpus=2), boards=boards), sample(boards=boards))["run"]
    assert (reason.check, reason.resource) == (Check.MISSING, None)
    assert reason.numbers == {"wanted": 2, "present": 1}
    boards.append(board(2, model="B"))
    (reason,) = reasons(gate(request(gpus=3), boards=boards), sample(boards=boards))["run"]
    assert reason.numbers == {"wanted": 3, "present": 2}


def test_what_ends_by_itself_is_told_before_what_others_hold() -> None:
    """A run that may get the other device when an exclusive run ends is told to wait for that."""
    boards = [board(0), board(1)]
    state = gate(request("alone", exclusive=True), request(), boards=boards)
    state = start(state, "alone")
    seen = sample(boards=boards, free={"GPU-1": GB})
    assert told(state, seen) == [Check.EXCLUSIVE]


def test_an_exclusive_run_waits_for_all_leases_and_only_for_leases() -> None:
    """External holders do not block it; what they hold only has to leave room."""
    state = gate(request("live"), request("run", exclusive=True))
    assert told(start(state, "live")) == [Check.EXCLUSIVE]
    alone = gate(request("run", exclusive=True))
    external = process(ProcessKey(77, 7), GB)
    assert told(alone, sample(free={GPU: 10 * GB}, processes=[external])) == []


# -- the trust ladder ---------------------------------------------------------------------------


def test_the_best_rung_is_taken_and_recorded() -> None:
    """Calibrated beats a hint, a hint beats watching, each resource by itself."""
    observed = Observation(
        request().family,
        replace(request().setting, device_model=board().model),
        VRAM,
        GB,
        complete=True,
        at=0.0,
    )
    state = apply(gate(), [ev.Sedimented(0.0, observed)])
    state = apply(state, [ev.Requested(NOW, request(ram=None), "side")])
    basis = granted_to(decide(state, sample(), NOW))["run"].basis
    assert basis == {RAM: Basis.WATCH, GPU: Basis.CALIBRATED}
    hinted = granted_to(decide(gate(request()), sample(), NOW))["run"].basis
    assert hinted == {RAM: Basis.HINT, GPU: Basis.HINT}


def test_an_unknown_run_is_charged_its_share_and_never_nothing() -> None:
    """Half of the device and a quarter of the RAM, also where nearly nothing is left to give."""
    state = gate(request(vram=None, ram=None))
    charges = granted_to(decide(state, sample(), NOW))["run"].charges
    assert charges == {RAM: 16 * GB, GPU: 12 * GB}
    (reason,) = reasons(state, sample(free={GPU: 300 * MB}))["run"]
    assert reason.numbers["need_bytes"] >= GB


def test_an_unknown_run_shrinks_to_what_fits_after_a_while() -> None:
    """After watch_wait_s it takes what there is, down to 1 GB."""
    young, old = gate(request(vram=None)), gate(request(vram=None), at=NOW - 300)
    seen = sample(free={GPU: 6 * GB})
    state = start(gate(request("live"), request(vram=None)), "live", charges={GPU: 10 * GB})
    assert told(young, seen) == [], "alone on the device it is charged what is there"
    waiting = replace(state, queue=young.queue, alike=young.alike)
    assert told(waiting, sample(free={GPU: 14 * GB})) == [Check.FIT]
    waiting = replace(state, queue=old.queue, alike=old.alike)
    granted = granted_to(decide(waiting, sample(free={GPU: 14 * GB}), NOW))
    assert granted["run"].charges[GPU] == 4 * GB - 256 * MB


def test_one_unknown_run_at_a_time_on_a_device_and_many_on_ram() -> None:
    """The second waits for the first one's slot; without GPUs as many start as fit."""
    state = gate(request("a", vram=None), request("b", vram=None))
    assert told(state, run_id="b") == [Check.WATCH_SLOT]
    many = gate(*(request(f"r{n}", vram=None, ram=None, gpus=0) for n in range(4)))
    assert len(granted_to(decide(many, sample(), NOW))) == 3  # 3 x 16 of 60 GB


@pytest.mark.parametrize("resource", [GPU, RAM])
def test_no_unknown_run_starts_beside_an_overrun(resource: str) -> None:
    """A run above its charge shows that charges cannot be trusted there for now."""
    unknown = request(vram=None) if resource == GPU else request(ram=None)
    state = start(gate(request("live"), unknown, request("known")), "live")
    lease = state.leases["live"]
    usage = {**lease.usage, resource: Usage(overrun_at=NOW)}
    state = replace(state, leases={"live": using(lease, usage)})
    assert told(state) == [Check.OVERRUN]
    assert told(state, run_id="known") == []


def test_a_margin_that_the_machine_cannot_give_is_no_condition() -> None:
    """A run that was seen to hold nearly all of a device starts on an empty one all the same."""
    peak = 23 * GB
    family, setting = request().family, replace(request().setting, device_model=board().model)
    shown = Observation(family, setting, VRAM, peak, complete=True, at=0.0)
    state = apply(gate(), [ev.Sedimented(0.0, shown)])
    state = apply(state, [ev.Requested(NOW, request(vram=None), "side")])
    grant = granted_to(decide(state, sample(), NOW))["run"]
    assert grant.charges[GPU] == 24 * GB - 256 * MB
    assert told(state, sample(free={GPU: 22 * GB})) == [Check.EXTERNAL_HOLDS]


def test_the_declared_ledger_asks_for_a_number() -> None:
    """Where nothing is measured only runs with a number start, on the declared rung."""
    seen = sample()
    silent = replace(seen.devices[0], free_bytes=None, fault=Fault("nvml-3", "no memory", NOW))
    seen = replace(seen, devices=(silent,))
    traits = Traits(usable_vram_bytes={GPU: 5 * GB})
    state = gate(request("a"), request("b"), request("c"), request("d", vram=None), traits=traits)
    granted = granted_to(decide(state, seen, NOW))
    assert list(granted) == ["a", "b"]
    assert granted["a"].basis[GPU] is Basis.DECLARED
    assert told(state, seen, "c") == [Check.FIT]
    assert told(state, seen, "d") == [Check.UNMEASURED]


# -- the grant ----------------------------------------------------------------------------------


def test_a_cap_is_the_charge_less_what_contexts_cost() -> None:
    """Each worker's context is taken off, and never all of the charge."""
    state = replace(
        gate(request(workers=2, vram=4 * GB)), device_overhead={board().model: 500 * MB}
    )
    grant = granted_to(decide(state, sample(), NOW))["run"]
    assert grant.caps[GPU] == grant.charges[GPU] - 1000 * MB
    small = replace(gate(request(workers=2, vram=MB)), device_overhead={board().model: 500 * MB})
    grant = granted_to(decide(small, sample(), NOW))["run"]
    assert grant.caps[GPU] == grant.charges[GPU]


@pytest.mark.parametrize(
    ("runtime", "kind", "gpus", "how"),
    [
        ("torch 2.4", "cell", 1, Enforcement.ENFORCED),
        ("torch 2.4", "program", 1, Enforcement.NONE),
        ("jax 0.4", "cell", 1, Enforcement.ADVISED),
        ("", "cell", 1, Enforcement.NONE),
        ("torch 2.4", "cell", 0, Enforcement.NONE),
    ],
)
def test_how_far_a_cap_binds(runtime: str, kind: str, gpus: int, how: Enforcement) -> None:
    """A cell's torch is capped, other frameworks are advised, anything else is watched."""
    assert enforcement_of(request(runtime=runtime, kind=kind, gpus=gpus)) is how


def test_a_question_reserves_nothing_and_counts_what_is_set_aside() -> None:
    """What a run would be told now depends on those before it, and changes nothing for them."""
    state = gate(request("old", vram=17 * GB), at=NOW - 700)
    state = start(apply(state, [ev.Requested(NOW, request("live"), "side")]), "live")
    seen = sample(free={GPU: 20 * GB})
    verdict = verdict_on(state, seen, request("new", name="asked"), NOW)
    assert isinstance(verdict, KeptWaiting)
    assert verdict.reasons[0].numbers["earmarked_bytes"] > 18 * GB
    assert isinstance(verdict_on(gate(), sample(), request("new"), NOW), Admission)
    assert "new" not in state.queue


def test_reasons_are_values() -> None:
    """Two reasons with the same content are the same reason."""
    assert Reason(Check.FIT, GPU, {"a": 1}) == Reason(Check.FIT, GPU, {"a": 1})
    assert Reason(Check.PARKED).numbers == {}
