"""Chosen amounts: charged exactly, never estimated, refused where no run can have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.admission.impossible import Impossible, impossible
from jupyter_gpugate.core.estimates import EstimateTerm, Origin
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.explaining.forecast import forecast
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.learning import needs
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.requests import Basis, Chosen, Grant, Hints, Request
from jupyter_gpugate.core.resources import GB, MB, RAM, VRAM
from jupyter_gpugate.core.run_spec import MOST_WORKERS
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.core_builders import GPU, NOW, board, gate, reasons, request, sample


def chosen(vram: int | None = 20 * GB, ram: int | None = 8 * GB, **fields: Any) -> Request:
    """A request with these amounts, and hints that say something else."""
    return replace(request(vram=GB, ram=GB, **fields), chosen=Chosen(vram, ram))


def granted(*queued: Request, **fields: Any) -> tuple[Grant, ...]:
    """The grants of the first tick."""
    return decide(gate(*queued, **fields), sample(), NOW).grants


def test_charge_and_cap_are_exactly_the_choice() -> None:
    """Whatever hints say and earlier runs needed, without any margin."""
    asked = chosen()
    setting = replace(asked.setting, device_model=board().model)
    seen = [
        Observation(asked.family, asked.setting, RAM, 3 * GB, complete=True, at=0.0),
        Observation(asked.family, setting, VRAM, 3 * GB, complete=True, at=0.0),
    ]
    state = apply(gate(asked), [ev.Sedimented(0.0, one) for one in seen])
    (grant,) = decide(state, sample(), NOW).grants
    assert grant.charges == {RAM: 8 * GB, GPU: 20 * GB}
    assert grant.caps == {GPU: 20 * GB}
    assert grant.basis == {RAM: Basis.CHOSEN, GPU: Basis.CHOSEN}
    estimate = apply(state, [ev.Granted(NOW, grant)]).leases["run"].attempt.estimate
    origins = {term.resource: (term.origin, term.need_bytes, term.n) for term in estimate.terms}
    assert origins == {
        VRAM: (Origin.CHOSEN, 20 * GB, 0),
        RAM: (Origin.CHOSEN, 8 * GB, 0),
    }


def test_the_other_resource_is_estimated_as_ever() -> None:
    """A choice of one says nothing about the other."""
    (grant,) = granted(chosen(ram=None))
    assert grant.basis == {RAM: Basis.HINT, GPU: Basis.CHOSEN}
    (grant,) = granted(replace(chosen(vram=None), hints=Hints()))
    assert grant.basis == {RAM: Basis.CHOSEN, GPU: Basis.WATCH}


def test_a_choice_on_two_devices_is_the_amount_of_each() -> None:
    """GPU memory is chosen per device."""
    boards = [board(0), board(1)]
    state = gate(chosen(gpus=2), boards=boards)
    (grant,) = decide(state, sample(boards=boards), NOW).grants
    assert {grant.charges[uuid] for uuid in grant.devices} == {20 * GB}
    assert len(grant.devices) == 2


def test_requests_that_differ_in_their_choice_differ_in_their_verdict() -> None:
    """One fits and the other waits, though all else is equal."""
    large, small = chosen(run_id="large"), chosen(4 * GB, run_id="small")
    state = gate(large, small)
    seen = sample(free={GPU: 10 * GB})
    (grant,) = decide(state, seen, NOW).grants
    assert (grant.run_id, grant.charges[GPU]) == ("small", 4 * GB)
    (why,) = reasons(state, seen)["large"]
    assert why.numbers["need_bytes"] == 20 * GB


def test_a_broken_estimator_does_not_touch_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is estimated on that resource, so nothing can fail there."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(needs, "estimate", broken)
    (grant,) = granted(chosen(ram=None))
    assert grant.basis == {RAM: Basis.WATCH, GPU: Basis.CHOSEN}


# -- refusals -------------------------------------------------------------------------------------


def problem(asked: Request, state: GateState | None = None) -> Impossible | None:
    """The reason why a request is refused on a machine of 64 GB RAM and one L4."""
    return impossible(state or gate(), sample(), asked)


def test_the_greatest_possible_choice_starts_on_an_empty_machine() -> None:
    """All but the floors; one byte more is refused with both numbers."""
    most_vram, most_ram = 24 * GB - 256 * MB, 64 * GB - int(0.04 * 64 * GB)
    assert problem(chosen(most_vram, None)) is None
    assert granted(chosen(most_vram, None))
    assert problem(chosen(None, most_ram)) is None
    over = problem(chosen(most_vram + 1, None))
    assert over is not None
    assert over.field_name == "chosen.vram_bytes"
    assert over.numbers == {"need_bytes": most_vram + 1, "limit_bytes": most_vram}
    assert f"{most_vram // MB:,} MB at most" in over.message
    over = problem(chosen(None, most_ram + 1))
    assert over is not None
    assert over.field_name == "chosen.ram_bytes"


def test_a_declared_device_has_what_is_declared() -> None:
    """Nothing is kept back of it."""
    state = gate(traits=Traits(usable_vram_bytes={GPU: 30 * GB}))
    assert problem(chosen(30 * GB), state) is None
    assert problem(chosen(30 * GB + 1), state) is not None


@pytest.mark.parametrize("amounts", [(0, None), (-GB, None), (None, 0), (None, MB - 1)])
def test_a_choice_of_next_to_nothing_is_refused(amounts: tuple[Any, Any]) -> None:
    """A megabyte is the least."""
    found = problem(chosen(*amounts))
    assert found is not None
    assert found.field_name.startswith("chosen.")


def test_without_a_gpu_no_gpu_memory_can_be_chosen() -> None:
    """RAM can."""
    found = problem(chosen(gpus=0))
    assert found is not None
    assert found.field_name == "chosen.vram_bytes"
    assert "no GPU" in found.message
    assert problem(chosen(None, gpus=0)) is None


# -- what it teaches ------------------------------------------------------------------------------


def learned(peak: int, charge: int) -> EstimateTerm:
    """The estimate without a choice, after a run with a choice of ``charge``."""
    asked = request(vram=None)
    setting = replace(asked.setting, device_model=board().model)
    shown = Observation(
        asked.family, setting, VRAM, peak, complete=True, at=0.0, charge_bytes=charge
    )
    state = apply(gate(asked), [ev.Sedimented(0.0, shown)])
    return state.queue["run"].estimates[0][1].term(VRAM)


def test_a_peak_well_below_a_choice_is_a_measurement() -> None:
    """It gets the margin of any other; one that filled the choice is the need itself."""
    term = learned(peak=10 * GB, charge=20 * GB)
    assert term.need_bytes == 10 * GB + GB + 64 * MB
    term = learned(peak=20 * GB - 100 * MB, charge=20 * GB)
    assert term.need_bytes == term.peak_bytes == 20 * GB - 100 * MB


def test_any_number_of_workers_fits_into_a_choice_that_fits() -> None:
    """The amount is that of the run, however many workers share it."""
    state, _ = apply_sample(gate(), sample(), NOW)
    assert forecast(state, sample(), chosen(), NOW).max_workers == MOST_WORKERS
    seen = sample(free={GPU: 10 * GB})
    assert forecast(state, seen, chosen(), NOW).max_workers == 0
    assert not forecast(state, seen, chosen(), NOW).would_start
