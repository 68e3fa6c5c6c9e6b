"""Answers of the user API: the run side's record joined with the gate's current state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.naming import megabytes
from jupyter_gpugate.gate.port import Gate, RunView
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.record import ACTIVE, ENDED, Record

#: What moves by itself, without anything having happened.
CLOCKS = {"now", "tick", "waited_s", "started_s", "age_s", "age_ms", "eta_s", "utilisation"}
#: Words and numbers of a reason follow the free memory of the moment; what it is does not.
MOMENTARY = {"message", "numbers", "free_bytes", "room_bytes", "external"}
#: Memory that moves less than this does not make a new answer.
GRAIN_BYTES = 16 << 20


def essence_of(answer: Any) -> Any:
    """Return an answer without clocks and small changes of memory, as the content of its ETag."""
    if isinstance(answer, dict):
        return {k: essence_of(v) for k, v in answer.items() if k not in CLOCKS | MOMENTARY}
    if isinstance(answer, list):
        return [essence_of(one) for one in answer]
    if isinstance(answer, int) and not isinstance(answer, bool) and answer >= GRAIN_BYTES:
        return answer // GRAIN_BYTES
    return answer


async def run_answer(gate: Gate, launcher: Launcher, run_id: str) -> dict[str, Any]:
    """One run: its record, and while it is unfinished the gate's row on it."""
    record = launcher.known(run_id)
    devices = tuple(record.summary.get("devices") or ())
    view = await gate.run(run_id, devices, record.request.visible)
    answer = _recorded(record, view)
    live = _live(record, view)
    answer.update(live)
    answer["episodes"] = {
        "done": _episodes_done(record, live),
        "of": record.spec["episodes"],
    }
    if record.status != ENDED:
        answer["output_tail"] = launcher.output_tail(record)
    return answer


def _recorded(record: Record, view: RunView) -> dict[str, Any]:
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
        "devices": list(view.devices),
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
        "visible": view.visible,
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
    """Explain why an attempt yields no observation although it was measured."""
    for resource, risen in (summary.get("elsewhere") or {}).items():
        grown = f"{megabytes(risen)} of {resource.upper()}"
        yield (
            f"it held next to nothing itself, while {grown} outside of it rose and fell with it:"
            " memory that a daemon or a server holds for a run cannot be measured, so this run"
            " yields no estimate"
        )


def _episodes_done(record: Record, live: dict[str, Any]) -> int:
    if "episode" in live:
        return int(live["episode"])
    end = (record.summary.get("outcome") or {}).get("end") or {}
    return int(end.get("episodes_done") or 0)


def _live(record: Record, view: RunView) -> dict[str, Any]:
    if view.queued is not None and record.status != ENDED:
        shown = ("reasons", "position", "eta_s", "estimate", "waited_s")
        return {"status": "queued", **{k: view.queued[k] for k in shown}}
    row = view.running
    if row is None or record.status == ENDED:
        return {"phase": "ending"} if record.status == ACTIVE and not record.host else {}
    names = ("phase", "charges", "held", "caps", "enforcement", "estimate", "peaks", "started_s")
    return {
        "status": "active",
        **{k: row[k] for k in names},
        "basis": row["admit_basis"],
        "devices": row["devices"],
        "settled": row["settled"],
        "pid": row["pid"],
        "episode": row["episodes"]["done"],
    }


# -- the machine --------------------------------------------------------------------------------


async def queue_answer(
    gate: Gate, launcher: Launcher, owner: str, *, inputs: bool = False
) -> dict[str, Any]:
    """Return the snapshot, its user, and the unfinished runs of machines that share this home."""
    if not inputs:
        return _shared(await gate.snapshot(), launcher, owner)
    basis = await gate.basis()
    more = {"inputs": basis.inputs, "decisions": list(basis.grants)}
    return {**_shared(basis.snapshot, launcher, owner), **more}


def _shared(snapshot: dict[str, Any], launcher: Launcher, owner: str) -> dict[str, Any]:
    names = ("run_id", "name", "status", "submitted", "machine")
    others = [{name: row[name] for name in names} for row in launcher.elsewhere()]
    return {**snapshot, "owner": owner, "other_machines": others}


async def machine_answer(gate: Gate, launcher: Launcher) -> dict[str, Any]:
    """Return everything that can be measured and enforced here."""
    machine = await gate.machine()
    shown = machine.snapshot
    return {
        "ram": to_json(machine.ram) if machine.ram else None,
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
        "unmanaged": list(machine.unmanaged),
    }
