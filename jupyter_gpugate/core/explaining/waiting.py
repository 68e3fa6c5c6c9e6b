"""The rows of a snapshot for requests that are kept waiting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core.admission.choices import allowed
from jupyter_gpugate.core.decisions import Check, Decisions, Reason
from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.explaining.advice import advised
from jupyter_gpugate.core.explaining.explain import HELD_BY_THIS_NOTEBOOK, explain
from jupyter_gpugate.core.explaining.outlook import eta_s, expected_ends
from jupyter_gpugate.core.explaining.rows import QueuedRow, WaitReason
from jupyter_gpugate.core.learning.needs import estimate_for, models_of
from jupyter_gpugate.core.naming import megabytes, resource_words
from jupyter_gpugate.core.queued import Queued, RequestKey
from jupyter_gpugate.core.requests import Choice, Chosen, Family, Hints, Setting
from jupyter_gpugate.core.resources import Holder, HolderKind
from jupyter_gpugate.core.state import GateState

#: Requests with one estimate: what it follows from, and the model of device.
_Alike = tuple[Family, Setting, Hints, Chosen, str]


def queued_row(
    state: GateState, decisions: Decisions, queued: Queued, position: int, now: float
) -> QueuedRow:
    """One request kept waiting, with its reasons, the dominant one first."""
    return WaitingRows(state, decisions, now).row(queued, position)


def reason_rows(state: GateState, decisions: Decisions, queued: Queued) -> tuple[WaitReason, ...]:
    """The reasons of one request; memory that its own notebook holds is named first."""
    return WaitingRows(state, decisions, 0.0).reasons(queued)


def model_told(state: GateState, devices: Iterable[str], choice: Choice) -> str:
    """Return the kind of device to estimate for: a requested one, else one that is here.

    A device that is missing, or that the request may not have, gives it no number.
    """
    inventory, permitted = state.inventory, allowed(choice, state)
    here = state.present if permitted is None else state.present & permitted
    present = models_of({uuid: device for uuid, device in inventory.items() if uuid in here})
    about = [inventory[uuid].model for uuid in devices if uuid in inventory]
    return next((model for model in (*about, *present) if model in present), "")


class WaitingRows:
    """The queue's rows; what equal requests share is worked out once."""

    def __init__(self, state: GateState, decisions: Decisions, now: float) -> None:
        self._state = state
        self._decisions = decisions
        self._now = now
        self._ends: Optional[dict[str, float]] = None
        self._reasons: dict[RequestKey, tuple[WaitReason, ...]] = {}
        self._etas: dict[RequestKey, Optional[float]] = {}
        self._estimates: dict[_Alike, Estimate] = {}

    def all(self) -> Iterator[QueuedRow]:
        for position, queued in enumerate(self._state.queue.values(), start=1):
            yield self.row(queued, position)

    def row(self, queued: Queued, position: int) -> QueuedRow:
        request, reasons = queued.request, self.reasons(queued)
        return QueuedRow(
            run_id=request.run_id,
            name=request.family.name,
            group=request.group,
            owner=request.owner,
            position=position,
            waited_s=self._now - queued.waits_since,
            gpus=request.gpus,
            job_class=request.job_class,
            exclusive=request.exclusive,
            attempts=queued.attempts,
            parked=any(reason.kind == Check.PARKED.value for reason in reasons),
            estimate=self._estimate(queued),
            reasons=reasons,
            eta_s=self._eta_s(queued.key),
            retry=queued.retry,
        )

    def reasons(self, queued: Queued) -> tuple[WaitReason, ...]:
        key = queued.key
        if key not in self._reasons:
            reasons = self._decisions.reasons_of(key)
            self._reasons[key] = tuple(_reason_row(self._state, reason) for reason in reasons)
        rows = self._advised(self._reasons[key], queued)
        own = _held_by_its_notebook(self._state, queued, self._decisions.reasons_of(key))
        return (own, *rows) if own else rows

    def _advised(self, rows: tuple[WaitReason, ...], queued: Queued) -> tuple[WaitReason, ...]:
        request, estimate = queued.request, self._estimate(queued)
        if not any(term.unknown_parameters for term in estimate.terms):
            return rows
        return tuple(
            replace(
                row, message=advised(row.message, Check(row.kind), row.resource, request, estimate)
            )
            for row in rows
        )

    def _estimate(self, queued: Queued) -> Estimate:
        request = queued.request
        waits_for = [r.resource for r in self._decisions.reasons_of(queued.key) if r.resource]
        model = model_told(self._state, waits_for, request.choice)
        like = (request.family, request.setting, request.hints, request.chosen, model)
        if like not in self._estimates:
            self._estimates[like] = estimate_for(queued.estimates, model)
        return self._estimates[like]

    def _eta_s(self, key: RequestKey) -> Optional[float]:
        if key not in self._etas:
            if self._ends is None:
                self._ends = expected_ends(self._state)
            reasons = self._decisions.reasons_of(key)
            self._etas[key] = eta_s(self._state, reasons, self._ends, self._now)
        return self._etas[key]


def _reason_row(state: GateState, reason: Reason) -> WaitReason:
    return WaitReason(
        kind=reason.check.value,
        resource=reason.resource,
        message=explain(state, reason),
        numbers=dict(reason.numbers),
        who=reason.who,
    )


def _held_by_its_notebook(
    state: GateState, queued: Queued, reasons: Iterable[Reason]
) -> Optional[WaitReason]:
    kernel = queued.request.kernel
    if kernel is None or kernel.boot_id not in ("", state.boot_id):
        return None
    holder = state.attribution.holder_of.get(kernel.key)
    if holder is None or holder.kind is not HolderKind.KERNEL:
        return None
    for reason in reasons:
        shares = state.attribution.resources.get(reason.resource or "")
        held = shares.by_holder.get(holder, 0) if shares else 0
        short = reason.numbers.get("need_bytes", 0) - reason.numbers.get("room_bytes", 0)
        if reason.check in (Check.FIT, Check.EXTERNAL_HOLDS) and 0 < short <= held:
            return _own_memory_row(state, reason, holder, held, short)
    return None


def _own_memory_row(
    state: GateState, reason: Reason, holder: Holder, held: int, short: int
) -> WaitReason:
    where = resource_words(state, reason.resource or "")
    return WaitReason(
        kind=HELD_BY_THIS_NOTEBOOK,
        resource=reason.resource,
        message=(
            f"this notebook itself holds {megabytes(held)} of {where} that the run waits for: "
            "free it (del, gc.collect, torch.cuda.empty_cache) or restart the kernel"
        ),
        numbers={"held_bytes": held, "short_bytes": short},
        who=(holder.name,),
    )
