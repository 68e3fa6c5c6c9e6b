"""Who asks for a GPU and never uses one is advised to ask for none."""

from __future__ import annotations

from dataclasses import replace

from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.learning.calibration import from_observations
from jupyter_gpugate.core.learning.idle import advice
from jupyter_gpugate.core.resources import MB, RAM
from jupyter_gpugate.faces import card
from tests.kit.observations import A100, FAMILY, failed, ran

IDLE = "2 complete attempts of such runs used no memory of their GPU"
ADVISED = (f"{IDLE}: with --gpus 0 the run gets no GPU and need not wait for one",)


def advised(*observations: Observation) -> tuple[str, ...]:
    """The advice after these attempts."""
    return advice(from_observations(observations), FAMILY)


def test_two_complete_attempts_without_gpu_memory_are_enough() -> None:
    """In whatever settings; attempts that did not complete and RAM count for nothing."""
    assert advised(ran(0), ran(0)) == ADVISED
    assert advised(ran(0), ran(0, device_model=f"other {A100}")) == ADVISED
    assert advised(ran(0), ran(900, resource=RAM), ran(0), failed(0)) == ADVISED
    assert not advised(ran(0), failed(0))
    assert not advised(ran(0, resource=RAM), ran(0, resource=RAM))


def test_whoever_has_used_the_gpu_once_is_not_advised() -> None:
    """In any attempt, complete or not, or by way of a daemon."""
    assert not advised(ran(0), ran(0), ran(300))
    assert not advised(ran(0), ran(0), failed(300))
    assert not advised(ran(0), ran(0), replace(failed(0), elsewhere_bytes=900 * MB))
    assert not advised(ran(0), ran(0, family=replace(FAMILY, source_hash="two")))


def test_cards_show_the_advice() -> None:
    """While the run waits for its GPU, and when it has ended."""
    for status in ("queued", "ended"):
        rows = card.rows({"run_id": "r", "status": status, "advice": ADVISED})
        assert ("hint", ADVISED[0]) in [(row.label, row.text) for row in rows]
