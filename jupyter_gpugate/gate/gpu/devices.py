"""One pass over all boards and slices, no number believed unchecked.

Devices are independent: an unreadable value is a fault of its own device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from jupyter_gpugate.core.samples import Device, DeviceReading, Fault
from jupyter_gpugate.gate.gpu.lists import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Lists, read_processes

#: Boards that share the machine's RAM, by the name that the driver gives them.  An unknown board
#: without memory of its own is not taken for one: an error is no proof of shared memory.
UNIFIED = re.compile(r"\(nvgpu\)|\b(GB10|Orin|Thor|Xavier|Tegra|Jetson)\b")
ARGUMENT_VERSION_MISMATCH = 25
INVALID_ARGUMENT = 2
NOT_FOUND = 6
#: Why the newer memory call may be missing where the older one answers.
NOT_TO_BE_HAD = (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED)
#: No board has so much, and no machine so many: what says so is noise.
GREATEST_BYTES = 1 << 46
GREATEST_COUNT = 1024
#: By how much the parts of a memory reading may miss its total: rounding, and no more.
ROUNDING_BYTES = 128 << 20
ROUNDING_SHARE = 0.02

T = TypeVar("T")


class Memory(NamedTuple):
    """The memory of a device; ``source`` names the call that reported it."""

    total_bytes: int
    free_bytes: int
    reserved_bytes: int | None
    source: str


class NotAReadingError(ValueError):
    """The driver answered with numbers that cannot be true."""


class Span(NamedTuple):
    """One device's memory around its process lists, both times by the same call."""

    memory: Memory  # with the smaller free of the two
    lists: Lists | Fault | None


class Slot(NamedTuple):
    """The position of a device: the number of its board, and of its slice."""

    board: int
    slice: int | None = None


@dataclass
class DeviceTable:
    """The devices of one driver; it remembers who sat where, to name one that is lost."""

    nvml: ModuleType
    now: Callable[[], float]
    known: dict[Slot, Device] = field(default_factory=dict)
    notes: dict[str, set[str]] = field(default_factory=dict)  # of the newest pass
    _newer: set[Slot] = field(default_factory=set)  # that have answered the newer memory call

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
            raise NotAReadingError(f"the driver reports a device with the UUID {uuid!r}")
        return uuid

    # -- what it shows ------------------------------------------------------------------------

    def _read(self, handle: Any, slot: Slot, device: Device) -> DeviceReading:
        """Read free, then the lists, then free again: the smaller free counts."""
        taken_at = self.now()
        span = self._attempt(self._span, handle, slot, device)
        lists = span.lists if isinstance(span, Span) else self._lists(handle, device)
        if isinstance(span, Span):
            device = replace(device, total_bytes=span.memory.total_bytes)
        self.known[slot] = device
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
        if isinstance(span, Fault):
            return replace(reading, fault=span)
        self._note("memory", span.memory.source)
        return replace(
            reading,
            free_bytes=span.memory.free_bytes,
            driver_reserved_bytes=span.memory.reserved_bytes,
            source=span.memory.source,
        )

    def _span(self, handle: Any, slot: Slot, device: Device) -> Span:
        """Read memory, lists, memory; once more where the two memories are not of one kind.

        The versions of the call count the driver's own memory differently, so a number of one is
        never joined with a number of the other.  A device that has answered the newer call is
        given a second chance; then the older call gives both.
        """
        for by in ("nvml-v2", "nvml-v2", "nvml-v1"):
            before = self._memory(handle, by)
            if before.source != by and slot in self._newer:
                continue
            sized = replace(device, total_bytes=before.total_bytes)
            lists = self._lists(handle, sized)
            after = self._memory(handle, before.source)
            if before._replace(free_bytes=0) == after._replace(free_bytes=0):
                break
        else:
            raise NotAReadingError(f"the driver reports {before}, then {after}")
        if after.source == "nvml-v2":
            self._newer.add(slot)
        return Span(after._replace(free_bytes=min(before.free_bytes, after.free_bytes)), lists)

    def _lists(self, handle: Any, device: Device) -> Lists | Fault | None:
        if device.mig_enabled:
            return None  # a board in slices is no resource: who is where is told by its slices
        lists = self._attempt(read_processes, self.nvml, handle, device.total_bytes)
        if isinstance(lists, Lists):
            self._note("process_lists", lists.calls)
        return lists

    def _memory(self, handle: Any, by: str = "nvml-v2") -> Memory:
        """Read by this call, or by the older one if the newer is not available."""
        nvml = self.nvml
        if by == "nvml-v2":
            try:
                info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            except nvml.NVMLError as error:
                if error.value not in NOT_TO_BE_HAD:
                    raise
            else:
                memory = Memory(info.total, info.free, info.reserved, "nvml-v2")
                return _believable(memory, info.used)
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return _believable(Memory(info.total, info.free, None, "nvml-v1"), info.used)

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


def places_of(devices: Iterable[Device]) -> dict[Slot, Device]:
    """The positions of these devices in an earlier session of the driver."""
    known = list(devices)
    boards = {device.uuid: device.index for device in known if device.parent is None}
    places = {}
    for device in known:
        if device.parent is None:
            places[Slot(device.index)] = device
        elif device.parent in boards:
            places[Slot(boards[device.parent], device.index)] = device
    return places


def _believable(memory: Memory, used: int) -> Memory:
    """Return a reading whose numbers can all be true at once; raise `NotAReadingError`."""
    total, free, reserved = memory.total_bytes, memory.free_bytes, memory.reserved_bytes or 0
    rounding = max(ROUNDING_BYTES, int(ROUNDING_SHARE * total))
    in_range = 0 < total <= GREATEST_BYTES and all(0 <= n <= total for n in (free, used, reserved))
    if not in_range or abs(used + reserved + free - total) > rounding:
        kept = f" and {reserved} kept by the driver" if reserved else ""
        raise NotAReadingError(f"the driver says {used} bytes used, {free} free{kept} of {total}")
    return memory


def fault_of(error: Exception, at: float) -> Fault:
    """Put a failed call into words: the driver's own code and text where it has any."""
    value = getattr(error, "value", None)
    code = getattr(error, "code", "not_a_reading") if value is None else f"nvml-{value}"
    return Fault(code, str(error), at)


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="replace")
