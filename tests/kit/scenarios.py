"""Questions to a simulated gate."""

from __future__ import annotations

from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.gate.simulation.twins import Behaviour
from tests.kit.checked_simulation import CheckedSimulation

GPU = "GPU-0"


def why(simulation: CheckedSimulation, run_id: str) -> Check | None:
    """The dominant reason that a run waits for."""
    queued = simulation.state.queue.get(run_id)
    reasons = simulation.decisions.reasons_of(queued.key) if queued else ()
    return reasons[0].check if reasons else None


def ended(simulation: CheckedSimulation, run_id: str) -> None:
    """Step until a run has ended."""
    simulation.until(lambda: run_id in simulation.ended)


def learned(
    simulation: CheckedSimulation, name: str, behaviour: Behaviour, **fields: object
) -> None:
    """Run an eval once, so that the next one is calibrated."""
    ended(simulation, simulation.submit(name, behaviour, **fields))
    simulation.step()
