"""Sentences of `jupyter gpugate doctor` on everything that can be measured and enforced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Optional

from jupyter_gpugate.faces import words
from jupyter_gpugate.faces.tables import Table, awake_time, bundle
from jupyter_gpugate.faces.words import Json

_ENFORCED: Final = (
    "A cell with torch is limited to its reserved GPU memory, which a first run may exceed.",
    "For JAX and TensorFlow the limit is passed to the framework; it is not enforced.",
    "Other programs have no limit: they are measured, and using more raises their reservation.",
    "RAM is checked before a run starts and measured while it runs; it is never limited.",
)

_LIVES: Final = (
    "A run goes on when its notebook, its Jupyter server or its gate ends; a later gate adopts it.",
    "A service manager that ends a server's whole control group, like systemd, ends its runs too.",
    "A cancel stops all processes of a run, also in other sessions and process groups.",
)


def machine(answer: Json, width: Optional[int] = None) -> dict[str, str]:
    """Return both forms of doctor's answer by MIME type."""
    return bundle(list(machine_parts(answer)), width)


def machine_parts(answer: Json) -> Iterator[tuple[str, Table]]:
    """Describe in sentences everything that can be measured and enforced here."""
    yield "measured", [[line] for line in _measured(answer)]
    yield "enforced", [[line] for line in _ENFORCED]
    yield "lifetime of runs", [[line] for line in _LIVES]
    runs = answer.get("runs")
    if runs:
        yield "stored on disk", [[line] for line in words.kept(runs)]
    if answer.get("reach") == "user":
        yield "this gate starts only your runs; other users' runs count as used by others", []
    if not answer.get("reach"):
        yield "no gate is running for this user; the first run starts one", []


def _measured(answer: Json) -> Iterator[str]:
    ram: Json = answer.get("ram") or {}
    if ram:
        bound = ram.get("bound_by")
        here = ", in which the gate runs" if answer.get("reach") else ""
        limit = f", as the limit of cgroup {bound} allows{here}"
        by = "" if bound in (None, "machine") else limit
        sizes = f"{words.mb(ram.get('free_bytes'))} free of {words.mb(ram.get('total_bytes'))}"
        yield f"RAM is measured: {sizes}{by}."
    else:
        yield "RAM cannot be read: no run starts."
    attribution: Json = answer.get("attribution") or {}
    shares: Json = attribution.get("devices") or {}
    devices = answer.get("devices") or ()
    for device in devices:
        yield from _device_lines(device, shares.get(device.get("uuid")) or {})
    for reader in answer.get("readers") or ():
        fault: Json = reader.get("fault") or {}
        if fault:
            yield f"The {reader['name']} reader: {fault.get('text')}."
        elif reader["name"] == "gpu" and not devices:
            yield "No GPU can be measured here: only RAM is checked before a run starts."
    if answer.get("unmanaged"):
        yield _not_gated(answer["unmanaged"])
    for line in words.locks(answer, awake_time()):
        yield f"{line[0].upper()}{line[1:]}."
    for line in answer.get("ignored_settings") or ():
        yield f"A setting has no effect: {line}."
    if devices and not attribution.get("pids_are_ours", True):
        yield "The driver counts processes of another PID namespace: holders cannot be identified."


def _not_gated(accelerators: Sequence[Json]) -> str:
    names = [f"{a['path']} ({a['maker']})" if a["maker"] else a["path"] for a in accelerators]
    return (
        f"Not gated: {', '.join(names)}. The gate cannot measure their memory; "
        "they are visible to a run as to its notebook, but others may be using them."
    )


def _device_lines(device: Json, shares: Json) -> Iterator[str]:
    name = f"{words.device_name(device)} ({device.get('model')})"
    fault: Json = device.get("fault") or {}
    if device.get("free_bytes") is None:
        why = fault.get("text") or device.get("message") or "the driver gives no number"
        yield f"{name} cannot be measured: {why}."
        return
    sizes = f"{words.mb(device['free_bytes'])} free of {words.mb(device.get('total_bytes'))}"
    yield f"{name} is measured ({device.get('source')}): {sizes}."
    if shares.get("fault"):
        yield f"{name}: holders of its memory are unknown: {shares['fault']}."
