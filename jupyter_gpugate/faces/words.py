"""Numbers and verdicts as a researcher reads them; the only place where bytes become MB."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Optional

Json = Mapping[str, Any]

_MB: Final = 1 << 20
#: To whose multiple a better hint is rounded up.
_HINT_STEP: Final = 64 * _MB
_PHASES: Final = {
    "granted": "admitted, about to start",
    "starting": "starting",
    "running": "running",
    "stopping": "stopping",
    "ending": "ending",
}
_ENDS: Final = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired: it did not start within --max-wait",
    "rejected": "rejected",
    "oom": "out of memory",
    "lost": "lost: its supervisor went away without an end on record",
}
_EVIDENCE: Final = {
    "own_cap": "it reached its own cap",
    "device_full": "the GPU was full",
    "host_oom_killer": "the kernel killed it because RAM ran out",
    "memory_error": "an allocation of RAM failed",
    "shm_full": "shared memory was full",
}
_BASES: Final = {
    "calibrated": "by what earlier runs needed",
    "hint": "by your hint",
    "watch": "first run of this code: a generous reservation until it has been measured",
    "declared": "by the administrator's declared figures",
}


def mb(value: Optional[float]) -> str:
    """Say bytes as whole MB (2^20), "?" where nothing could be read."""
    return "?" if value is None else f"{value / _MB:,.0f} MB"


def span(seconds: float) -> str:
    """Say seconds as a person does: "40 s", "4 min", "2 h 05 min"."""
    if seconds < 100:  # noqa: PLR2004 - people say 90 s, and 2 min
        return f"{max(0, seconds):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:  # noqa: PLR2004 - as above
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def resource(name: str, devices: Iterable[Json] = ()) -> str:
    """Name a resource for people: RAM, VRAM, or "GPU 0" where the device is known."""
    if name in ("ram", "vram"):
        return name.upper()
    for device in devices:
        if device.get("uuid") == name:
            return device_name(device)
    return name if len(name) <= 12 else f"{name[:12]}…"  # noqa: PLR2004 - "GPU-" and 8 digits


def device_name(device: Json) -> str:
    """Name a device as the gate does, which gives no two of them one name."""
    return str(device.get("name") or f"GPU {device.get('index', '?')}")


#: The states of a submit before it is a run.
_BEFORE: Final = {"reading": "reading your sources", "asking": "waiting for the gate to take it"}


def standing(run: Json) -> str:
    """Where a run stands, in a few words."""
    status = run.get("status")
    if run.get("machine") and status != "ended":
        return f"on another machine ({run['machine']})"
    if status == "queued":
        position = run.get("position")
        return f"waiting, number {position} in the queue" if position else "waiting in the queue"
    if status == "ended":
        return ended(run)
    if status in _BEFORE:
        return _BEFORE[str(status)]
    return _PHASES.get(str(run.get("phase")), str(run.get("phase") or status))


def ended(run: Json) -> str:
    """How a run ended, with the reason on record."""
    end = str(run.get("end") or "ended")
    why = str(run.get("exit_reason") or "")
    words = _ENDS.get(end, end)
    if end == "expired" and why.startswith("max_wait"):
        last = why.partition(": ")[2]
        return f"{words}; its last reason to wait: {last}" if last else words
    if run.get("oom_evidence"):
        evidence = str(run["oom_evidence"])
        words += f": {_EVIDENCE.get(evidence, evidence.replace('_', ' '))}"
    told = why in ("", "exit 0", end)
    return words if told else f"{words} ({why.replace('_', ' ')})"


def admitted(basis: Json, devices: Iterable[Json]) -> str:
    """By what right each resource was charged."""
    known = list(devices)
    by_basis: dict[str, list[str]] = {}
    for name, rung in basis.items():
        by_basis.setdefault(str(rung), []).append(resource(name, known))
    parts = [f"{' and '.join(r)} {_BASES.get(rung, rung)}" for rung, r in by_basis.items()]
    return "; ".join(parts)


def whole_output(run_id: str) -> str:
    """Return the call that gives all that a run has printed."""
    return f'jupyter_gpugate.get("{run_id}").output()'


def shortened(text: str, most: int) -> str:
    """Return a text of at most about ``most`` characters, which says how many are left out."""
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]}… ({left_out:,} more characters)"


def visible(text: str) -> str:
    """Return one line of text without anything that moves a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def beyond_hints(run: Json) -> Iterator[str]:
    """Say for each hint that the run exceeded it, and which value to use."""
    devices = list(run.get("devices") or ())
    peaks: Json = run.get("peaks") or {}
    for term_ in (run.get("estimate") or {}).get("terms") or ():
        if term_.get("origin") != "hint" or term_.get("need_bytes") is None:
            continue
        hint = term_["need_bytes"] - int(term_.get("margin_bytes") or 0)
        on_ram = term_.get("resource") == "ram"
        held = {name: peak for name, peak in peaks.items() if (name == "ram") == on_ram}
        name = max(held, key=held.__getitem__, default="")
        if name and held[name] > hint:
            # Peaks of equal runs differ by a few percent.
            better = math.ceil(held[name] * 1.05 / _HINT_STEP) * (_HINT_STEP // _MB)
            option = f"{'--hint-ram' if on_ram else '--hint-vram'} {better}MB"
            yield (
                f"{resource(name, devices)} {mb(held[name])} is more than your hint of {mb(hint)}: "
                f"raise it to {option}"
            )


def why(reason: Json) -> str:
    """Say one reason why a run is kept waiting: the gate's own sentence."""
    kind = str(reason.get("kind") or "no reason is known")
    return str(reason.get("message") or kind.replace("_", " "))


def stopped_by(kill: Json) -> str:
    """Say by what means a run was stopped, and how long that took."""
    means = {"term": "TERM", "kill": "KILL"}
    steps = [means.get(step, step) for step in str(kill.get("means") or "?").split(" + ")]
    return f"by {', then '.join(steps)} in {kill.get('ms') or 0:,.0f} ms"


def locks(answer: Json, now: float) -> Iterator[str]:
    """Say who has locked what; ``now`` is in seconds on the clock of the locks."""
    devices = list(answer.get("devices") or ())
    for lock in answer.get("locks") or ():
        name = str(lock.get("resource", ""))
        where = "the machine" if name == "machine" else resource(name, devices)
        left = f" for {span(lock['until'] - now)}" if lock.get("until") is not None else ""
        owner = lock.get("owner") or "somebody"
        yield f"{where} is locked by {owner}{left}: no run of this gate starts there"


def pids(survivors: Iterable[Any]) -> str:
    """Name processes by pid; a process may come as (pid, start ticks)."""
    return ", ".join(str(one[0] if isinstance(one, (list, tuple)) else one) for one in survivors)


def number(name: str, value: float) -> str:
    """Say a number that a decision used, under its name: bytes as MB, the rest as it is."""
    if name.endswith("_bytes"):
        # As in the sentence beside it: what is needed is not understated, what is there not over.
        towards = math.ceil if "need" in name else math.floor
        return f"{name[:-6].replace('_', ' ')} {towards(value / _MB):,} MB"
    return f"{name.replace('_', ' ')} {value:,}"


def term(term_: Json) -> str:
    """One term of an estimate with its origin inline."""
    name = resource(str(term_.get("resource", "")))
    if term_.get("device_model"):
        name += f" on {term_['device_model']}"
    if term_.get("holder") == "model_server":
        name += " of the model server"
    if term_.get("need_bytes") is None:
        return f"{name} {_unknown(term_)}"
    margin = int(term_.get("margin_bytes") or 0)
    parts = [f"{name} {mb(term_['need_bytes'] - margin)} {_origin(term_)}"]
    if term_.get("n"):
        parts.append(f"n = {term_['n']}")
    if margin:
        parts.append(f"+ {mb(margin)} margin")
    return ", ".join(parts)


def _origin(term_: Json) -> str:
    origin, note = str(term_.get("origin") or ""), str(term_.get("note") or "")
    if origin == "hint":
        return "by your hint"
    if not note or note.startswith(origin):
        return note or origin
    return f"{origin} ({note})"


def _unknown(term_: Json) -> str:
    clues = [str(term_["note"])] if term_.get("note") else []
    if term_.get("prior_bytes"):
        clues.append(f"other source of this name needed {mb(term_['prior_bytes'])}")
    if term_.get("lower_bound_bytes"):
        clues.append(f"unfinished attempts held {mb(term_['lower_bound_bytes'])}")
    return "not known yet" + (f" ({'; '.join(clues)})" if clues else "")


def kept(runs: Json) -> Iterator[str]:
    """Say how much disk space run directories take, and how to remove them."""
    held = runs.get("held_bytes")
    least = "" if runs.get("is_whole", True) else "at least "
    holds = "" if held is None else f" and hold {least}{mb(held)}"
    yield f"{runs.get('count'):,} runs are in {runs.get('directory')}{holds}."
    yield (
        "Only the inputs of a run that has ended are removed by themselves. The directory of such "
        "a run may be removed at any time: rm -r, or DELETE /runs/ID over HTTP."
    )
