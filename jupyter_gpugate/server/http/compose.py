"""Joins the run side's records with the gate's current state, to the answers of the user API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, cast

from jupyter_gpugate.core.codec import JsonObject
from jupyter_gpugate.core.endings import cause_of, detail_of
from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.explaining.rows import (
    EpisodeCount,
    Forecast,
    QueuedRow,
    RunningRow,
    Snapshot,
)
from jupyter_gpugate.core.naming import megabytes
from jupyter_gpugate.core.reports import Status
from jupyter_gpugate.core.resources import RAM, VRAM
from jupyter_gpugate.gate.port import Gate, RunView
from jupyter_gpugate.runs.inventory import Inventory
from jupyter_gpugate.runs.life import ACTIVE, ENDED
from jupyter_gpugate.runs.reading import output_tail
from jupyter_gpugate.runs.record import Listed, Record, Records, listed_of
from jupyter_gpugate.runs.requests import relevant_parameters
from jupyter_gpugate.server.http.answers import (
    ElsewhereRow,
    MachineAnswer,
    QueueAnswer,
    QueueAnswerWithInputs,
    QueuedAnswer,
    RunningAnswer,
    RunsKept,
)
from jupyter_gpugate.server.http.run_answers import ActiveRunAnswer, QueuedRunAnswer, RunAnswer

#: The fields of a run of another machine.
ELSEWHERE = [field.name for field in fields(ElsewhereRow)]


async def run_answer(gate: Gate, records: Records, run_id: str) -> RunAnswer:
    """Return a run: its record, and its state at the gate while it is unfinished."""
    record = records.known(run_id)
    view = await _view(gate, record)
    if record.status == ENDED:
        return _recorded(record, view, str(record.summary.get("output_tail", "")))
    answer = _recorded(record, view, output_tail(record))
    if view.queued is not None:
        return _with_values(_queued(answer, view), record)
    if view.running is not None:
        return _with_values(_active(answer, view), record)
    if record.status == ACTIVE and not record.host:
        return replace(answer, phase="ending")
    return answer


def _with_values(answer: RunAnswer, record: Record) -> RunAnswer:
    """Put the values of parameters, which the gate does not know, into the estimate."""
    if not isinstance(answer.estimate, Estimate):
        return answer
    estimate = answer.estimate.with_values(relevant_parameters(record.spec))
    return replace(answer, estimate=estimate)


def with_values(forecast: Forecast, parameters: Mapping[str, str]) -> Forecast:
    """Put the values of parameters, which the gate does not know, into a forecast."""
    return replace(forecast, terms=Estimate(forecast.terms).with_values(parameters).terms)


async def _view(gate: Gate, record: Record) -> RunView:
    """Return a run's view, of an ended run as well with the devices that it was not given."""
    given = tuple(record.summary.get("devices") or ())
    peaks = record.summary.get("peaks") or {}
    elsewhere = [uuid for uuid, peak in peaks.items() if peak and uuid not in (RAM, *given)]
    view = await gate.run(record.request, (*given, *elsewhere))
    names = view.devices
    return replace(
        view, devices=names[: len(given)], elsewhere=view.elsewhere or names[len(given) :]
    )


def _recorded(record: Record, view: RunView, output_tail: str) -> RunAnswer:
    summary = record.summary
    outcome = summary.get("outcome") or {}
    end = outcome.get("end") or {}
    return RunAnswer(
        run_id=record.run_id,
        **listed_of(record.spec)._asdict(),
        workers=record.spec["workers"],
        gpus=record.spec["gpus"],
        repeats=record.spec.get("repeats") or None,
        status=cast(Status, record.status),
        phase=None,
        **_exit(summary, end),
        attempt=record.attempt,
        reasons=(),
        estimate=summary.get("estimate"),
        charges=summary.get("charges") or {},
        held={},
        basis=summary.get("basis") or {},
        caps=summary.get("caps") or {},
        enforcement=summary.get("enforcement"),
        devices=view.devices,
        directory=str(record.path),
        output_tail=output_tail,
        error=summary.get("error"),
        warnings=_warnings(record, view),
        advice=view.advice,
        peaks=summary.get("peaks") or {},
        kill=outcome.get("kill"),
        position=None,
        eta_s=None,
        submitted=summary["submitted"],
        ended=summary.get("ended"),
        cancel_requested=record.life.cancelled,
        detached=record.life.detached,
        service=record.request.service,
        ready=bool(end.get("ready")) if record.request.service else None,
        visible=view.visible,
        machine=record.host or None,
        episodes=EpisodeCount(_episodes_of(end), record.spec["episodes"]),
        retry=summary.get("retry"),
    )


def _exit(summary: Mapping[str, Any], end: Mapping[str, Any]) -> JsonObject:
    """Return the fields of an answer about the end of a run; ``end`` is its supervisor's report."""
    reason = summary.get("reason", "")
    return {
        "end": summary.get("end"),
        "exit_reason": reason,
        "exit_cause": cause_of(reason),
        "exit_detail": detail_of(reason),
        "exit_code": end.get("exit_code"),
        "oom_resource": end.get("oom_resource"),
        "oom_evidence": end.get("oom_evidence") or None,
    }


def _episodes_of(end: Mapping[str, Any]) -> int:
    """Count the finished episodes of a run, with those that earlier attempts have kept."""
    return sum(int(end.get(name) or 0) for name in ("episodes_done", "episodes_resumed"))


def _queued(answer: RunAnswer, view: RunView) -> RunAnswer:
    row = view.queued
    if row is None:
        return answer
    shown = replace(
        answer,
        status="queued",
        reasons=row.reasons,
        position=row.position,
        eta_s=row.eta_s,
        estimate=row.estimate,
        retry=row.retry,
    )
    return QueuedRunAnswer(**vars(shown), waited_s=row.waited_s)


def _active(answer: RunAnswer, view: RunView) -> RunAnswer:
    row = view.running
    if row is None:
        return answer
    shown = replace(
        answer,
        status="active",
        phase=row.phase,
        charges=row.charges,
        held=row.held,
        caps=row.caps,
        enforcement=row.enforcement,
        estimate=row.estimate,
        peaks=row.peaks,
        basis=row.admit_basis,
        devices=row.devices,
        ready=row.ready,
        episodes=replace(answer.episodes, done=row.episodes.done),
        retry=row.retry,
    )
    return ActiveRunAnswer(
        **vars(shown),
        started_s=row.started_s,
        settled=row.settled,
        pid=row.pid,
        episode=row.episodes.done,
    )


def _warnings(record: Record, view: RunView) -> list[Any]:
    summary = record.summary
    written = (*(summary.get("warnings") or ()), *(summary.get("grown") or ()))
    return [*_unheeded(record), *written, *_elsewhere(summary), *_astray(summary, view)]


def _astray(summary: Mapping[str, Any], view: RunView) -> Iterator[str]:
    """Say on which devices it has used memory without having been given them."""
    peaks = view.running.peaks if view.running else summary.get("peaks") or {}
    for device in view.elsewhere:
        yield (
            f"it held {megabytes(peaks.get(device.uuid, 0))} of {device.name} ({device.model}), "
            "which it was not given: its memory there is charged to it, and no program should "
            "replace CUDA_VISIBLE_DEVICES"
        )


def _unheeded(record: Record) -> Iterator[str]:
    """Hints and limits that have no effect on this run."""
    request = record.request
    if record.spec.get("cgroup_note"):
        yield str(record.spec["cgroup_note"])
    if request.hints.vram_bytes is not None and request.family.gpus == 0:
        yield "the hint of GPU memory has no effect: the run has no GPU"
    for resource, what in ((VRAM, "GPU memory"), (RAM, "RAM")):
        if request.hints.of(resource) is not None and request.chosen.of(resource) is not None:
            yield f"the hint of {what} has no effect: its amount is chosen"


def _elsewhere(summary: Mapping[str, Any]) -> Iterator[str]:
    """Explain why an attempt yields no observation although it was measured."""
    for resource, risen in (summary.get("elsewhere") or {}).items():
        grown = f"{megabytes(risen)} of {resource.upper()}"
        yield (
            f"it held next to nothing itself, while {grown} outside of it rose and fell with it:"
            " memory that a daemon or a server holds for a run cannot be measured, so this run"
            " yields no estimate"
        )


# -- the machine --------------------------------------------------------------------------------


async def queue_answer(
    gate: Gate, records: Records, owner: str, *, inputs: bool = False
) -> QueueAnswer:
    """Return the snapshot, its user, and the unfinished runs of machines that share this home."""
    if not inputs:
        return _shared(await gate.snapshot(), records, owner)
    decided = await gate.decided()
    shared = _shared(decided.snapshot, records, owner)
    return QueueAnswerWithInputs(**vars(shared), inputs=decided.inputs, decisions=decided.grants)


def _shared(snapshot: Snapshot, records: Records, owner: str) -> QueueAnswer:
    others = tuple(
        ElsewhereRow(**{name: getattr(row, name) for name in ELSEWHERE})
        for row in map(Record.row, records.elsewhere())
    )
    running = tuple(_running_row(row, records.get(row.run_id)) for row in snapshot.running)
    queued = tuple(_queued_row(row, records.get(row.run_id)) for row in snapshot.queued)
    shown = {**vars(snapshot), "running": running, "queued": queued}
    return QueueAnswer(**shown, owner=owner, other_machines=others)


def _running_row(row: RunningRow, record: Record | None) -> RunningAnswer:
    """Return a row with what the run side has recorded of its run, and of its user's orders."""
    if record is not None:
        row = replace(row, cancel_requested=record.life.cancelled)
    listed = _listed(record)
    return RunningAnswer(**vars(row), parameters=listed.parameters, command=listed.command)


def _queued_row(row: QueuedRow, record: Record | None) -> QueuedAnswer:
    listed = _listed(record)
    return QueuedAnswer(**vars(row), parameters=listed.parameters, command=listed.command)


def _listed(record: Record | None) -> Listed:
    """Return the parameters and the command of a run, which the gate itself does not know."""
    return Listed("", {}, "", None) if record is None else listed_of(record.spec)


async def machine_answer(gate: Gate, inventory: Inventory) -> MachineAnswer:
    """Return everything that can be measured and enforced here."""
    machine = await gate.machine()
    shown = machine.snapshot
    return MachineAnswer(
        ram=machine.ram,
        devices=shown.devices,
        unified=shown.unified,
        readers=shown.readers,
        attribution=shown.attribution,
        reach=shown.reach,
        runs=RunsKept(str(inventory.root), len(inventory.records)),
        traits=shown.traits,
        locks=shown.locks,
        draining=shown.draining,
        ignored_settings=shown.ignored_settings,
        journal_fault=shown.journal_fault,
        tick=shown.tick,
        unmanaged=machine.unmanaged,
    )
