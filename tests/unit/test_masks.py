"""A run is placed among the devices that its notebook sees, and on no other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.admission.impossible import impossible
from jupyter_gpugate.core.admission.masks import entries, in_words, mask_of, visible
from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.explaining.snapshot import queued_row
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import Traits
from tests.kit.core_builders import NOW, board, gate, granted_to, reasons, request, sample

CUT = replace(board(2), uuid="GPU-cut", mig_enabled=True)
SLICES = [Device(f"MIG-{n}a", "1g.10gb", 10 * GB, n, parent="GPU-cut") for n in range(2)]
DEVICES = [
    replace(board(0), uuid="GPU-aa1"),
    replace(board(1), uuid="GPU-ab2"),
    CUT,
    *SLICES,
]
INVENTORY = {device.uuid: device for device in DEVICES}


@pytest.mark.parametrize(
    ("setting", "left"),
    [
        (None, None),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("none", ""),
        ("void", ""),
        (",", ""),
        ("0", "GPU-aa1"),
        ("1", "GPU-ab2"),
        (" 1 , 0", "GPU-aa1 GPU-ab2"),
        ("01", "GPU-ab2"),
        ("1gpu", "GPU-ab2"),
        ("\N{ARABIC-INDIC DIGIT ONE}", ""),
        ("9" * 5000, ""),
        ("0" * 5000 + "1", "GPU-ab2"),
        ("0,9,1", "GPU-aa1"),
        ("0,-1,1", "GPU-aa1"),
        ("0,bus:1,1", "GPU-aa1"),
        ("1,,0", "GPU-ab2"),
        ("GPU-aa1", "GPU-aa1"),
        ("GPU-ab", "GPU-ab2"),
        ("GPU-AB2", "GPU-ab2"),
        ("GPU-a", ""),
        ("GPU-zz", ""),
        ("GPU-ab2,GPU-zz,GPU-aa1", "GPU-ab2"),
        ("0,0", ""),
        ("1,GPU-ab2", ""),
        ("MIG-1a", "MIG-1a"),
        ("MIG-0", "MIG-0a"),
        ("2", "MIG-0a MIG-1a"),
        ("GPU-cut", "MIG-0a MIG-1a"),
    ],
)
def test_a_mask_leaves_what_cuda_leaves(setting: str | None, left: str | None) -> None:
    """By number, UUID and unique beginning, up to the first entry that names no device."""
    mask = mask_of({} if setting is None else {"CUDA_VISIBLE_DEVICES": setting})
    seen = visible(mask, INVENTORY)
    assert seen == (None if left is None else frozenset(left.split()))


def test_a_mask_holds_nothing_but_names_of_devices() -> None:
    """Whatever else stands in the variable never reaches the gate, and no more than 64 entries."""
    assert mask_of({"CUDA_VISIBLE_DEVICES": "1,secret word,0"}) == ("1",)
    assert mask_of({"CUDA_VISIBLE_DEVICES": "GPU-a b"}) == ()
    assert mask_of({"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(99)))}) == tuple(
        map(str, range(64))
    )


def test_an_entry_that_is_longer_than_any_name_is_none() -> None:
    """What is kept of a mask is short, however long the variable is."""
    for entry in ("9" * 5000, "MIG-" + "a" * 5000):
        assert mask_of({"CUDA_VISIBLE_DEVICES": f"0,{entry},1"}) == ("0",)


@pytest.mark.parametrize("entry", ["", "9" * 5000, "\N{SUPERSCRIPT TWO}", "-1", "GPU"])
def test_a_mask_from_elsewhere_is_read_whatever_it_holds(entry: str) -> None:
    """The gate goes on deciding when a careless sender's mask holds what `mask_of` leaves out."""
    assert placed((entry,), ("1",), free={"GPU-0": 9 * GB, "GPU-1": 9 * GB}) == [None, ("GPU-1",)]


def test_a_request_keeps_its_mask_on_its_way_and_older_ones_have_none() -> None:
    """A journal or a message without the field is one of a notebook without a mask."""
    masked = request(visible=("1",))
    assert from_json(Request, to_json(masked)) == masked
    older = to_json(masked)
    del older["visible"]
    assert from_json(Request, older).visible is None


def placed(*masks: Any, free: dict[str, int], **fields: Any) -> list[Any]:
    """The devices that runs with these masks get in one tick, None for one that waits."""
    asked = [request(f"r{n}", visible=mask, **fields) for n, mask in enumerate(masks)]
    state = gate(*asked, boards=[board(0), board(1)])
    grants = granted_to(decide(state, sample(free=free, boards=[board(0), board(1)]), NOW))
    return [grants[one.run_id].devices if one.run_id in grants else None for one in asked]


def test_a_run_is_placed_on_a_device_that_its_notebook_sees() -> None:
    """However free the others are; requests that differ only in their mask differ."""
    free = {"GPU-0": 20 * GB, "GPU-1": 10 * GB}
    assert placed(("1",), ("0",), ("1",), None, free=free) == [
        ("GPU-1",),
        ("GPU-0",),
        ("GPU-1",),
        ("GPU-0",),
    ]
    assert placed(("1",), ("0",), free={**free, "GPU-1": GB}) == [None, ("GPU-0",)]
    assert placed(None, ("0", "1"), ("0",), free=free, gpus=2)[2] is None


def test_a_reason_and_an_estimate_are_of_the_devices_that_the_notebook_sees() -> None:
    """A run under a mask waits for its own device, not for the freest of the machine."""
    boards: Iterable[Device] = [board(0), board(1)]
    asked = request("masked", visible=("1",), vram=8 * GB)
    state = gate(asked, boards=boards)
    seen = sample(free={"GPU-0": 7 * GB, "GPU-1": 2 * GB}, boards=list(boards))
    (reason,) = reasons(state, seen)["masked"]
    assert (reason.check, reason.resource) == (Check.EXTERNAL_HOLDS, "GPU-1")
    row = queued_row(state, decide(state, seen, NOW), state.queue["masked"], 1, NOW)
    assert "GPU 1" in row.reasons[0].message
    short = gate(request("masked", visible=("1",), gpus=2), boards=boards)
    (reason,) = reasons(short, seen)["masked"]
    assert reason.check is Check.MISSING
    assert reason.who == ("CUDA_VISIBLE_DEVICES=1 leaves GPU 1 (NVIDIA L4)",)


@pytest.mark.parametrize(
    ("mask", "gpus", "message"),
    [
        (("1",), 2, "CUDA_VISIBLE_DEVICES=1 leaves GPU 1 (NVIDIA L4) to this notebook: ask for 1"),
        ((), 1, "CUDA_VISIBLE_DEVICES= leaves no GPU to this notebook: ask for 0"),
        (None, 3, "this machine has 2 GPUs of one model: ask for 2 at most"),
    ],
)
def test_more_devices_than_a_mask_leaves_are_refused_by_its_name(
    mask: Any, gpus: int, message: str
) -> None:
    """The refusal says which setting stands in the way."""
    state = gate(boards=[board(0), board(1)])
    found = impossible(state, sample(), request(visible=mask, gpus=gpus))
    assert found is not None
    assert message in found.message
    assert impossible(state, sample(), request(visible=("0", "1"), gpus=2)) is None


def test_the_size_that_counts_is_of_the_devices_that_the_notebook_sees() -> None:
    """A need that only a hidden device could take is refused, by the name of what hides it."""
    small = replace(board(1), total_bytes=8 * GB, model="small")
    state = gate(boards=[board(0), small])
    assert impossible(state, sample(), request(vram=20 * GB)) is None
    found = impossible(state, sample(), request(vram=20 * GB, visible=("1",)))
    assert found is not None
    assert found.numbers == {"need_bytes": 20 * GB, "limit_bytes": 8 * GB}
    assert "leaves GPU 1 (small) to this notebook" in found.message
    assert "this machine has" not in found.message


def test_numbers_among_boards_that_differ_are_told_with_their_order() -> None:
    """CUDA may count them by speed; the gate counts them by the PCI bus, and says so."""
    mixed = {"GPU-0": board(0), "GPU-1": replace(board(1), model="H100")}
    assert "(numbers in PCI bus order) leaves GPU 1" in in_words(("1",), mixed)
    assert "order" not in in_words(("GPU-1",), mixed)
    assert "order" not in in_words(("1",), {"GPU-0": board(0), "GPU-1": board(1)})
    assert not in_words(None, mixed)


def named(*devices: str, boards: Iterable[Device], late_s: float = 0.0, mask: str = "index") -> str:
    """The mask of a run that was given these devices."""
    state = gate(boards=boards, traits=Traits(device_mask=mask))
    return ",".join(entries(state, sample(boards=boards), devices, NOW + late_s))


def test_a_run_is_told_the_numbers_of_its_devices() -> None:
    """Those of the newest sample: a board that was renumbered since the grant has another one."""
    boards = [board(0), board(1), board(2)]
    assert named("GPU-2", "GPU-0", boards=boards) == "2,0"
    moved = [replace(one, index=n) for n, one in enumerate(boards[1:])]
    assert named("GPU-2", boards=moved) == "1"
    assert named(boards=boards) == ""


@pytest.mark.parametrize(
    ("boards", "how"),
    [
        ([board(0), board(1)], {"mask": "uuid"}),
        ([board(0), board(1), CUT, *SLICES], {}),
        ([board(0), board(1)], {"late_s": 60.0}),
        ([board(0, bus="02"), board(1, bus="01")], {}),
    ],
)
def test_where_a_number_may_mean_another_device_a_run_is_told_uuids(
    boards: Any, how: dict[str, Any]
) -> None:
    """With slices on the machine, without a current reading, where the driver does not count along
    the PCI bus, and where the site prefers UUIDs.
    """
    assert named("GPU-1", "GPU-0", boards=boards, **how) == "GPU-1,GPU-0"
