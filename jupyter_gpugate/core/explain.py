"""Reasons in plain words, for every face alike; MB (2^20) appear only here."""

from __future__ import annotations

from jupyter_gpugate.core.decisions import Check, Reason
from jupyter_gpugate.core.model import MB, RAM, HolderKind
from jupyter_gpugate.core.state import MACHINE, GateState

HELD_BY_THIS_NOTEBOOK = "held_by_this_notebook"


def megabytes(value: int) -> str:
    """Bytes as people read them: ``2,049 MB``."""
    return f"{round(value / MB):,} MB"


def resource_words(state: GateState, resource: str) -> str:
    """A resource as people call it: ``RAM``, ``GPU 0 (NVIDIA L4)``."""
    if resource == RAM:
        return "RAM"
    if resource == MACHINE:
        return "this machine"
    device = state.inventory.get(resource)
    if device is None:
        return f"GPU {resource}"
    kind = "MIG slice" if device.parent else "GPU"
    return f"{kind} {device.index} ({device.model})"


def explain(state: GateState, reason: Reason) -> str:
    """One sentence on why a run is kept waiting."""
    where = resource_words(state, reason.resource) if reason.resource else ""
    who = ", ".join(reason.who)
    numbers = reason.numbers
    if reason.check is Check.FIT:
        return _fit_words(where, reason)
    if reason.check is Check.EXTERNAL_HOLDS:
        names = _others_words(state, reason.resource or "")
        return (
            f"needs {megabytes(numbers['need_bytes'])} of {where}, more than would be free with "
            f"every run ended; held by others: {names}"
        )
    if reason.check is Check.LIMITS:
        return _limit_words(where, reason)
    sentences = {
        Check.PARKED: "parked: the server that submitted it is away; it keeps its place",
        Check.LOCK: f"{where} is locked for interactive use by {who}",
        Check.DRAIN: f"the machine takes no new runs ({who})",
        Check.MISSING: f"{where or 'a GPU'} is missing: it was there, or was asked for, and is not",
        Check.STALE: f"no fresh reading of {where}; runs that go on are not affected",
        Check.UNMEASURED: f"{where} cannot be measured, and nothing says what this run needs",
        Check.EXCLUSIVE: f"{where} is kept to one run at a time: waits for {who}",
        Check.WATCH_SLOT: f"{where} is watching another unmeasured run until it settles: {who}",
        Check.OVERRUN: f"a run holds more of {where} than it was charged: {who}",
    }
    return sentences[reason.check]


def _fit_words(where: str, reason: Reason) -> str:
    n = reason.numbers
    aside = n["earmarked_bytes"]
    return (
        f"needs {megabytes(n['need_bytes'])} of {where}, room is {megabytes(max(0, n['room_bytes']))}"
        f" = {megabytes(n['free_bytes'])} free - {megabytes(n['floor_bytes'])} floor"
        f" - {megabytes(n['reserved_bytes'])} reserved for runs that may still use it"
        + (f" - {megabytes(aside)} set aside for the run that has waited longest" if aside else "")
    )


def _limit_words(where: str, reason: Reason) -> str:
    limit, running = reason.numbers["limit"], reason.numbers["running"]
    if where:
        return f"{where} has {running} runs, and takes at most {limit}"
    return f"{running} of your runs are live, and a user may have at most {limit}"


def _others_words(state: GateState, resource: str) -> str:
    shares = state.attribution.resources.get(resource)
    if shares is None or shares.fault:
        return "cannot be told here"
    kernels = [
        f"{holder.name} {megabytes(held)}"
        for holder, held in shares.by_holder.items()
        if holder.kind is not HolderKind.RUN
    ]
    external = [
        f"pid {p.pid} {megabytes(p.held_bytes)}" for p in shares.external[:3] if p.held_bytes
    ]
    return ", ".join(kernels + external) or megabytes(shares.external_bytes)
