"""A `GpuReader` used without await and the driver under it, for tests that read like a table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpugate.core.samples import DeviceReading
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.gpu.reader import GpuReader, Reading
from tests.fake_nvml import StandIn

Driver = Callable[..., StandIn]

#: Generous: what is tested here is not how fast a machine is.
DEADLINE_S = 60.0


class Reader:
    """One reader in an event loop of its own; ``clock`` is moved by hand where a test says so."""

    def __init__(self, deadline_s: float = DEADLINE_S, starting_s: float = DEADLINE_S) -> None:
        self.loop = asyncio.new_event_loop()
        self.later_s = 0.0
        self.reader = GpuReader(lambda: awake_time() + self.later_s, deadline_s, starting_s)

    def read(self) -> Reading:
        return self.loop.run_until_complete(self.reader.read())

    def devices(self) -> tuple[DeviceReading, ...]:
        """Read, and let nothing be wrong with the reader itself."""
        devices, health, _ = self.read()
        assert health.fault is None
        return devices

    def read_while(self, reached: Callable[[], object], then: Callable[[], object]) -> Reading:
        """Read; once ``reached`` is true do something, while the reading is still under way."""

        async def both() -> Reading:
            reading = asyncio.ensure_future(self.reader.read())
            while not reached():
                assert not reading.done()
                await asyncio.sleep(0.01)
            then()
            return await reading

        return self.loop.run_until_complete(both())

    def read_until(self, enough: Callable[[Reading], bool]) -> Reading:
        """Read again and again, each time after any pause of the reader, until it is enough."""
        for _ in range(1000):
            reading = self.read()
            if enough(reading):
                return reading
            fault = reading[1].fault
            if fault is None or fault.code != "starting":
                self.later_s += 60.0
        raise AssertionError(f"never came: {reading}")

    def close(self) -> None:
        self.loop.run_until_complete(self.reader.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def driver_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return what puts a stand-in driver of some variant into this process's environment."""

    def install(variant: str = "current") -> StandIn:
        stand_in = StandIn(directory / "driver", variant)
        for name, value in stand_in.env().items():
            monkeypatch.setenv(name, value)
        return stand_in

    return install


def wait_until(condition: Callable[[], object]) -> None:
    """Poll for something another process does."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def only(reader: Reader) -> DeviceReading:
    """Read, and return the one device that there must be."""
    [reading] = reader.devices()
    return reading
