"""The process lists of one device, no row believed unchecked.

A driver keeps three lists (compute, graphics, MPS) under three versions of one call.  Versions
differ in the layout of a row, and drivers have shipped that fill rows in another layout than the
version says, so each row is checked, and a list with an impossible one is read by the older call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

from jupyter_gpugate.core.samples import GpuProcess

KINDS = {"C": "Compute", "G": "Graphics", "M": "MPSCompute"}
#: The kernel's own upper bound for a pid, whatever this machine's setting.
GREATEST_PID = 1 << 22
NO_PERMISSION = 4
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
#: Why a driver may lack one list and still name all compute processes in another.
OPTIONAL = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND})
ATTEMPTS = 3


class Row(NamedTuple):
    """One row of a list; ``held_bytes`` None: the driver does not report it."""

    pid: int
    held_bytes: int | None


class Lists(NamedTuple):
    """All lists of one device as one, and the calls that gave them."""

    processes: tuple[GpuProcess, ...]
    calls: str  # such as "compute v3, graphics v3, no mps (Not Supported)"


class BadRowsError(ValueError):
    """A list has a row that no process can have, by every call that gives it."""

    code = "bad_rows"


def read_processes(nvml: ModuleType, handle: Any, total_bytes: int) -> Lists:
    """Read and join the lists of a device of ``total_bytes`` (0: not known).

    A process in several lists counts once, with the greatest number: they show the same bytes.
    Raises the binding's ``NVMLError`` or `BadRowsError` if no process can be named.
    """
    rows: list[tuple[str, Row]] = []
    calls = []
    for kind, word in KINDS.items():
        label = word.removesuffix("Compute").lower() or "compute"
        try:
            found, version = _read_kind(nvml, handle, word, total_bytes)
        except nvml.NVMLError as error:
            if kind == "C" or error.value not in OPTIONAL:
                raise
            calls.append(f"no {label} ({error})")
        else:
            calls.append(f"{label} {version}")
            rows += [(kind, row) for row in found]
    return Lists(_join(rows), ", ".join(calls))


def _join(rows: Iterable[tuple[str, Row]]) -> tuple[GpuProcess, ...]:
    held: dict[int, int | None] = {}
    kinds: dict[int, str] = {}
    for kind, row in rows:
        former = held.get(row.pid)
        known = [size for size in (former, row.held_bytes) if size is not None]
        held[row.pid] = max(known, default=None)
        if kind not in kinds.get(row.pid, ""):
            kinds[row.pid] = kinds.get(row.pid, "") + kind
    return tuple(GpuProcess(pid, held[pid], kinds[pid]) for pid in sorted(held))


def _read_kind(nvml: ModuleType, handle: Any, word: str, total: int) -> tuple[list[Row], str]:
    """Read one list by the newest call that exists and gives possible rows."""
    bad: Row | None = None
    for version in ("v3", "v2"):
        try:
            rows = _call(nvml, handle, f"nvmlDeviceGet{word}RunningProcesses_{version}")
        except nvml.NVMLError as error:
            if error.value != FUNCTION_NOT_FOUND:
                raise
            continue
        bad = next((row for row in rows if not _is_possible(row, total)), None)
        if bad is None:
            return rows, version
    if bad is None:
        rows = _call_v1(nvml, handle, f"nvmlDeviceGet{word}RunningProcesses")
        bad = next((row for row in rows if not _is_possible(row, total)), None)
        if bad is None:
            return rows, "v1"
    raise BadRowsError(f"the {word} list has pid {bad.pid} with {bad.held_bytes} bytes")


def _is_possible(row: Row, total: int) -> bool:
    fits = row.held_bytes is None or not total or row.held_bytes <= total
    return 0 < row.pid <= GREATEST_PID and fits


def _call(nvml: ModuleType, handle: Any, name: str) -> list[Row]:
    function = getattr(nvml, name)
    for _ in range(ATTEMPTS - 1):
        try:
            return _rows(function(handle))
        except nvml.NVMLError as error:
            # The list may have outgrown the room that the binding had asked for just before.
            if error.value != INSUFFICIENT_SIZE:
                raise
    return _rows(function(handle))


def _rows(found: Iterable[Any]) -> list[Row]:
    return [Row(row.pid, row.usedGpuMemory) for row in found]


class _RowV1(ctypes.Structure):
    """A row of the unversioned call, which the binding would read as a newer one."""

    _fields_ = (("pid", ctypes.c_uint), ("held_bytes", ctypes.c_ulonglong))


def _call_v1(nvml: ModuleType, handle: Any, name: str) -> list[Row]:
    """Call an old driver's only list, which the binding cannot."""
    try:
        function = getattr(nvml.nvmlLib, name)
    except AttributeError:
        raise nvml.NVMLError(FUNCTION_NOT_FOUND) from None
    count = ctypes.c_uint(0)
    status = function(handle, ctypes.byref(count), None)
    rows = (_RowV1 * 0)()
    for _ in range(ATTEMPTS):
        if status != INSUFFICIENT_SIZE:
            break
        count.value = 2 * count.value + 5
        rows = (_RowV1 * count.value)()
        status = function(handle, ctypes.byref(count), rows)
    if status:
        raise nvml.NVMLError(status)
    not_told = nvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
    return [
        Row(row.pid, None if row.held_bytes == not_told else row.held_bytes)
        for row in rows[: count.value]
    ]
