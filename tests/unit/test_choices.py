"""A run can name its device or its model, and gets no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.choices import allowed, in_words, pinned
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.admission.impossible import impossible
from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.explaining.forecast import forecast
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.requests import Choice, Request
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Device
from tests.kit.core_builders import L4, NOW, board, gate, granted_to, reasons, request, sample

H100 = "NVIDIA H100 80GB HBM3"
CUT = replace(board(2, model=H100), uuid="GPU-cut", mig_enabled=True)
SLICES = [Device(f"MIG-{n}a", "1g.10gb", 10 * GB, n, parent="GPU-cut") for n in range(2)]
BOARDS = [board(0), board(1), CUT, *SLICES, board(3, total=80 * GB, model=H100)]
L4S, CUT_SLICES, LARGE = {"GPU-0", "GPU-1"}, {"MIG-0a", "MIG-1a"}, {"GPU-3"}


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (Choice(), None),
        (Choice(named=("1",)), {"GPU-1"}),
        (Choice(named=("01",)), {"GPU-1"}),
        (Choice(named=("0", "1")), L4S),
        (Choice(named=("GPU-1",)), {"GPU-1"}),
        (Choice(named=("gpu-1",)), {"GPU-1"}),
        (Choice(named=("GPU-",)), set()),
        (Choice(named=("7",)), set()),
        (Choice(named=("",)), set()),
        (Choice(named=("2",)), CUT_SLICES),
        (Choice(named=("GPU-cut",)), CUT_SLICES),
        (Choice(named=("MIG-1",)), {"MIG-1a"}),
        (Choice(model="l4"), L4S),
        (Choice(model="h100"), {*CUT_SLICES, *LARGE, "GPU-cut"}),
        (Choice(model="1g.10GB"), CUT_SLICES),
        (Choice(model="A100"), set()),
        (Choice(("1", "3"), model="h100"), LARGE),
        (Choice(("0",), ("1",)), set()),
        (Choice(None, ("0", "3"), "L4"), {"GPU-0"}),
    ],
)
def test_a_choice_leaves_what_passes_mask_name_and_model(choice: Choice, left: Any) -> None:
    """Numbers are boards', a board in slices means its slices, and case does not matter."""
    found = allowed(choice, gate(boards=BOARDS))
    assert found == (None if left is None else frozenset(left))


def test_a_number_is_that_of_the_board_that_is_there() -> None:
    """A missing board keeps its number; a request in the queue keeps the board it was made for."""
    state = gate(boards=[board(0), replace(board(1), index=0)])
    state = replace(state, present=frozenset({"GPU-1"}))
    assert allowed(Choice(named=("0",)), state) == frozenset({"GPU-1"})
    asked = pinned(request(device=("0",)), state)
    assert asked.device == ("GPU-1",)
    renumbered = apply(state, [ev.DeviceSeen(NOW, replace(board(1), index=5))])
    assert allowed(asked.choice, renumbered) == frozenset({"GPU-1"})
    assert pinned(request(), state) == request()


def placed(*asked: Request, **free: int) -> list[tuple[str, ...] | None]:
    """The devices of each request after one tick."""
    boards = [board(0), board(1), board(3, model=H100)]
    grants = granted_to(decide(gate(*asked, boards=boards), sample(boards=boards, free=free), NOW))
    return [grants[one.run_id].devices if one.run_id in grants else None for one in asked]


def test_a_run_gets_its_device_and_waits_while_that_is_full() -> None:
    """However free the others are; requests that differ only in their choice differ."""
    first, second = request("a", device=("1",)), request("b", device=("GPU-0",))
    model, pair = request("c", model="h100"), request("d", model="l4", gpus=2)
    assert placed(first, second, model, pair) == [
        ("GPU-1",),
        ("GPU-0",),
        ("GPU-3",),
        ("GPU-0", "GPU-1"),
    ]
    boards = [board(0), board(1)]
    full = sample(boards=boards, free={"GPU-1": GB})
    (reason,) = reasons(gate(first, boards=boards), full)["a"]
    assert (reason.check, reason.resource) == (Check.EXTERNAL_HOLDS, "GPU-1")


def test_an_estimate_is_of_the_chosen_device() -> None:
    """Whether it would start, and why not, depends on that device alone."""
    boards = [board(0), board(1)]
    state, seen = gate(boards=boards), sample(boards=boards, free={"GPU-1": GB})
    assert forecast(state, seen, request(device=("0",)), NOW).would_start
    refused = forecast(state, seen, request(device=("1",)), NOW)
    assert [reason.resource for reason in refused.reasons] == ["GPU-1"]
    none = forecast(state, seen, request(device=("7",)), NOW)
    assert [one.message for one in none.reasons] == [
        "asks for 1 GPU, device=7 leaves no GPU, so it has 0"
    ]


def test_a_run_whose_device_was_forgotten_waits_and_says_so() -> None:
    """It was there at the submit: the run is kept, and can be cancelled."""
    state = gate(request(device=("GPU-1",)), boards=[board(0), board(1)])
    state = apply(state, [ev.DeviceForgotten(NOW, "GPU-1")])
    (reason,) = reasons(state, sample(boards=[board(0)]))["run"]
    assert explain(state, reason) == "asks for 1 GPU, device=GPU-1 leaves no GPU, so it has 0"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"device": ("7",)},
            (
                "device: no GPU here is '7'; this machine has GPU 0 (NVIDIA L4), "
                f"GPU 1 (NVIDIA L4), GPU 3 ({H100}), MIG-0a (MIG slice 0 of GPU 2, 1g.10gb), "
                "MIG-1a (MIG slice 1 of GPU 2, 1g.10gb)"
            ),
        ),
        ({"device": ("GPU-",)}, "device: 'GPU-' is the beginning of several UUIDs; this machine"),
        (
            {"device": ("0",), "visible": ("1",)},
            (
                "device: GPU 0 is hidden from this notebook; "
                "CUDA_VISIBLE_DEVICES=1 (numbers in PCI bus order) leaves GPU 1 (NVIDIA L4)"
            ),
        ),
        ({"device": ("0",), "gpus": 0}, "device: the run asks for no GPU (gpus: 0)"),
        ({"model": "L4", "gpus": 0}, "device_model: the run asks for no GPU (gpus: 0)"),
        (
            {"model": "A100"},
            "device_model: no GPU with 'A100' in the name of its model; this machine has GPU 0",
        ),
        (
            {"model": "L4", "device": ("3",)},
            "device_model: no GPU with 'L4' in the name of its model; device=3 leaves GPU 3 (",
        ),
        (
            {"device": ("1",), "gpus": 2},
            (
                "gpus: the run asks for 2 GPUs, but device=1 leaves GPU 1 (NVIDIA L4) to this run: "
                "ask for 1 at most"
            ),
        ),
        (
            {"model": "l4", "vram": 40 * GB},
            (
                "hints.vram_bytes: needs 40,960 MB of GPU memory, device_model=l4 leaves "
                "GPU 0 (NVIDIA L4), GPU 1 (NVIDIA L4) to this run, with 24,576 MB at most"
            ),
        ),
    ],
)
def test_what_no_device_satisfies_is_refused_at_submit(
    fields: dict[str, Any], message: str
) -> None:
    """The refusal names the field and the devices that are there."""
    found = impossible(gate(boards=BOARDS), sample(boards=BOARDS), request(**fields))
    assert found is not None
    assert found.message.startswith(message)
    assert found.field_name == message.partition(":")[0]


def test_a_device_without_memory_of_its_own_cannot_be_asked_for() -> None:
    """A board that shares the machine's RAM is no resource; a machine may have no GPU at all."""
    unified = replace(board(0), unified=True)
    found = impossible(gate(boards=[unified]), sample(), request(device=("0",)))
    assert found is not None
    assert found.message == (
        "device: GPU 0 has no memory of its own that a run could be given; this machine has no GPU"
    )
    none = impossible(gate(boards=()), sample(), request(model=L4))
    assert none is not None
    assert none.message.endswith("; this machine has no GPU")


def test_what_a_device_or_a_model_satisfies_is_accepted() -> None:
    """A need that one of them has room for, and as many as there are."""
    state, seen = gate(boards=BOARDS), sample(boards=BOARDS)
    assert impossible(state, seen, request(device=("0", "1"), gpus=2)) is None
    assert impossible(state, seen, request(model="h100", vram=70 * GB)) is None
    assert impossible(state, seen, request(device=("MIG-0a",), vram=9 * GB)) is None


def test_a_choice_is_described_with_what_it_leaves() -> None:
    """All that restricts the devices, and the devices."""
    state = gate(boards=[board(0), board(1)])
    assert not in_words(Choice(), state)
    assert in_words(Choice(("1",)), state) == "CUDA_VISIBLE_DEVICES=1 leaves GPU 1 (NVIDIA L4)"
    both = in_words(Choice(("0", "1"), ("1",), "l4"), state)
    assert both == (
        "CUDA_VISIBLE_DEVICES=0,1 and device=1 and device_model=l4 leave GPU 1 (NVIDIA L4)"
    )


def test_a_request_of_an_earlier_version_chooses_nothing() -> None:
    """A journal or a message without the fields is one of a run that may go anywhere."""
    older = to_json(request(device=("1",), model="L4"))
    assert from_json(Request, older).choice == Choice(None, ("1",), "L4")
    del older["device"], older["model"]
    assert from_json(Request, older).choice == Choice()
