"""Requests that no waiting could start are refused at submit, naming the field and both numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.impossible import Impossible, impossible
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.requests import Hints
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    VRAM,
)
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.core_builders import GPU, board, gate, request, sample


def problem(state: GateState | None = None, **fields: Any) -> Impossible | None:
    """What is wrong with a request of these fields on a machine of 64 GB RAM and one L4."""
    return impossible(state or gate(), sample(), request(**fields))


def test_what_fits_an_empty_machine_is_taken() -> None:
    """To the last byte of the hint: a margin is no reason to refuse."""
    assert problem() is None
    assert problem(vram=24 * GB, ram=64 * GB) is None
    assert problem(vram=None, ram=None) is None
    assert problem(gpus=0, vram=None) is None
    assert problem(vram=1, ram=1, workers=1, episodes=1) is None


@pytest.mark.parametrize(
    ("fields", "field", "need", "limit"),
    [
        ({"vram": 24 * GB + 1}, "hints.vram_bytes", 24 * GB + 1, 24 * GB),
        ({"ram": 65 * GB}, "hints.ram_bytes", 65 * GB, 64 * GB),
    ],
)
def test_a_hint_above_the_machine_names_both_numbers(
    fields: dict[str, Any], field: str, need: int, limit: int
) -> None:
    """What it needs and what there is, in the words and as numbers."""
    found = problem(**fields)
    assert found is not None
    assert found.field_name == field
    assert found.numbers == {"need_bytes": need, "limit_bytes": limit}
    assert f"{limit // MB:,} MB" in found.message


def test_more_devices_than_there_are() -> None:
    """Of one model: two models of one device each make no pair."""
    boards = [board(0, model="A"), board(1, model="B")]
    found = problem(gate(boards=boards), gpus=2)
    assert found is not None
    assert (found.field_name, found.numbers) == ("gpus", {"asked": 2, "present": 1})
    assert problem(gate(boards=[board(0), board(1)]), gpus=2) is None
    none = problem(gate(boards=()))
    assert none is not None
    assert (
        none.message
        == "gpus: the run asks for 1 GPU, but this machine has no GPU: ask for 0, or leave it out"
    )


def test_slices_and_unified_boards_are_counted_as_what_they_are() -> None:
    """A process sees one MIG slice; a board in slices and shared memory are no devices."""
    slices = [Device(f"MIG-{n}", "1g.10gb", 10 * GB, n, parent=GPU) for n in range(2)]
    boards = [replace(board(), mig_enabled=True), *slices, replace(board(1), unified=True)]
    assert problem(gate(boards=boards)) is None
    found = problem(gate(boards=boards), gpus=2)
    assert found is not None
    assert found.numbers["present"] == 1
    large = problem(gate(boards=boards), vram=12 * GB)
    assert large is not None
    assert large.numbers["limit_bytes"] == 10 * GB


def test_a_missing_device_is_still_one_of_the_machines() -> None:
    """What is gone for now may come back: the run waits instead of being refused."""
    assert impossible(gate(), sample(boards=()), request()) is None


def test_a_declared_device_may_be_larger_than_it_says() -> None:
    """The greater of usable and physical is the limit."""
    state = gate(traits=Traits(usable_vram_bytes={GPU: 30 * GB}))
    assert problem(state, vram=28 * GB) is None
    found = problem(state, vram=31 * GB)
    assert found is not None
    assert found.numbers["limit_bytes"] == 30 * GB


def learned(resource: str, peak: int, workers: int = 1) -> GateState:
    """A gate that has seen a run complete with this peak."""
    setting = request(workers=workers).setting
    if resource == VRAM:
        setting = replace(setting, device_model=board().model)
    shown = Observation(request().family, setting, resource, peak, complete=True, at=0.0)
    return apply(gate(), [ev.Sedimented(0.0, shown)])


def test_a_measured_need_is_not_refused_for_its_margin() -> None:
    """What ran here once may run here again."""
    assert problem(learned(RAM, 62 * GB), ram=None) is None
    assert problem(learned(VRAM, 23 * GB), vram=None) is None


def test_a_number_of_other_settings_refuses_nothing() -> None:
    """Four workers may share what one needed: only what was measured, or hinted, is certain."""
    assert problem(learned(VRAM, 8 * GB), vram=None, workers=4) is None


def test_a_measured_need_names_no_hint() -> None:
    """A machine that has shrunk is no field's fault."""
    shrunk = problem(learned(RAM, 70 * GB), ram=None)
    assert shrunk is not None
    assert shrunk.field_name == "name"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("gpus", {"gpus": -2}),
        ("workers", {"workers": 0}),
        ("episodes", {"episodes": 0}),
        ("hints.vram_bytes", {"vram": 0}),
        ("hints.ram_bytes", {"ram": -GB}),
    ],
)
def test_no_number_turns_a_charge_into_a_gift(field: str, fields: dict[str, Any]) -> None:
    """A need of 0 or less is refused, and not let past the gate unnoticed."""
    found = problem(**fields)
    assert found is not None
    assert found.field_name == field


def test_without_a_reading_nothing_is_called_impossible() -> None:
    """RAM that could not be read has no size to compare with."""
    big = replace(request(), hints=Hints(None, 500 * GB))
    assert impossible(gate(), sample(ram=None), big) is None
