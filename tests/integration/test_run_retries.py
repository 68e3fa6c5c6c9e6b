"""The run side of runs that the gate queues again after they ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.messages import Recorded
from jupyter_gpugate.core.requests import Retry, RetryCause
from tests.integration.run_side import GateOfRuns, gate_of_runs, program, run_side, served, until

RETRY = Retry(RetryCause.PUSHED_OUT, "GPU-0", "GPU 0", at_bytes=1, charge_bytes=2, fence=1)
QUEUED_AGAIN = (200, to_json(Recorded(retry=RETRY)))
#: Fails in its first attempt and completes in its second one.
SECOND_TIME = (
    "import os, sys\n"
    "print('attempt', os.environ['GPUGATE_ATTEMPT'])\n"
    "sys.exit(os.environ['GPUGATE_ATTEMPT'] == '1')\n"
)


@pytest.fixture
def gate() -> Iterator[GateOfRuns]:
    """A gate that grants what a test says."""
    with gate_of_runs() as gate:
        yield gate


def test_a_run_goes_back_to_the_queue_and_starts_again(gate: GateOfRuns, tmp_path: Path) -> None:
    """Its first attempt stays on the disk, and the next one is told to go on after it."""
    side = run_side(gate.path, tmp_path)
    gate.replies["finished"] = QUEUED_AGAIN

    async def test() -> None:
        run_id, _ = await side.intake.submit(program(SECOND_TIME))
        gate.grant(run_id, fence=1)
        record = side.records.known(run_id)
        await until(lambda: (record.status, record.attempt) == ("queued", 1), "it waits again")
        assert (record.path / "env.json").exists()
        gate.replies["finished"] = (200, to_json(Recorded()))
        gate.grants[0] = {**gate.grants[0], "fence": 2, "attempt": 2, "retry": to_json(RETRY)}
        await record.end.wait()
        assert (record.summary["end"], record.attempt) == ("completed", 2)
        assert record.summary["retry"] == to_json(RETRY)
        logs = [record.path / "attempts" / n / "output.log" for n in ("1", "2")]
        assert [log.read_text() for log in logs] == ["attempt 1\n", "attempt 2\n"]

    served(side, test)


def test_a_run_whose_server_died_before_the_answer_goes_back_to_the_queue(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """The next run side asks the gate again, which says once more that the run is queued."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    runs: list[str] = []

    async def begin() -> None:
        gate.replies["finished"] = (503, {})
        runs.append((await first.intake.submit(program(SECOND_TIME)))[0])
        gate.grant(runs[0], fence=1)
        await until(lambda: gate.all("finished"), "the end of its first attempt")

    async def adopt() -> None:
        record = second.records.known(runs[0])
        await until(lambda: (record.status, record.attempt) == ("queued", 1), "it waits again")

    served(first, begin)
    gate.take_back(fence=1)
    gate.replies["finished"] = QUEUED_AGAIN
    served(second, adopt)


def test_a_run_that_has_ended_is_withdrawn_though_the_gate_would_try_it_again(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """The end on the disk stays: the gate is told that nobody wants the second attempt."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    runs: list[str] = []

    async def begin() -> None:
        runs.append((await first.intake.submit(program(SECOND_TIME)))[0])
        gate.grant(runs[0], fence=1)
        await first.records.known(runs[0]).end.wait()

    async def adopt() -> None:
        assert (await until(lambda: gate.all("withdraw"), "withdrawal"))[0]["run_id"] == runs[0]
        assert second.records.known(runs[0]).summary["end"] == "failed"

    served(first, begin)
    gate.take_back(fence=1)
    gate.replies["finished"] = QUEUED_AGAIN
    gate.replies["register"] = (200, {"unknown": [], "unneeded": runs})
    served(second, adopt)
