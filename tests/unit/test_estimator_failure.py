"""A broken estimate is a run without a number, never a broken gate."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.core.learning import needs
from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.gate.simulation.twins import Behaviour, ramp
from tests.kit.checked_simulation import CheckedSimulation, devices


@pytest.mark.behaviour(39)
def test_a_failing_estimate_falls_back_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """When estimating raises, the run is admitted on the watch rung and says why; ticks go on."""

    def broken(*_args: Any, **_options: Any) -> Any:
        raise ZeroDivisionError("no observations")

    monkeypatch.setattr(needs, "estimate", broken)
    simulation = CheckedSimulation(devices())
    run_id = simulation.submit("any", Behaviour(5, vram=ramp(GB)))
    simulation.step()
    (grant,) = (grant for _, grant in simulation.granted)
    assert grant.basis == {RAM: Basis.WATCH, "GPU-0": Basis.WATCH}
    for term in simulation.state.leases[run_id].attempt.estimate.terms:
        assert "no observations" in term.note
        assert (term.need_bytes, term.margin_bytes, term.n, term.lower_bound_bytes) == (
            None,
            0,
            0,
            0,
        )
    simulation.until(lambda: run_id in simulation.ended)
