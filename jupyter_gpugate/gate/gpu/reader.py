"""The GPU reader: asks a child process, which alone calls the driver and may hang or crash.

Importing this module loads neither the driver's library nor its binding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    Fault,
    ReaderHealth,
)
from jupyter_gpugate.gate.gpu.child import Answer
from jupyter_gpugate.gate.gpu.missed_devices import MissedDevices, clear
from jupyter_gpugate.gate.gpu.process import NoAnswerError, ReaderProcess

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
#: Waking several sleeping boards takes a driver seconds: no first answer is late before that.
STARTING_S = 30.0
ENDING_S = 2.0

Reading = tuple[tuple[DeviceReading, ...], ReaderHealth, bool]


class GpuReader:
    """Reads all GPUs for as long as the driver returns from its calls.

    ``clock`` gives boot time in seconds.  A child that gives no sign of life for the deadline, ends
    or sends bad data is killed and replaced after a pause that doubles up to 30 s; so is one that
    cannot use the library, since only a new process can open it afresh.  A killed child may stay
    for as long as the driver holds it: beside one of those another is started, beside two none.

    A child that answers but misses a device goes on while a second one is tried now and then;
    the second one takes over if it finds at least as much.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        deadline_s: float = 2.5,
        starting_s: float = STARTING_S,
    ) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._starting_s = starting_s
        self._one_at_a_time = asyncio.Lock()
        self._child: ReaderProcess | None = None
        self._killed: list[ReaderProcess] = []
        self._failures = 0
        self._not_before = 0.0
        self._health = ReaderHealth("gpu", present=True, taken_at=None)
        self._onsets: dict[tuple[str, str], float] = {}  # (place, code) -> when first seen
        self._known: dict[str, Device] = {}  # by UUID, from all children: to name what is lost
        self._seen = 0  # how many devices the newest answer showed clearly
        self._missed = MissedDevices()
        self._looking: asyncio.Task[None] | None = None

    async def read(self) -> Reading:
        """Return every device's reading, the reader's health, and whether the pids are ours.

        Never raises, and ends soon after the driver stops returning from its calls.  A fault of
        the reader itself is in its health, and then there are no devices.
        """
        async with self._one_at_a_time:
            try:
                answer = await self._ask()
            except _FailedError as failure:
                return self._without_devices(failure.fault, self._health)
        if answer.health.fault is not None:
            self._give_up()
            return self._without_devices(answer.health.fault, answer.health)
        self._failures = 0
        self._health = answer.health
        self._known.update((r.device.uuid, r.device) for r in answer.devices)
        self._seen = len(clear(answer.devices))
        misses = self._missed.misses(answer.devices, answer.health)
        if self._missed.look_is_due(misses=misses, now=self._clock()):
            self._begin_to_look()
        return self._dated(answer.devices), answer.health, answer.pids_are_ours

    async def close(self) -> None:
        """End the child and wait for it, but not for one that the driver holds.

        A later `read` starts another.
        """
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        self._retire()
        waits = [asyncio.ensure_future(child.wait()) for child in self._held_by_driver()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=ENDING_S)
            for wait in pending:
                wait.cancel()

    # -- one question -------------------------------------------------------------------------

    async def _ask(self) -> Answer:
        child = self._child = self._child or await self._start()
        in_time = await child.answered_within(self._deadline_s)
        if child is not self._child:
            raise self._failed("closed", "the GPU reader was closed meanwhile")
        if not in_time:
            raise self._overdue(child)
        try:
            return child.answer()
        except NoAnswerError:
            raise self._broken("crash", f"the GPU reader {await child.last_words()}") from None
        except ValueError as error:
            raise self._broken("garbage", f"the GPU reader sent invalid data: {error}") from error

    async def _start(self) -> ReaderProcess:
        if self._health.fault is not None and self._clock() < self._not_before:
            raise _FailedError(self._health.fault)
        if len(self._held_by_driver()) > 1:
            raise self._failed("stuck", "the driver holds two killed readers: no third is started")
        try:
            return await ReaderProcess.start(self._clock(), self._known.values())
        except OSError as error:
            raise self._broken("start", f"the GPU reader does not start: {error}") from error

    def _overdue(self, child: ReaderProcess) -> _FailedError:
        age_s = self._clock() - child.started_at
        if not child.has_answered and age_s < self._starting_s:
            return self._failed("starting", f"the driver has been loading for {age_s:.0f} s")
        return self._broken("timeout", f"the driver gave no answer in {self._deadline_s:g} s")

    # -- a second look ------------------------------------------------------------------------

    def _begin_to_look(self) -> None:
        under_way = self._looking is not None and not self._looking.done()
        if not under_way and not self._held_by_driver():
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Start a second child beside the present one, and keep the one that sees more."""
        fresh: ReaderProcess | None = None
        try:
            with suppress(OSError, NoAnswerError, ValueError):
                fresh = await ReaderProcess.start(self._clock(), self._known.values())
                if not await fresh.answered_within(self._starting_s):
                    return
                answer = fresh.answer()
                async with self._one_at_a_time:
                    if answer.health.fault is None and len(clear(answer.devices)) >= self._seen:
                        self._retire()
                        self._child, fresh = fresh, None
        finally:
            if fresh is not None:
                fresh.kill()
                self._killed.append(fresh)

    # -- what goes wrong ----------------------------------------------------------------------

    def _failed(self, code: str, text: str) -> _FailedError:
        return _FailedError(Fault(code, text, self._clock()))

    def _broken(self, code: str, text: str) -> _FailedError:
        self._give_up()
        return self._failed(code, text)

    def _give_up(self) -> None:
        """Kill the child, and let the next one wait."""
        self._retire()
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._failures)
        self._not_before = self._clock() + pause_s
        self._failures += 1

    def _retire(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._killed.append(child)

    def _held_by_driver(self) -> list[ReaderProcess]:
        self._killed = [child for child in self._killed if not child.is_gone]
        return self._killed

    def _without_devices(self, fault: Fault, health: ReaderHealth) -> Reading:
        since = self._onsets.setdefault(("", fault.code), fault.since)
        self._health = replace(health, fault=replace(fault, since=since))
        return (), self._health, True

    def _dated(self, devices: Iterable[DeviceReading]) -> tuple[DeviceReading, ...]:
        """Date each fault to when it was first seen, by this child or an earlier one."""
        former, self._onsets = self._onsets, {}

        def date(place: str, fault: Fault | None) -> Fault | None:
            if fault is None:
                return None
            since = former.get((place, fault.code), fault.since)
            self._onsets[place, fault.code] = since
            return replace(fault, since=since)

        return tuple(
            replace(
                reading,
                fault=date(reading.device.uuid, reading.fault),
                processes_fault=date(f"{reading.device.uuid} lists", reading.processes_fault),
            )
            for reading in devices
        )


class _FailedError(Exception):
    """There is no answer; the reader stays usable."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
