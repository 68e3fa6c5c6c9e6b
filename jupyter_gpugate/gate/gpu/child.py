"""The GPU reader's own process: the only one that touches the driver's library.

A driver may hang, crash or corrupt its caller, so it is called in a process that can be killed.
It reads ``{"read": n}`` a line from its standard input and writes one `Answer` a line, until the
input ends; while a slow driver keeps it, a `SIGN_OF_LIFE` now and then.  The first question also
has the devices that an earlier child saw, ``known``, so that one which is lost can be named.

After an answer with a fault it is of no further use: the library is not opened again in the same
process, because a half-initialised one stays so.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    Fault,
    ReaderHealth,
)
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.gpu.devices import DeviceTable, fault_of, places_of
from jupyter_gpugate.gate.gpu.pid_namespace import PidNamespace

LIBRARY = "libnvidia-ml.so.1"
DISTRIBUTION = "nvidia-ml-py"
MEMORY_V2 = 0x02000028  # version and size of the struct, as the library wants to be asked
MEMORY_V2_BYTES = 40
PR_SET_PDEATHSIG = 1
SIGN_OF_LIFE = b".\n"
#: A pass over healthy boards takes a few milliseconds, and gives none.
SIGN_EVERY_S = 0.5
#: A pass that takes longer is mentioned.
SLOW_S = 1.0


@dataclass(frozen=True)
class Answer:
    """The child's answer to one request."""

    read: int
    present: bool
    devices: tuple[DeviceReading, ...]
    health: ReaderHealth
    pids_are_ours: bool


class BindingError(ValueError):
    """The module named ``pynvml`` is not the one that this package depends on."""

    code = "binding"


class LibraryError(ValueError):
    """The driver's library is there and cannot be loaded."""

    code = "library"


class GpuProbe:
    """The driver as one process sees it, opened at the first reading.

    ``returned`` is called whenever the driver has returned from a call on a device.
    """

    def __init__(
        self, known: Iterable[Device] = (), returned: Callable[[], None] = lambda: None
    ) -> None:
        self._known = list(known)
        self._returned = returned
        self._table: DeviceTable | None = None
        self._namespace = PidNamespace()
        self._detail: dict[str, str] = {}

    def answer(self, number: int) -> Answer:
        """Read everything once; each failure becomes a fault."""
        taken_at = awake_time()
        devices: tuple[DeviceReading, ...] = ()
        fault: Fault | None = None
        present, took_s = True, 0.0
        try:
            present = library_is_there()
            if present:
                table = self._table = self._table or self._open()
                begun = awake_time()
                devices = table.read()
                took_s = awake_time() - begun
                present = bool(devices or table.notes)
        except Exception as error:  # noqa: BLE001 - the reader never raises: it says what is wrong
            fault = fault_of(error, taken_at)
        detail = self._detail | self._noted()
        doubt = self._namespace.doubt(_listed(devices)) if devices else ""
        if doubt:
            detail["pid_namespace"] = doubt
        if took_s > SLOW_S:
            detail["slow"] = f"the driver takes {took_s:.0f} s to report all GPUs"
        health = ReaderHealth("gpu", present, taken_at, fault, detail, took_s)
        return Answer(number, present, devices, health, not doubt)

    def _open(self) -> DeviceTable:
        nvml = load_binding()
        self._detail["binding"] = f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
        nvml.nvmlInit()
        for name, version in (
            ("driver", nvml.nvmlSystemGetDriverVersion),
            ("library", nvml.nvmlSystemGetNVMLVersion),
        ):
            try:
                self._detail[name] = str(version())
            except (nvml.NVMLError, ValueError) as error:
                self._detail[name] = f"unknown ({error})"
        return DeviceTable(
            cast(ModuleType, Returning(nvml, self._returned)), awake_time, places_of(self._known)
        )

    def _noted(self) -> dict[str, str]:
        notes = self._table.notes if self._table else {}
        return {what: "; ".join(sorted(texts)) for what, texts in notes.items()}


class Returning:
    """The binding, which reports each return from a call on a device."""

    def __init__(self, nvml: ModuleType, returned: Callable[[], None]) -> None:
        self._nvml = nvml
        self._returned = returned

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvmlDevice"):
            return found

        def call(*args: Any, **options: Any) -> Any:
            try:
                return found(*args, **options)
            finally:
                self._returned()

        setattr(self, name, call)
        return call


class Signs:
    """Writes signs of life between answers, while an answer is being made."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._last = 0.0

    def begin(self) -> None:
        self._last = awake_time()

    def give(self) -> None:
        now = awake_time()
        if now - self._last >= SIGN_EVERY_S:
            self._last = now
            self._write(SIGN_OF_LIFE)


def _listed(devices: tuple[DeviceReading, ...]) -> set[int]:
    return {process.pid for reading in devices for process in reading.processes or ()}


def library_is_there() -> bool:
    """Return whether this machine has a driver; raise `LibraryError` for a broken one."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        if str(error).startswith(f"{LIBRARY}: cannot open shared object file: No such file"):
            return False
        raise LibraryError(str(error)) from error
    return True


def load_binding() -> ModuleType:
    """Import ``pynvml``; raise `BindingError` unless it is nvidia-ml-py's, with its structs."""
    spec = importlib.util.find_spec("pynvml")
    try:
        wanted = importlib.metadata.distribution(DISTRIBUTION).locate_file("pynvml.py")
    except importlib.metadata.PackageNotFoundError:
        raise BindingError(f"{DISTRIBUTION} is not installed") from None
    if spec is None or spec.origin is None:
        raise BindingError(f"{DISTRIBUTION} is installed, but has no module pynvml")
    if Path(spec.origin).resolve() != Path(str(wanted)).resolve():
        raise BindingError(
            f"pynvml comes from {spec.origin} and hides that of {DISTRIBUTION} ({wanted})"
        )
    nvml = importlib.import_module("pynvml")
    size = ctypes.sizeof(nvml.c_nvmlMemory_v2_t)
    if (nvml.nvmlMemory_v2, size) != (MEMORY_V2, MEMORY_V2_BYTES):
        raise BindingError(f"the memory struct of {spec.origin} is not the library's")
    return nvml


def main() -> None:
    """Answer requests until standard input ends."""
    # A call that hangs never sees the input end: die with the gate all the same.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The output of a library must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    signs = Signs(answers.write)
    probe: GpuProbe | None = None
    for line in sys.stdin:
        question = json.loads(line)
        if probe is None:
            known = from_json(tuple[Device, ...], question.get("known", []), "known")
            probe = GpuProbe(known, signs.give)
        signs.begin()
        answer = probe.answer(question["read"])
        text = json.dumps(to_json(answer), separators=(",", ":")).encode() + b"\n"
        while text:
            text = text[answers.write(text) :]


if __name__ == "__main__":
    main()
