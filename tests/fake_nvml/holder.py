"""How a process of a test holds memory of a stand-in GPU: ``hold_gpu(device, size)``.

The one file that also runs inside a run's own process: standard library only, CPython 3.9, and
nothing of the package or of the other tests, so that ``runpy.run_path`` of this file is enough.
It finds the stand-in by the two variables that `tests.fake_nvml.StandIn.env` sets.

A device is named as CUDA names it: a number counts the *visible* devices, as in ``cuda:0``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

STATE = "GPUGATE_STANDIN_STATE"
PROCS = "GPUGATE_STANDIN_PROCS"


class OutOfDeviceMemoryError(RuntimeError):
    """The device has not that much left."""


class Part(NamedTuple):
    """A board or a slice, as the state file has it; sizes in bytes."""

    uuid: str
    board: int  # its own index, or that of the board a slice is on
    slice: int | None
    total: int
    reserved: int
    used: int | None  # a fixed figure; None: what is held, plus `unlisted`
    unlisted: int
    mig: bool
    instance: str  # "gpu instance/compute instance" of a slice


class Hold(NamedTuple):
    """One entry of the registry of holders."""

    pid: int
    start_ticks: int
    kind: str
    uuid: str
    size: int | None  # bytes; None: the driver cannot tell
    sticky: bool


# -- the state file ---------------------------------------------------------------------------


def read_parts(text: str) -> tuple[Part, ...]:
    """Every board and slice of a state file, in the driver's order."""
    parts = []
    boards = 0
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words and words[0] in ("gpu", "mig"):
            parts.append(_part(words, boards))
            boards += words[0] == "gpu"
    return tuple(parts)


def _part(words: list[str], boards: int) -> Part:
    keys = dict(word.split("=", 1) for word in words if "=" in word)
    is_slice = words[0] == "mig"
    used = keys.get("used", "auto")
    return Part(
        uuid=keys["uuid"],
        board=int(words[1]) if is_slice else boards,
        slice=int(words[2]) if is_slice else None,
        total=_bytes(keys["total"]),
        reserved=_bytes(keys.get("reserved", "0")),
        used=None if used == "auto" else _bytes(used),
        unlisted=_bytes(keys.get("unlisted", "0")),
        mig=keys.get("mig") == "1",
        instance=f"{keys.get('gi', '')}/{keys.get('ci', '')}",
    )


def _bytes(text: str) -> int:
    power = "KMG".find(text[-1].upper()) + 1
    return int(float(text[:-1]) * (1 << 10 * power)) if power else int(text)


def covered(part: Part, parts: tuple[Part, ...]) -> set[str]:
    """Return the UUIDs whose holders use this part's memory: a board has that of its slices too."""
    if part.slice is not None:
        return {part.uuid}
    return {p.uuid for p in parts if p.board == part.board}


# -- the registry -----------------------------------------------------------------------------


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None: it is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def read_holds(registry: Path) -> Iterator[Hold]:
    """Everything that is held now; what a dead process held is gone unless it is sticky."""
    for path in registry.glob("[0-9]*"):
        pid, ticks, kind, uuid = path.name.split("-", 3)
        try:
            size, *flags = path.read_text().split()
        except OSError:
            continue  # released meanwhile
        sticky = "sticky" in flags
        if sticky or start_ticks(int(pid)) == int(ticks):
            known = None if size == "na" else int(size)
            yield Hold(int(pid), int(ticks), kind, uuid, known, sticky)


def write_hold(registry: Path, hold: Hold) -> None:
    """Add or replace one entry; readers see it whole or not at all."""
    name = f"{hold.pid}-{hold.start_ticks}-{hold.kind}-{hold.uuid}"
    text = ("na" if hold.size is None else str(hold.size)) + (" sticky" if hold.sticky else "")
    draft = registry / f".{name}.{os.getpid()}"
    draft.write_text(text)
    draft.replace(registry / name)


@contextlib.contextmanager
def locked(registry: Path) -> Iterator[None]:
    """One allocation at a time, as in a driver."""
    with (registry / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def held_by_pid(part: Part, parts: tuple[Part, ...], holds: Iterable[Hold]) -> dict[int, int]:
    """Sum up bytes per pid on a part; the same bytes under two kinds count once."""
    mine = covered(part, parts)
    per_device: dict[tuple[int, str], int] = {}
    for hold in holds:
        if hold.uuid in mine:
            key = (hold.pid, hold.uuid)
            per_device[key] = max(per_device.get(key, 0), hold.size or 0)
    held: dict[int, int] = {}
    for (pid, _), size in per_device.items():
        held[pid] = held.get(pid, 0) + size
    return held


def used_bytes(part: Part, parts: tuple[Part, ...], holds: Iterable[Hold]) -> int:
    """Tell what is in use on a part, what the driver reserves apart."""
    if part.used is not None:
        return part.used
    return part.unlisted + sum(held_by_pid(part, parts, holds).values())


# -- CUDA's way of naming devices -------------------------------------------------------------


def visible_devices(parts: tuple[Part, ...], env: dict[str, str]) -> list[Part]:
    """List what a CUDA program sees: unset is all, '' is none, a bad word ends the list.

    Without ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` the largest board counts as the fastest and comes
    first.  A board that is cut into slices shows its first slice.
    """
    boards = [p for p in parts if p.slice is None]
    if env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        boards.sort(key=lambda board: -board.total)
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [part for board in boards for part in _as_seen(board, parts)]
    seen: list[Part] = []
    for word in wanted.split(","):
        found = _named(word.strip(), boards, parts)
        if found is None:
            break
        seen.append(found)
    return seen


def _as_seen(board: Part, parts: tuple[Part, ...]) -> list[Part]:
    if not board.mig:
        return [board]
    return [p for p in parts if p.slice is not None and p.board == board.board][:1]


def _named(word: str, boards: list[Part], parts: tuple[Part, ...]) -> Part | None:
    if re.fullmatch(r"\d+", word):
        numbered = boards[int(word) : int(word) + 1]
        return next((part for board in numbered for part in _as_seen(board, parts)), None)
    former = re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+/\d+)", word)
    if former:
        on = {p.board for p in boards if p.uuid == former[1]}
        matches = [p for p in parts if p.board in on and p.instance == former[2]]
    elif word.startswith(("GPU-", "MIG-")):
        matches = [p for p in parts if p.uuid.startswith(word)]
    else:
        matches = []
    return matches[0] if len(matches) == 1 else None


# -- holding ----------------------------------------------------------------------------------


def hold_gpu(device: int | str, size: int, *, kind: str = "C", sticky: bool = False) -> str:
    """Let this process hold ``size`` bytes of a device in all; return the device's UUID.

    ``device`` is a number among the visible devices, or a UUID.  Raises `RuntimeError` for one
    that CUDA would not show this process, and `OutOfDeviceMemoryError` when it is too full.
    """
    registry = Path(os.environ[PROCS])
    parts = read_parts(Path(os.environ[STATE]).read_text())
    seen = visible_devices(parts, dict(os.environ))
    if isinstance(device, int):
        chosen = seen[device] if 0 <= device < len(seen) else None
    else:
        chosen = next((part for part in seen if part.uuid == device), None)
    if chosen is None:
        raise RuntimeError(f"CUDA error: invalid device ordinal {device!r}")
    pid = os.getpid()
    with locked(registry):
        mine = (pid, chosen.uuid, kind)
        others = [h for h in read_holds(registry) if (h.pid, h.uuid, h.kind) != mine]
        left = chosen.total - chosen.reserved - used_bytes(chosen, parts, others)
        if size > left:
            raise OutOfDeviceMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes, of which {left} are free."
            )
        write_hold(registry, Hold(pid, start_ticks(pid) or 0, kind, chosen.uuid, size, sticky))
    return chosen.uuid


def release_gpu() -> None:
    """Let go of all that this process holds."""
    for path in Path(os.environ[PROCS]).glob(f"{os.getpid()}-*"):
        path.unlink()
