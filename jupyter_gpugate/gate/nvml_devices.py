"""One pass over all boards and slices, no number believed unchecked.

Each device stands alone: what one of them cannot tell is a fault on that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from jupyter_gpugate.core.model import Device, DeviceReading, Fault
from jupyter_gpugate.gate.nvml_lists import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    Lists,
    read_processes,
)

#: Boards that share the machine's RAM, by the name that the driver gives them.  An unknown board
#: without memory of its own is not taken for one: an error is no proof of shared memory.
UNIFIED = re.compile(r"\(nvgpu\)|\b(GB10|Orin|Thor|Xavier|Tegra|Jetson)\b")
ARGUMENT_VERSION_MISMATCH = 25
INVALID_ARGUMENT = 2
NOT_FOUND = 6
#: No board has so much, and no machine so many: what says so is noise.
GREATEST_BYTES = 1 << 46
GREATEST_COUNT = 1024

T = TypeVar("T")


class Memory(NamedTuple):
    """What a device says of its memory; ``source`` is the call that said it."""

    total_bytes: int
    free_bytes: int
    reserved_bytes: int | None
    source: str


class NotAReadingError(ValueError):
    """The driver answered with numbers that cannot be true."""


class Slot(NamedTuple):
    """Where a device sits: the number of its board, and of its slice on it."""

    board: int
    slice: int | None = None


@dataclass
class DeviceTable:
    """The devices of one driver; it remembers who sat where, to name one that is lost."""

    nvml: ModuleType
    now: Callable[[], float]
    known: dict[Slot, Device] = field(default_factory=dict)
    notes: dict[str, set[str]] = field(default_factory=dict)  # of the newest pass

    def read(self) -> tuple[DeviceReading, ...]:
        """Read every device; raise only where not even their number can be read."""
        self.notes.clear()
        count = self.nvml.nvmlDeviceGetCount()
        if count > GREATEST_COUNT:
            raise NotAReadingError(f"the driver counts {count} boards")
        readings: dict[str, DeviceReading] = {}
        for index in range(count):
            for reading in self._read_board(index):
                # A remembered name is wrong where the boards moved up: who answers to it wins.
                former = readings.get(reading.device.uuid)
                if former is None or former.fault is not None:
                    readings[reading.device.uuid] = reading
        return tuple(readings.values())

    def _read_board(self, index: int) -> Iterable[DeviceReading]:
        slot = Slot(index)
        try:
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            board = self._describe_board(handle, slot)
        except self._failures as error:
            yield from self._lost(slot, error)
            return
        yield self._read(handle, slot, board)
        if board.mig_enabled:
            yield from self._read_slices(handle, board)
        else:
            self._forget_slices(index)

    def _read_slices(self, board_handle: Any, board: Device) -> Iterable[DeviceReading]:
        count = self._attempt(self.nvml.nvmlDeviceGetMaxMigDeviceCount, board_handle)
        places = {slot.slice for slot in self.known if slot.board == board.index} - {None}
        if isinstance(count, int) and count <= GREATEST_COUNT:
            places = set(range(count))
        for place in sorted(p for p in places if p is not None):
            slot = Slot(board.index, place)
            try:
                handle = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(board_handle, place)
                part = self._describe_slice(handle, slot, board)
            except self._failures as error:
                if getattr(error, "value", None) in (NOT_FOUND, INVALID_ARGUMENT):
                    self.known.pop(slot, None)  # no slice there (any more)
                else:
                    yield from self._lost(slot, error)
            else:
                yield self._read(handle, slot, part)

    def _forget_slices(self, index: int) -> None:
        for slot in [s for s in self.known if s.board == index and s.slice is not None]:
            del self.known[slot]

    # -- who it is ----------------------------------------------------------------------------

    def _describe_board(self, handle: Any, slot: Slot) -> Device:
        uuid = self._uuid(handle)
        known = self.known.get(slot)
        if known is None or known.uuid != uuid:
            known = Device(uuid, "", 0, slot.board)
        model = self._attempt(self.nvml.nvmlDeviceGetName, handle)
        pci = self._attempt(self.nvml.nvmlDeviceGetPciInfo, handle)
        mig = self._attempt(self.nvml.nvmlDeviceGetMigMode, handle)
        model = model if isinstance(model, str) else known.model
        return replace(
            known,
            model=model,
            bus=known.bus if isinstance(pci, Fault) else _text(pci.busId),
            # A board that does not know the mode has none; one that fails is what it was.
            mig_enabled=known.mig_enabled if isinstance(mig, Fault) else mig[0] == 1,
            unified=UNIFIED.search(model) is not None,
        )

    def _describe_slice(self, handle: Any, slot: Slot, board: Device) -> Device:
        uuid = self._uuid(handle)
        known = self.known.get(slot)
        name = self._attempt(self.nvml.nvmlDeviceGetName, handle)
        profile = name.rpartition("MIG ")[2] if isinstance(name, str) else board.model
        total = known.total_bytes if known is not None and known.uuid == uuid else 0
        return Device(uuid, profile, total, slot.slice or 0, parent=board.uuid, bus=board.bus)

    def _uuid(self, handle: Any) -> str:
        uuid = str(self.nvml.nvmlDeviceGetUUID(handle))
        if not uuid.startswith(("GPU-", "MIG-")):
            raise NotAReadingError(f"the driver names a device {uuid!r}")
        return uuid

    # -- what it shows ------------------------------------------------------------------------

    def _read(self, handle: Any, slot: Slot, device: Device) -> DeviceReading:
        """Read free, then the lists, then free again: the smaller free counts."""
        taken_at = self.now()
        before = self._attempt(self._memory, handle)
        if isinstance(before, Memory):
            device = replace(device, total_bytes=before.total_bytes)
        self.known[slot] = device
        # A board in slices is no resource: who is where is told by its slices.
        lists = None if device.mig_enabled else self._lists(handle, device)
        after = self._attempt(self._memory, handle)
        reading = DeviceReading(
            device=device,
            taken_at=taken_at,
            free_bytes=None,
            processes=lists.processes if isinstance(lists, Lists) else None,
            processes_fault=lists if isinstance(lists, Fault) else None,
            utilisation=self._utilisation(handle),
        )
        if device.unified:
            return reading
        if isinstance(before, Fault):
            return replace(reading, fault=before)
        if isinstance(after, Fault):
            return replace(reading, fault=after)
        self._note("memory", after.source)
        return replace(
            reading,
            free_bytes=min(before.free_bytes, after.free_bytes),
            driver_reserved_bytes=after.reserved_bytes,
            source=after.source,
        )

    def _lists(self, handle: Any, device: Device) -> Lists | Fault:
        lists = self._attempt(read_processes, self.nvml, handle, device.total_bytes)
        if isinstance(lists, Lists):
            self._note("process_lists", lists.calls)
        return lists

    def _memory(self, handle: Any) -> Memory:
        nvml = self.nvml
        try:
            info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            memory = Memory(info.total, info.free, info.reserved, "nvml-v2")
        except nvml.NVMLError as error:
            if error.value not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED):
                raise
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            memory = Memory(info.total, info.free, None, "nvml-v1")
        parts = (memory.free_bytes, info.used, memory.reserved_bytes or 0)
        if not 0 < memory.total_bytes <= GREATEST_BYTES or max(parts) > memory.total_bytes:
            raise NotAReadingError(
                f"the driver says {info.used} bytes used, {info.free} free of {info.total}"
            )
        return memory

    def _utilisation(self, handle: Any) -> float | None:
        rates = self._attempt(self.nvml.nvmlDeviceGetUtilizationRates, handle)
        if isinstance(rates, Fault) or rates.gpu > 100:  # noqa: PLR2004 - percent
            return None
        return float(rates.gpu) / 100

    # -- what fails ---------------------------------------------------------------------------

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        # ValueError: undecodable text and impossible numbers.
        return (self.nvml.NVMLError, ValueError)

    def _attempt(self, call: Callable[..., T], *args: Any) -> T | Fault:
        try:
            return call(*args)
        except self._failures as error:
            return fault_of(error, self.now())

    def _lost(self, slot: Slot, error: Exception) -> Iterable[DeviceReading]:
        """Name a device that does not answer, and the slices that went with it."""
        fault = fault_of(error, self.now())
        lost = [
            device
            for place, device in self.known.items()
            if place == slot or (slot.slice is None and place.board == slot.board)
        ]
        if not lost:
            self._note(f"device {slot.board}", f"{fault.code}: {fault.text}")
        for device in lost:
            yield DeviceReading(device, fault.since, None, processes_fault=fault, fault=fault)

    def _note(self, what: str, text: str) -> None:
        self.notes.setdefault(what, set()).add(text)


def fault_of(error: Exception, at: float) -> Fault:
    """Put a failed call into words: the driver's own code and text where it has any."""
    value = getattr(error, "value", None)
    code = getattr(error, "code", "not_a_reading") if value is None else f"nvml-{value}"
    return Fault(code, str(error), at)


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="replace")
