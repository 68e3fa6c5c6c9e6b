"""What the user API answers: the run side's record joined with what the gate says now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jupyter_gpugate.core.admission.checks import Admission
from jupyter_gpugate.core.admission.decide import verdict_on
from jupyter_gpugate.core.admission.masks import told, visible
from jupyter_gpugate.core.admission.room import rooms
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.decisions import Refusal
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.explaining.snapshot import device_words, queued_row, running_row
from jupyter_gpugate.core.explaining.waiting import model_told
from jupyter_gpugate.core.learning.estimation import max_workers
from jupyter_gpugate.core.learning.needs import estimate_for, models_of, needs_of, setting_on
from jupyter_gpugate.core.learning.scaling import in_mb
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.resources import RAM, VRAM
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate.gpu.accelerators import unmanaged
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import ACTIVE, ENDED, Record

#: What moves by itself, without anything having happened.
CLOCKS = {"now", "tick", "waited_s", "started_s", "age_s", "age_ms", "eta_s", "utilisation"}
#: Words and numbers of a reason follow the free memory of the moment; what it is does not.
MOMENTARY = {"message", "numbers", "free_bytes", "room_bytes", "external"}
#: Memory that moves less than this does not make a new answer.
GRAIN_BYTES = 16 << 20


def essence_of(answer: Any) -> Any:
    """An answer without clocks and without the jitter of memory: what an ETag stands for."""
    if isinstance(answer, dict):
        return {k: essence_of(v) for k, v in answer.items() if k not in CLOCKS | MOMENTARY}
    if isinstance(answer, list):
        return [essence_of(one) for one in answer]
    if isinstance(answer, int) and not isinstance(answer, bool) and answer >= GRAIN_BYTES:
        return answer // GRAIN_BYTES
    return answer


def run_answer(gate: GateLoop, launcher: Launcher, run_id: str) -> dict[str, Any]:
    """One run: its record, and while it is unfinished the gate's row on it."""
    record = launcher.known(run_id)
    answer = _recorded(gate.state, record)
    live = _live(gate, record)
    answer.update(live)
    answer["episodes"] = {
        "done": _episodes_done(record, live),
        "of": record.spec["episodes"],
    }
    if record.status != ENDED:
        answer["output_tail"] = launcher.output_tail(record)
    return answer


def _recorded(state: GateState, record: Record) -> dict[str, Any]:
    summary = record.summary
    outcome = summary.get("outcome") or {}
    return {
        "run_id": record.run_id,
        "name": record.spec["name"],
        "status": record.status,
        "phase": None,
        "end": summary.get("end"),
        "exit_reason": summary.get("reason", ""),
        "exit_code": (outcome.get("end") or {}).get("exit_code"),
        "oom_resource": (outcome.get("end") or {}).get("oom_resource"),
        "oom_evidence": (outcome.get("end") or {}).get("oom_evidence") or None,
        "attempt": record.attempt,
        "reasons": [],
        "estimate": summary.get("estimate"),
        "charges": summary.get("charges") or {},
        "held": {},
        "basis": summary.get("basis") or {},
        "caps": summary.get("caps") or {},
        "enforcement": summary.get("enforcement"),
        "devices": [device_words(state, uuid) for uuid in summary.get("devices") or ()],
        "directory": str(record.path),
        "output_tail": summary.get("output_tail", ""),
        "error": summary.get("error"),
        "warnings": [
            *_unheeded(record),
            *(summary.get("warnings") or ()),
            *(summary.get("grown") or ()),
            *_elsewhere(summary),
        ],
        "peaks": summary.get("peaks") or {},
        "kill": outcome.get("kill"),
        "position": None,
        "eta_s": None,
        "submitted": summary["submitted"],
        "ended": summary.get("ended"),
        "cancel_requested": record.cancelled,
        "detached": record.detached,
        "visible": told(record.request.visible, state.inventory),
        "machine": record.host or None,
    }


def _unheeded(record: Record) -> Iterator[str]:
    """Hints and limits that have no effect on this run."""
    request = record.request
    if record.spec.get("cgroup_note"):
        yield str(record.spec["cgroup_note"])
    if request.hints.vram_bytes is not None and request.family.gpus == 0:
        yield "the hint of GPU memory has no effect: the run has no GPU"


def _elsewhere(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say why an attempt teaches nothing although it was measured."""
    for resource, risen in (summary.get("elsewhere") or {}).items():
        yield (
            f"it held next to nothing itself, while {in_mb(risen)} of {resource.upper()} outside of"
            " it rose and fell with it: what a daemon or a server holds for a run is not measured,"
            " so nothing was learned of what it needs"
        )


def _episodes_done(record: Record, live: dict[str, Any]) -> int:
    if "episode" in live:
        return int(live["episode"])
    end = (record.summary.get("outcome") or {}).get("end") or {}
    return int(end.get("episodes_done") or 0)


def _live(gate: GateLoop, record: Record) -> dict[str, Any]:
    state, now = gate.state, gate.decided_at
    queued = state.queue.get(record.run_id)
    if queued is not None and record.status != ENDED:
        position = list(state.queue).index(record.run_id) + 1
        row = queued_row(state, gate.decisions, queued, position, now)
        return {
            "status": "queued",
            **{k: row[k] for k in ("reasons", "position", "eta_s", "estimate", "waited_s")},
        }
    lease = state.leases.get(record.run_id)
    if lease is None or record.status == ENDED:
        return {"phase": "ending"} if record.status == ACTIVE and not record.host else {}
    row = running_row(state, lease, now)
    names = ("phase", "charges", "held", "caps", "enforcement", "estimate", "peaks", "started_s")
    return {
        "status": "active",
        **{k: row[k] for k in names},
        "basis": row["admit_basis"],
        "devices": row["devices"],
        "settled": row["settled"],
        "pid": row["pid"],
        "episode": lease.episode,
    }


# -- estimates ----------------------------------------------------------------------------------


def estimate_answer(gate: GateLoop, request: Request) -> dict[str, Any]:
    """What a run would need, and whether it would start now; nothing is started or reserved."""
    state = gate.state
    verdict = verdict_on(state, gate.sample, request, gate.now())
    model = model_told(state, _about(verdict), request.visible)
    device = models_of(state.inventory).get(model) if request.gpus else None
    _, estimates = needs_of(state.calibration, request, state.inventory, state.driver)
    estimate = estimate_for(estimates, model)
    resources = [RAM, *([VRAM] if device else [])]
    reasons = _reasons(state, verdict)
    return {
        "name": request.family.name,
        "gpus": request.gpus,
        "workers": request.setting.workers,
        "terms": [to_json(term) for term in estimate.terms],
        "ignored_parameters": list(estimate.ignored_parameters),
        "total_bytes": {r: estimate.total_bytes(r) for r in resources},
        "known_bytes": {r: estimate.known_bytes(r) for r in resources},
        "missing": list(estimate.gaps()),
        "max_workers": _most_workers(gate, request, device),
        "would_start": not reasons,
        "reasons": reasons,
    }


def _most_workers(gate: GateLoop, request: Request, device: Device | None) -> int | None:
    if request.kind == "program":  # it has one
        return None
    state = gate.state
    here = rooms(state, gate.sample, gate.now())
    seen = visible(request.visible, state.inventory)
    room = {RAM: here[RAM].room_bytes}
    if device is not None:
        alike = [
            r.room_bytes
            for uuid, r in here.items()
            if r.device and r.device.model == device.model and (seen is None or uuid in seen)
        ]
        room[VRAM] = max(alike, default=0)
    return max_workers(
        state.calibration,
        request.family,
        setting_on(request, device, state.driver),
        request.hints,
        room,
        device_model=device.model if device else None,
        device_total=device.total_bytes if device else None,
    )


def _about(verdict: Admission | Refusal) -> Sequence[str]:
    """Return the devices of a verdict: where the run would start, or which it would wait for."""
    if isinstance(verdict, Refusal):
        return [reason.resource for reason in verdict.reasons if reason.resource]
    return verdict.devices


def _reasons(state: GateState, verdict: Admission | Refusal) -> list[dict[str, Any]]:
    """The reasons that would keep it waiting if it were alone at the end of the queue."""
    if not isinstance(verdict, Refusal):
        return []
    return [
        {
            "kind": reason.check.value,
            "resource": reason.resource,
            "message": explain(state, reason),
            "numbers": dict(reason.numbers),
        }
        for reason in verdict.reasons
    ]


# -- the machine --------------------------------------------------------------------------------


def queue_answer(gate: GateLoop, launcher: Launcher, owner: str) -> dict[str, Any]:
    """Return the snapshot, its user, and the unfinished runs of machines that share this home."""
    names = ("run_id", "name", "status", "submitted", "machine")
    others = [{name: row[name] for name in names} for row in launcher.elsewhere()]
    return {**gate.snapshot(), "owner": owner, "other_machines": others}


def machine_answer(gate: GateLoop, launcher: Launcher) -> dict[str, Any]:
    """What can be measured and enforced here."""
    shown = gate.snapshot()
    ram = gate.sample.ram
    return {
        "ram": to_json(ram) if ram else None,
        "devices": shown["devices"],
        "unified": shown["unified"],
        "readers": shown["readers"],
        "attribution": shown["attribution"],
        "reach": shown["reach"],
        "runs": launcher.kept(),
        "traits": shown["traits"],
        "locks": shown["locks"],
        "draining": shown["draining"],
        "ignored_settings": shown["ignored_settings"],
        "journal_fault": shown["journal_fault"],
        "tick": shown["tick"],
        "unmanaged": [one._asdict() for one in unmanaged(measured=bool(gate.state.inventory))],
    }
