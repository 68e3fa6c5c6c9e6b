"""Numbers and states in words, for cards, tables and messages."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Optional

from jupyter_gpugate.faces import columns

Json = Mapping[str, Any]

#: The most columns of a list that parameters, and that a command takes.
_PARAMETERS_CHARS: Final = 60
_COMMAND_CHARS: Final = 40
_MB: Final = 1 << 20
#: To whose multiple a better hint is rounded up.
_HINT_STEP: Final = 64 * _MB
_PHASES: Final = {
    "granted": "about to start",
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
    "lost": "lost: its supervisor ended without recording an end",
}
#: How a service completes, by its reason.
_SERVICE_ENDS: Final = {"stopped": "stopped", "time_limit": "stopped at its time limit"}
#: Words on cards and in tables for names of numbers.
_LABELS: Final = {
    "room_bytes": "usable",
    "floor_bytes": "kept back",
    "reserved_bytes": "promised",
    "earmarked_bytes": "set aside",
}
_EVIDENCE: Final = {
    "own_cap": "it reached its own limit",
    "device_full": "the GPU was full",
    "host_oom_killer": "the kernel killed it because RAM ran out",
    "memory_error": "an allocation of RAM failed",
    "shm_full": "shared memory was full",
}
_BASES: Final = {
    "chosen": "as you chose",
    "calibrated": "as earlier runs needed, with a safety margin",
    "hint": "by your hint",
    "watch": "first run of this code, a generous reservation until it has been measured",
    "declared": "as the administrator has declared",
}

#: The author's own numbers by origin: in words, and the beginning of their options.
_OF_AUTHOR: Final = {"hint": ("hint", "--hint-"), "chosen": ("choice", "--")}


def mb(value: Optional[float]) -> str:
    """Format bytes as whole MB (2^20); "?" if nothing could be read."""
    return "?" if value is None else f"{value / _MB:,.0f} MB"


def of(part: float, whole: float) -> str:
    """Format a part of an amount, with the unit once: "1,299 of 2,756 MB"."""
    return f"{mb(part).removesuffix(' MB')} of {mb(whole)}"


def part(held: Optional[float], charge: float) -> str:
    """Format memory that is held of a charge, if it could be measured."""
    return f"? of {mb(charge)}" if held is None else of(held, charge)


def span(seconds: float) -> str:
    """Format seconds for people: "40 s", "4 min", "2 h 05 min"."""
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


def parameters(run: Json) -> str:
    """Return the parameters of a run in a short form: "batch=8 seed=1"."""
    given: Json = run.get("parameters") or {}
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in given.items())


def named(run: Json) -> str:
    """Name a run in a list, with its parameters, and with its command if it is a program."""
    name = str(run.get("name", "?"))
    first, space, rest = str(run.get("command") or "").partition(" ")
    command = f"{first.rpartition('/')[2]}{space}{rest}"
    parameters_ = columns.cut(parameters(run), _PARAMETERS_CHARS)
    parts = (f"{name} {parameters_}".rstrip(), columns.middle_cut(command, _COMMAND_CHARS))
    return "  ".join(filter(None, parts))


#: The states of a submit before it is a run.
_BEFORE: Final = {"reading": "reading your sources", "asking": "submitting to the gate"}


def standing(run: Json) -> str:
    """Describe the current state of a run in a few words."""
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
    if run.get("service") and run.get("phase") == "running":
        return "ready" if run.get("ready") else "loading"
    return _PHASES.get(str(run.get("phase")), str(run.get("phase") or status))


def ended(run: Json) -> str:
    """Describe how a run ended, with the recorded reason."""
    end = str(run.get("end") or "ended")
    why = str(run.get("exit_reason") or "")
    if end == "completed" and why in _SERVICE_ENDS:
        return _SERVICE_ENDS[why]
    words = _ENDS.get(end, end)
    if end == "expired":
        last = str(run.get("exit_detail") or "")
        return f"{words}; its last reason to wait: {last}" if last else words
    if why.startswith("after: "):
        first, _, how = why[len("after: ") :].partition(" ")
        return f"{words}: {first}, which had to complete first, {how}"
    if run.get("oom_evidence"):
        evidence = str(run["oom_evidence"])
        words += f": {_EVIDENCE.get(evidence, evidence.replace('_', ' '))}"
    is_plain = why in ("", "exit 0", end)
    return words if is_plain else f"{words} ({why.replace('_', ' ')})"


def retried(run: Json) -> str:
    """Say in one sentence why a run was tried again, and with how much; "" where it was not."""
    retry: Json = run.get("retry") or {}
    at, charge, where = mb(retry.get("at_bytes")), mb(retry.get("charge_bytes")), retry.get("where")
    again = "to be retried" if run.get("status") == "queued" else "retried"
    sentences = {
        "own_cap": f"its cap of {at} was hit; {again} with {charge}",
        "device_full": f"{where} was full when it held {at}; {again} with {charge}",
        "pushed_out": f"others took {at} of {where} while it ran; {again} with the same {charge}",
    }
    return sentences.get(str(retry.get("cause")), "")


def admitted(basis: Json, devices: Iterable[Json]) -> str:
    """Explain for each resource the amount that is reserved."""
    listed = list(devices)
    by_basis: dict[str, list[str]] = {}
    for name, rung in basis.items():
        by_basis.setdefault(str(rung), []).append(resource(name, listed))
    parts = [f"{' and '.join(r)}: {_BASES.get(rung, rung)}" for rung, r in by_basis.items()]
    return "; ".join(parts)


def whole_output(run_id: str) -> str:
    """Return the call that returns the whole output of a run."""
    return f'jupyter_gpugate.get("{run_id}").output()'


def shortened(text: str, most: int) -> str:
    """Shorten a text to about ``most`` characters, with the number of omitted ones."""
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]}… ({left_out:,} more characters)"


def visible(text: str) -> str:
    """Return one line of text without anything that moves a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def advice(run: Json) -> Iterator[str]:
    """Say what the author of a run could change."""
    yield from map(str, run.get("advice") or ())
    yield from beyond_hints(run)


def beyond_hints(run: Json) -> Iterator[str]:
    """Say for each hint or chosen amount that the run exceeded it, and which value to use."""
    devices = list(run.get("devices") or ())
    peaks: Json = run.get("peaks") or {}
    for term_ in (run.get("estimate") or {}).get("terms") or ():
        origin = str(term_.get("origin"))
        if origin not in _OF_AUTHOR or term_.get("need_bytes") is None:
            continue
        hint = term_["need_bytes"] - int(term_.get("margin_bytes") or 0)
        on_ram = term_.get("resource") == "ram"
        held = {name: peak for name, peak in peaks.items() if (name == "ram") == on_ram}
        name = max(held, key=held.__getitem__, default="")
        if name and held[name] > hint:
            # Peaks of equal runs differ by a few percent.
            better = math.ceil(held[name] * 1.05 / _HINT_STEP) * (_HINT_STEP // _MB)
            what, prefix = _OF_AUTHOR[origin]
            option = f"{prefix}{'ram' if on_ram else 'vram'} {better}MB"
            yield (
                f"{resource(name, devices)} {mb(held[name])} is more than your {what} of "
                f"{mb(hint)}: raise it to {option}"
            )


def why(reason: Json) -> str:
    """Return the gate's sentence for one reason why a run is kept waiting."""
    kind = str(reason.get("kind") or "unknown reason")
    return str(reason.get("message") or kind.replace("_", " "))


def stopped_by(kill: Json) -> str:
    """Describe how a run was stopped, and how long that took: "cleanly (0.04 s)"."""
    means = str(kill.get("means") or "").split(" + ")
    how = "by force"
    if means == ["term"]:
        how = "cleanly"
    elif "term" in means and "kill" in means:
        how = "by force, after it ignored the request to stop"
    elif "term" in means:  # and a sweep
        how = "with processes that had left its tree"
    return f"{how} ({(kill.get('ms') or 0) / 1000:,.2f} s)"


def locks(answer: Json, now: float) -> Iterator[str]:
    """Describe each lock; ``now`` is in seconds on the clock of the locks."""
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
    """Format a number that a decision used, under its name: bytes as MB, others unchanged."""
    if name.endswith("_bytes"):
        # As in the sentence beside it: a need is rounded up, available memory is rounded down.
        towards = math.ceil if "need" in name else math.floor
        label = _LABELS.get(name, name[:-6].replace("_", " "))
        return f"{label} {towards(value / _MB):,} MB"
    return f"{name.replace('_', ' ')} {value:,}"


def term(term_: Json) -> str:
    """Describe one term of an estimate, with its origin."""
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
        parts.append(f"from {term_['n']} run{'s' if term_['n'] > 1 else ''}")
    if margin:
        parts.append(f"plus {mb(margin)} safety margin")
    return ", ".join(parts)


def _origin(term_: Json) -> str:
    origin, note = str(term_.get("origin") or ""), str(term_.get("note") or "")
    if origin in ("hint", "chosen"):
        return _BASES[origin]
    if not note or note.startswith(origin):
        return note or origin
    return f"{origin} ({note})"


def _unknown(term_: Json) -> str:
    clues = [str(term_["note"])] if term_.get("note") else []
    if term_.get("prior_bytes") and not term_.get("unknown_parameters"):
        clues.append(f"an earlier version needed {mb(term_['prior_bytes'])}")
    if term_.get("lower_bound_bytes"):
        clues.append(f"unfinished attempts held {mb(term_['lower_bound_bytes'])}")
    return "unknown" + (f" ({'; '.join(clues)})" if clues else "")


def kept(runs: Json) -> Iterator[str]:
    """Describe the disk space of run directories, and how to remove them."""
    held = runs.get("held_bytes")
    least = "" if runs.get("is_whole", True) else "at least "
    holds = "" if held is None else f" and hold {least}{mb(held)}"
    yield f"{runs.get('count'):,} runs are in {runs.get('directory')}{holds}."
    yield (
        "When a run ends, only its inputs are removed. You may remove ended runs at any time: "
        "jupyter gpugate rm, rm -r, or DELETE /runs/ID over HTTP."
    )
