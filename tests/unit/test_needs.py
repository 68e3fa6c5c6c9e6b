"""Which kind of device an estimate is told of, and that it is the one that is charged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.explaining.waiting import queued_row
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.resources import GB, MACHINE, VRAM
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.faces import words
from tests.kit.core_builders import NOW, board, gate, request, sample

FIRST, SECOND = board(0, model="NVIDIA L4"), board(1, 80 * GB, model="NVIDIA H100")


def known_on(device: Device, *boards: Device, **fields: Any) -> GateState:
    """A gate with one queued run, whose need was measured on one kind of device."""
    asked = request(vram=None, **fields)
    shown = Observation(
        asked.family,
        replace(asked.setting, device_model=device.model),
        VRAM,
        4 * GB,
        complete=True,
        at=1.0,
        device_total_bytes=device.total_bytes,
    )
    return apply(gate(asked, boards=boards), [ev.Sedimented(0.0, shown)])


def told(state: GateState, *there: Device) -> dict[str, Any]:
    """The term of GPU memory that the queue shows, with these devices there."""
    seen = sample(boards=there)
    state, _ = apply_sample(state, seen, NOW)
    (queued,) = state.queue.values()
    row = queued_row(state, decide(state, seen, NOW), queued, 1, NOW)
    (term,) = (t for t in row.estimate.terms if t.resource == VRAM)
    shown: dict[str, Any] = to_json(term)
    return shown


@pytest.mark.parametrize("there", [(FIRST,), (SECOND,), (FIRST, SECOND)])
@pytest.mark.parametrize("known", [FIRST, SECOND])
def test_what_is_told_is_what_is_charged(known: Device, there: tuple[Device, ...]) -> None:
    """Whichever device a run is put on, the estimate beside it is that of this kind of device."""
    state = known_on(known, FIRST, SECOND)
    seen = sample(boards=there)
    state, _ = apply_sample(state, seen, NOW)
    (grant,) = decide(state, seen, NOW).grants
    (given,) = grant.devices
    lease = apply(state, [ev.Granted(NOW, grant)]).leases["run"]
    term = lease.attempt.estimate.term(VRAM)
    assert term.device_model == state.inventory[given].model
    assert term.need_bytes == grant.charges[given]
    assert (term.origin is Origin.MEASURED) == (given == known.uuid)


@pytest.mark.parametrize(("there", "other"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_a_missing_device_gives_nobody_a_number(there: Device, other: Device) -> None:
    """With one of two kinds of device missing, a waiting run is told of the one that is there."""
    locked = [ev.Locked(NOW, MACHINE, "ada", NOW + 60)]
    term = told(apply(known_on(other, FIRST, SECOND), locked), there)
    assert term["device_model"] == there.model
    assert term["origin"] == "scaled"
    assert words.term(term).startswith(f"VRAM on {there.model} ")


def test_a_waiting_run_is_told_of_the_device_that_it_waits_for() -> None:
    """Of several kinds that are there, the reason to wait says which one the number is of."""
    asked = replace(request(vram=60 * GB), run_id="run")
    seen = sample(boards=(FIRST, SECOND), free={FIRST.uuid: 24 * GB, SECOND.uuid: 50 * GB})
    state, _ = apply_sample(gate(asked, boards=(FIRST, SECOND)), seen, NOW)
    (queued,) = state.queue.values()
    decisions = decide(state, seen, NOW)
    row = queued_row(state, decisions, queued, 1, NOW)
    (term,) = (t for t in row.estimate.terms if t.resource == VRAM)
    waits_for = row.reasons[0].resource
    assert waits_for is not None
    assert term.device_model == state.inventory[waits_for].model


def test_where_there_is_one_kind_it_is_not_named() -> None:
    """A machine of one model needs no name beside each number."""
    locked = [ev.Locked(NOW, MACHINE, "ada", NOW + 60)]
    term = told(apply(known_on(FIRST, FIRST, board(2)), locked), FIRST, board(2))
    assert term["device_model"] == ""
    assert words.term(term).startswith("VRAM 4,")
