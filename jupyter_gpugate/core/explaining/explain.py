"""Sentences that explain why a run is kept waiting, the same for cards, tables and programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Callable

from jupyter_gpugate.core.decisions import Check, Reason
from jupyter_gpugate.core.naming import megabytes, resource_words
from jupyter_gpugate.core.resources import MB, HolderKind
from jupyter_gpugate.core.shares import Rise
from jupyter_gpugate.core.state import GateState

HELD_BY_THIS_NOTEBOOK = "held_by_this_notebook"
#: How many holders a sentence names.
_NAMED = 3


def explain(state: GateState, reason: Reason) -> str:
    """Return one sentence that explains why a run is kept waiting."""
    return _WORDS[reason.check](state, reason)


def growth_words(
    state: GateState, resource: str, grown: Iterable[Rise], name: Callable[[Rise], str]
) -> str:
    """Say in one sentence who took the memory that a run lacked; ``name`` names a process."""
    listed = sorted(grown, key=lambda one: -one.rise_bytes)
    words = [
        f"{_grower_words(one, name)} by {megabytes(one.rise_bytes)}" for one in listed[:_NAMED]
    ]
    if len(listed) > _NAMED:
        words.append(f"others by {megabytes(sum(one.rise_bytes for one in listed[_NAMED:]))}")
    where = resource_words(state, resource)
    return f"{where} ran short during the run, while others grew: {', '.join(words)}"


def _grower_words(one: Rise, name: Callable[[Rise], str]) -> str:
    if one.who.kind == "process":
        return name(one)
    return f"{one.who.kind} {one.who.name}" if one.who.kind else "unnamed processes"


def _where(state: GateState, reason: Reason) -> str:
    return resource_words(state, reason.resource) if reason.resource else "a GPU"


def _who(reason: Reason) -> str:
    return ", ".join(reason.who)


def _parked(_state: GateState, _reason: Reason) -> str:
    return "parked: the server that submitted it is not responding; it keeps its place"


def _after(_state: GateState, reason: Reason) -> str:
    names, others = _first(reason.who)
    if len(reason.who) == 1:
        return f"starts only after {names} has completed"
    return f"starts only after {len(reason.who)} runs have completed: {names}{others}"


def _group(_state: GateState, reason: Reason) -> str:
    names, others = _first(reason.who)
    limit = reason.numbers["limit"]
    return f"its group runs at most {limit} at a time: waits for {names}{others}"


def _first(who: Sequence[str]) -> tuple[str, str]:
    """Return the first names of a list, and how many more there are in words."""
    left_out = len(who) - _NAMED
    return ", ".join(who[:_NAMED]), f" and {left_out} more" if left_out > 0 else ""


def _lock(state: GateState, reason: Reason) -> str:
    where = _where(state, reason)
    return f"{where} is locked for interactive use by {_who(reason)} (%gpu_release unlocks it)"


def _drain(_state: GateState, reason: Reason) -> str:
    return f"your gate starts no new runs ({_who(reason)})"


def _exclusive(state: GateState, reason: Reason) -> str:
    return f"{_where(state, reason)} is in exclusive use: waits for {_who(reason)}"


def _loading(state: GateState, reason: Reason) -> str:
    where = _where(state, reason)
    return f"a service is loading on {where}: waits until {_who(reason)} is ready or stopped"


def _limits(state: GateState, reason: Reason) -> str:
    limit, running = reason.numbers["limit"], reason.numbers["running"]
    if reason.resource:
        return f"{_where(state, reason)} has {running} of your runs, the maximum is {limit}"
    return f"{running} of your runs are active, the maximum is {limit}"


def _missing(state: GateState, reason: Reason) -> str:
    if reason.resource is None:
        n = reason.numbers
        has = f"{_who(reason)}, so it has" if reason.who else "this machine has"
        asked = "1 GPU" if n["wanted"] == 1 else f"{n['wanted']} GPUs of one model"
        return f"asks for {asked}, {has} {n['present']}"
    words = f" ({_who(reason)})" if reason.who else ""
    return f"{_where(state, reason)} is missing: it was found earlier and is gone{words}"


def _stale(state: GateState, reason: Reason) -> str:
    age = reason.numbers.get("age_ms")
    words = "" if age is None else f": the last one is {age / 1000:,.0f} s old"
    return f"there is no current reading of {_where(state, reason)}{words}; active runs go on"


def _unmeasured(state: GateState, reason: Reason) -> str:
    if "usable_bytes" in reason.numbers:
        where = _where(state, reason)
        return f"{where} cannot be measured, and the need of this run is unknown: give a hint"
    words = f" ({_who(reason)})" if reason.who else ""
    return f"{_where(state, reason)} cannot be measured{words}"


def _watch_slot(state: GateState, reason: Reason) -> str:
    where = _where(state, reason)
    return f"{where} takes one unmeasured run at a time: waits until {_who(reason)} is measured"


def _overrun(state: GateState, reason: Reason) -> str:
    where = _where(state, reason)
    return f"a run uses more of {where} than was reserved for it: waits for {_who(reason)}"


def _fit(state: GateState, reason: Reason) -> str:
    """Show need and room in whole MB that add up: needs are rounded up, available memory down."""
    n, where = reason.numbers, _where(state, reason)
    if "usable_bytes" in n:
        begin, parts = n["usable_bytes"], [("declared_bytes", "declared for runs")]
        first = "declared usable"
    else:
        begin, first = n["free_bytes"], "free"
        parts = [
            ("floor_bytes", "kept back"),
            ("reserved_bytes", "promised to runs that may still use it"),
        ]
    parts.append(("earmarked_bytes", "set aside for runs that have waited longer"))
    left = begin // MB
    words = f"{left:,} MB {first}"
    for name, what in parts:
        part = -(-n[name] // MB)
        if part or name != "earmarked_bytes":
            left -= part
            words += f", less {part:,} MB {what}"
    bound = f"; because of {reason.bound}" if reason.bound else ""
    return f"needs {-(-n['need_bytes'] // MB):,} MB of {where}; {left:,} MB usable: {words}{bound}"


def _external_holds(state: GateState, reason: Reason) -> str:
    n = reason.numbers
    need, alone = -(-n["need_bytes"] // MB), n["alone_bytes"] // MB
    others = f"used by others: {_others(state, reason.resource or '')}"
    return (
        f"needs {need:,} MB of {_where(state, reason)}; only {alone:,} MB would be usable after "
        f"every run has ended; {f'because of {reason.bound}' if reason.bound else others}"
    )


def _others(state: GateState, resource: str) -> str:
    shares = state.attribution.resources.get(resource)
    if shares is None or shares.fault:
        return "cannot be identified here"
    named = [
        f"{holder.name} {megabytes(held)}"
        for holder, held in shares.by_holder.items()
        if holder.kind is not HolderKind.RUN
    ]
    known = [p for p in shares.external if p.held_bytes and p.start_ticks is not None]
    named += [f"pid {p.pid} {megabytes(p.held_bytes or 0)}" for p in known[:_NAMED]]
    rest = shares.external_bytes - sum(p.held_bytes or 0 for p in known[:_NAMED])
    if rest >= MB:
        named.append(f"{'others' if named else 'unnamed processes'} {megabytes(rest)}")
    return ", ".join(named) or "nobody"


def _journal(_state: GateState, _reason: Reason) -> str:
    return "it could start, but the gate cannot write its journal; no run starts until it can"


_WORDS: dict[Check, Callable[[GateState, Reason], str]] = {
    Check.PARKED: _parked,
    Check.AFTER: _after,
    Check.GROUP: _group,
    Check.LOCK: _lock,
    Check.DRAIN: _drain,
    Check.EXCLUSIVE: _exclusive,
    Check.LOADING: _loading,
    Check.LIMITS: _limits,
    Check.MISSING: _missing,
    Check.STALE: _stale,
    Check.UNMEASURED: _unmeasured,
    Check.WATCH_SLOT: _watch_slot,
    Check.OVERRUN: _overrun,
    Check.FIT: _fit,
    Check.EXTERNAL_HOLDS: _external_holds,
    Check.JOURNAL: _journal,
}
