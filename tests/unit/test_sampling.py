"""The beat of the sampler: how often the machine is read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from jupyter_gpugate.core.samples import ReaderHealth
from jupyter_gpugate.gate import sampling
from jupyter_gpugate.gate.sampling import BEAT_S, ReadsGpus, ReadsMachine, Sampler

if TYPE_CHECKING:
    from jupyter_gpugate.gate.machine.reader import MachineReading


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, BEAT_S), (0.25, BEAT_S - 0.25), (5.0, 0.0)])
def test_a_reading_begins_a_second_after_the_one_before(
    monkeypatch: pytest.MonkeyPatch, took_s: float, pause_s: float
) -> None:
    """However long a reading takes it is part of the beat, and a slow one is followed at once."""
    now = [100.0]
    pauses: list[float] = []
    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Asked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(cast("float", timeout))
            return super().wait(None)

    monkeypatch.setattr(
        sampling, "threading", SimpleNamespace(Event=Asked, Thread=threading.Thread)
    )

    class Machine:
        watched: frozenset[str] = frozenset()

        def read(self) -> MachineReading:
            now[0] += took_s
            return cast("MachineReading", None)

    class Gpus:
        async def close(self) -> None:
            """There is nothing to end."""

    async def one_reading() -> None:
        sampler = Sampler(cast("ReadsGpus", Gpus()), cast("ReadsMachine", Machine()))
        told = asyncio.Event()
        sampler.start(told.set)
        await told.wait()
        while not pauses:  # noqa: ASYNC110 - the thread is on its way there
            await asyncio.sleep(0.01)
        await sampler.close()

    asyncio.run(one_reading())
    assert pauses[0] == pause_s


def test_a_machine_that_had_gpus_is_asked_at_each_beat_and_one_without_rarely() -> None:
    """A driver that shows none now is asked again soon where there have been some."""

    async def asked(*, had: bool, times: int) -> int:
        answers = [((), ReaderHealth("gpu", present=False, taken_at=1.0), True)] * times

        class Gpus:
            async def read(self) -> Any:
                return answers.pop()

        sampler = Sampler(cast("ReadsGpus", Gpus()), cast("ReadsMachine", None))
        sampler.expects_gpus = had
        for _ in range(times):
            reading = sampler._start_gpu_read()
            if reading is not None:
                await reading
        return times - len(answers)

    assert asyncio.run(asked(had=True, times=5)) == 5
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        assert asyncio.run(asked(had=False, times=5)) == 1
