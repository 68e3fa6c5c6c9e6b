"""The one answer that explains everything: its arithmetic, its rows, and deciding from it again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.codec import ProtocolError, to_json
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.explaining.snapshot import (
    inputs_of,
    reason_rows,
    replay,
    running_row,
    snapshot,
)
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.requests import KernelRef
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.samples import Fault, KernelProcess, ProcessKey
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.core_builders import (
    BOOT,
    GPU,
    NOW,
    beat,
    finish,
    gate,
    key_of,
    process,
    request,
    sample,
    start,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.samples import Sample

KERNEL, EDITOR = ProcessKey(300, 3000), ProcessKey(400, 4000)
SUPERVISOR, WORKER = key_of("run"), key_of("run", 1)


def shown(state: GateState, seen: Sample, at: float = NOW) -> dict[str, Any]:
    """The snapshot of a tick with this sample, as a program reads it."""
    state, events = apply_sample(state, seen, at)
    state = apply(state, events)
    made = snapshot(state, seen, decide(state, seen, at), at)
    read: dict[str, Any] = json.loads(json.dumps(to_json(made)))
    return read


def measured() -> tuple[GateState, Sample]:
    """A run, a notebook and others on one machine of 32 GB RAM, in known amounts."""
    state = start(gate(request()), charges={RAM: 3515 * MB, GPU: 2049 * MB}, at=NOW - 10)
    state = apply(state, [beat(state, at=NOW - 1)])
    seen = sample(
        ram_total=32 * GB,
        ram=32 * GB - 13540 * MB,
        free={GPU: 24 * GB - 765 * MB},
        processes=[
            process(SUPERVISOR, 12 * MB),
            process(WORKER, 2468 * MB, SUPERVISOR.pid),
            process(KERNEL, 1674 * MB),
            process(EDITOR, 9000 * MB, uid=1001),
        ],
        lists={GPU: [(WORKER.pid, 543 * MB), (EDITOR.pid, 222 * MB)]},
        kernels=(KernelProcess(KERNEL, "train.ipynb", "ada"),),
    )
    return state, seen


def test_the_arithmetic_holds_in_one_snapshot() -> None:
    """2049 - 543 = 1506; 3515 - 2480 = 1035; 543 + 222 = 765; 1674 + 2480 = 4154;
    4154 + 9386 = 13540, to the byte.
    """
    told = shown(*measured())
    (row,) = told["running"]
    charges, held, reserved = row["charges"], row["held"], row["reservations"]
    assert (charges[GPU], held[GPU], reserved[GPU]) == (2049 * MB, 543 * MB, 1506 * MB)
    assert (charges[RAM], held[RAM], reserved[RAM]) == (3515 * MB, 2480 * MB, 1035 * MB)
    vram, ram = (told["attribution"]["resources"][name] for name in ("vram", "ram"))
    assert vram["runs"] == {"run": 543 * MB}
    assert (vram["attributed"], vram["external"], vram["used_total"]) == (
        543 * MB,
        222 * MB,
        765 * MB,
    )
    assert (ram["kernels"], ram["runs"]) == ({"train.ipynb": 1674 * MB}, {"run": 2480 * MB})
    assert (ram["attributed"], ram["external"]) == (4154 * MB, 9386 * MB)
    assert (ram["used_total"], ram["overlap"]) == (13540 * MB, 0)
    assert told["reservations"] == {RAM: 1035 * MB, GPU: 1506 * MB}
    for resource in (RAM, GPU):
        parts = (told[name][resource] for name in ("floors", "reservations"))
        assert told["room_bytes"][resource] == told["free_bytes"][resource] - sum(parts)


def test_external_holders_are_listed_with_whose_and_how_old_they_are() -> None:
    """Per resource: pid, user, age, bytes; what no process accounts for is a row of its own."""
    told = shown(*measured())["external"]
    editor = next(row for row in told if row["pid"] == EDITOR.pid and row["resource"] == RAM)
    assert (editor["uid"], editor["held_bytes"]) == (1001, 9000 * MB)
    assert editor["age_s"] == NOW - EDITOR.start_ticks / 100
    rest = next(row for row in told if row["note"] == "unlisted")
    assert (rest["held_bytes"], rest["uid"], rest["age_s"]) == (386 * MB, None, None)


def test_a_running_row_has_all_that_the_gate_knows_of_it() -> None:
    """Who, what, by which rung, what it holds, since when, and whether it is being stopped."""
    state, seen = measured()
    stop = beat(state, at=NOW, stop=Stop.of(StopKind.CANCELLED), survivors=(7,), episode=3)
    (row,) = shown(apply(state, [stop]), seen)["running"]
    assert (row["run_id"], row["owner"], row["name"]) == ("run", "ada", "eval")
    assert row["admit_basis"] == {RAM: "calibrated", GPU: "calibrated"}
    assert (row["pid"], row["exclusive"], row["started_s"]) == (SUPERVISOR.pid, False, 10.0)
    assert (row["cancel_requested"], row["kill_pending"], row["overdue"]) == (True, True, False)
    assert row["episodes"] == {"done": 3, "of": 1}
    assert row["devices"] == [{"uuid": GPU, "model": "NVIDIA L4", "index": 0, "name": "GPU 0"}]


def test_a_running_row_names_what_it_holds_too_much_of() -> None:
    """Each resource on which the run was seen above its charge, and no other."""
    state, _ = measured()
    assert running_row(state, state.leases["run"], NOW).overrun == ()
    more = ev.Recharged(NOW, "run", state.leases["run"].terms.fence, {GPU: 3 * GB}, "overrun")
    state = apply(state, [more])
    assert running_row(state, state.leases["run"], NOW).overrun == (GPU,)


def test_a_silent_run_is_overdue_and_still_charged() -> None:
    """Its time is over, but its processes live."""
    state, _ = measured()
    row = running_row(state, state.leases["run"], NOW + 15)
    assert row.overdue
    assert row.reservations[GPU] == 2049 * MB


def test_gone_runs_show_what_is_left_of_them() -> None:
    """Held and reserved, and whether somebody of the tree cannot be killed."""
    state, seen = measured()
    state, events = apply_sample(state, seen, NOW)
    state = apply(state, events)
    state = apply(state, [finish(state)])
    rows = shown(state, replace(seen, ram=seen.ram))["lingering"]
    (gpu,) = (row for row in rows if row["resource"] == GPU)
    assert gpu == {
        "run_id": "run",
        "owner": "ada",
        "resource": GPU,
        "held_bytes": 543 * MB,
        "reserved_bytes": 1506 * MB,
        "kill_pending": True,
    }


def test_a_queued_row_has_its_place_and_its_reasons() -> None:
    """Position, wait, class, what it would need, and why it waits, the dominant reason first."""
    state = gate(request("first", vram=30 * GB), request("second"), traits=Traits())
    drained = apply(state, [ev.DrainChanged(NOW, draining=True, reason="reset")])
    first, second = shown(drained, sample(NOW + 2, free={GPU: GB}), NOW + 2)["queued"]
    assert (first["position"], second["position"]) == (1, 2)
    assert (first["waited_s"], first["class"], first["gpus"]) == (2.0, "normal", 1)
    assert [reason["kind"] for reason in first["reasons"]] == ["drain", "external_holds"]
    assert first["estimate"]["terms"][0]["origin"] == "hint"
    assert not first["parked"]
    away = replace(drained, run_sides={"side": NOW - 60})
    (row, _) = shown(away, sample())["queued"]
    assert row["parked"]


def test_what_is_set_aside_is_part_of_the_arithmetic() -> None:
    """Room is free less floors, reservations and earmarks."""
    state = gate(request("live"), request("old", vram=20 * GB), at=NOW - 700)
    state = start(state, "live", charges={RAM: GB, GPU: 10 * GB})
    state = apply(state, [beat(state, "live", tree=())])
    rows = {GPU: [(key_of("live").pid, 10 * GB)]}
    seen = sample(lists=rows, free={GPU: 14 * GB}, processes=[process(key_of("live"))])
    told = shown(state, seen)
    (mark,) = told["earmarks"]
    assert (mark["run_id"], mark["check"], mark["devices"]) == ("old", "fit", [GPU])
    aside = mark["bytes_by_resource"][GPU]
    floor, reserved = told["floors"][GPU], told["reservations"][GPU]
    assert told["room_bytes"][GPU] == 14 * GB - floor - reserved - aside


def test_what_cannot_be_read_is_absent_and_not_zero() -> None:
    """A device without a number has none in the snapshot, and says why."""
    seen = sample()
    lost = replace(seen.devices[0], free_bytes=None, fault=Fault("nvml-15", "GPU is lost", NOW))
    told = shown(gate(), replace(seen, devices=(lost,), ram=None))
    assert told["free_bytes"] == {}
    (row,) = told["devices"]
    assert (row["free_bytes"], row["state"]) == (None, "missing")
    assert row["message"].endswith("(GPU is lost)")
    assert row["fault"]["code"] == "nvml-15"


def test_the_declared_figures_appear_only_where_they_are_in_force() -> None:
    """Usable, declared and what is left of it."""
    traits = Traits(usable_vram_bytes={GPU: 20 * GB})
    state = start(gate(request(), traits=traits), charges={RAM: GB, GPU: 8 * GB})
    seen = sample()
    silent = replace(seen.devices[0], free_bytes=None, fault=Fault("nvml-3", "no", NOW))
    told = shown(state, replace(seen, devices=(silent,)))
    assert told["declared"] == {GPU: {"usable": 20 * GB, "declared": 8 * GB, "left": 12 * GB}}
    assert shown(state, seen)["declared"] == {}


# -- memory that the run's own notebook holds ---------------------------------------------------


def waiting_for(kernel: ProcessKey, held_gb: int, boot: str = BOOT) -> list[dict[str, Any]]:
    """Why a run of 20 GB waits whose notebook's kernel holds so much of the device."""
    ref = KernelRef(kernel.pid, kernel.start_ticks, boot)
    state = gate(request(vram=18 * GB, kernel=ref))
    seen = sample(
        free={GPU: 24 * GB - held_gb * GB},
        lists={GPU: [(KERNEL.pid, held_gb * GB)]},
        processes=[process(KERNEL, GB)],
        kernels=(KernelProcess(KERNEL, "train.ipynb", "ada"),),
    )
    (row,) = shown(state, seen)["queued"]
    rows: list[dict[str, Any]] = row["reasons"]
    return rows


def test_a_run_is_told_first_that_its_own_notebook_holds_the_memory() -> None:
    """With what would help, and how much is short."""
    own, next_one = waiting_for(KERNEL, 10)
    assert (own["kind"], own["who"]) == ("held_by_this_notebook", ["train.ipynb"])
    assert own["numbers"]["held_bytes"] == 10 * GB
    assert "this notebook itself holds 10,240 MB" in own["message"]
    assert next_one["kind"] == "external_holds"


@pytest.mark.parametrize(
    ("kernel", "boot"),
    [(ProcessKey(999, 9), BOOT), (ProcessKey(KERNEL.pid, 1), BOOT), (KERNEL, "another-boot")],
    ids=["another kernel", "a successor of its pid", "a kernel of another boot"],
)
def test_another_notebooks_memory_is_not_called_its_own(kernel: ProcessKey, boot: str) -> None:
    """A kernel is a process of this boot, not a number."""
    assert [reason["kind"] for reason in waiting_for(kernel, 10, boot)] == ["external_holds"]


# -- deciding again -------------------------------------------------------------------------------


def test_a_snapshots_inputs_decide_the_same() -> None:
    """Through JSON and back: the same grants, refusals and earmarks, with every number."""
    state, seen = measured()
    state, events = apply_sample(state, seen, NOW)
    state = apply(state, events)
    waiting = [
        request("large", vram=30 * GB),
        request("unknown", vram=None, ram=None),
        request("small"),
        request("alone", exclusive=True),
        request("none", gpus=0, parameters=(("seed", "1"),)),
    ]
    state = apply(state, [ev.Requested(NOW - 700, one, "side") for one in waiting])
    decisions = decide(state, seen, NOW)
    assert decisions.grants
    assert decisions.kept_waiting
    again = decide(*replay(json.loads(json.dumps(inputs_of(state, seen, NOW)))))
    assert again == decisions


def test_inputs_of_another_form_are_named() -> None:
    """A program that hands in something else is told what is wrong."""
    state, seen = measured()
    data = inputs_of(state, seen, NOW)
    with pytest.raises(ProtocolError, match=r"inputs.traits.linger_s: must be a number"):
        replay({**data, "traits": {**data["traits"], "linger_s": "long"}})


def test_a_run_that_no_tick_has_looked_at_has_no_reason_yet() -> None:
    """Between a submit and the next tick there is nothing to tell."""
    state = gate(request())
    assert reason_rows(state, Decisions(), state.queue["run"]) == ()
