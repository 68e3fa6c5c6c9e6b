"""The run side against a gate of a few lines: what it does with grants, refusals and silence."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import attempts, directory
from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.reading import export_of, output_of
from jupyter_gpugate.runs.record import Refused
from tests.integration.run_side import GateOfRuns, program, run_side, served, until
from tests.integration.supervisor_process import PATIENCE_S


@pytest.fixture
def launcher(gate: GateOfRuns, tmp_path: Path) -> Callable[[], Launcher]:
    """Make the run side; after another one, it finds what that one has left."""

    def make() -> Launcher:
        return run_side(gate.path, tmp_path)

    return make


async def submitted_at_last(side: Launcher) -> str:
    """Submit again and again until it is taken; the run's id."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return (await side.intake.submit(program("pass")))[0]
        except Refused:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


def test_a_start_that_the_gate_refuses_is_tried_again_under_the_next_grant(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """A fenced supervisor runs nothing, its run queues again, and its next attempt is the first."""
    side = launcher()

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("print('ran')"))
        gate.verdicts[1] = (409, {"error": "fence"})
        gate.grant(run_id, fence=1)
        await until(lambda: gate.all("finished"), "the attempt is over")
        assert gate.all("finished")[0]["end"]["outcome"] == "not_started"
        await until(lambda: side.records.known(run_id).status == "queued", "it is queued again")
        assert side.records.known(run_id).attempt == 0
        gate.take_back(1)
        gate.grant(run_id, fence=2)
        await side.records.known(run_id).end.wait()
        assert side.records.known(run_id).summary["end"] == "completed"
        assert side.records.known(run_id).attempt == 1
        assert (await output_of(side.records.known(run_id), 0)).text == "ran\n"
        assert (await export_of(side.records.known(run_id))).output == "ran\n"

    served(side, test)


def test_a_start_for_which_the_disk_is_full_gives_its_grant_back(
    gate: GateOfRuns, launcher: Callable[[], Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lasts too long to be tried again leaves the run queued, and its next grant starts it."""
    side = launcher()

    async def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("pass"))
        with monkeypatch.context() as broken:
            broken.setattr(attempts, "begin", full)
            broken.setattr(attempts, "TRIES_S", 0.0)
            gate.grant(run_id, fence=1)
            (declined,) = await until(lambda: gate.all("decline"), "the grant is given back")
            gate.take_back(1)
        assert (declined["fence"], declined["end"]) == (1, None)
        assert "No space left on device" in declined["reason"]
        assert side.records.known(run_id).status == "queued"
        gate.grant(run_id, fence=2)
        await side.records.known(run_id).end.wait()
        assert side.records.known(run_id).summary["end"] == "completed"

    served(side, test)


def test_a_cancel_answers_with_the_end_whoever_writes_it_down(
    gate: GateOfRuns, launcher: Callable[[], Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel that meets an end on its way to the disk waits for it, and answers with it."""
    side = launcher()
    writing, go_on = threading.Event(), threading.Event()
    write = directory.write_summary

    def slow(*arguments: Any) -> None:
        writing.set()
        go_on.wait(PATIENCE_S)
        write(*arguments)

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("pass"))
        monkeypatch.setattr(directory, "write_summary", slow)
        gate.ended = [{"run_id": run_id, "end": "cancelled", "reason": "withdrawn"}]
        await until(writing.is_set, "the end is being written")
        cancel = asyncio.ensure_future(side.orders.cancel(run_id))
        await until(lambda: gate.all("withdraw"), "the cancel is under way")
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        assert (await cancel).end == "cancelled"

    served(side, test)


def test_a_cancel_does_not_wait_for_a_heartbeat(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """A supervisor that need not report for long hears of a cancel all the same, and in time to
    stop its run by itself.
    """
    side = launcher()

    async def test() -> None:
        gate.replies["heartbeat"] = (200, {"verdict": "continue", "next_in": 30.0})
        run_id, _ = await side.intake.submit(program("import time; time.sleep(600)"))
        gate.grant(run_id, fence=1)
        await until(lambda: gate.all("heartbeat"), "it has reported")
        answer = await side.orders.cancel(run_id)
        assert (answer.end, answer.means, answer.survivors) == ("cancelled", "term", [])

    served(side, test)


def test_a_grant_that_meets_a_cancel_is_given_back(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """A run that was granted while its user cancels it never starts, and ends as cancelled."""
    side = launcher()

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("pass"))
        # The grant is on its way.
        gate.replies["withdraw"] = (409, {"error": "state", "message": "too late"})
        cancel = asyncio.ensure_future(side.orders.cancel(run_id))
        await until(lambda: gate.all("withdraw"), "the cancel is under way")
        gate.grant(run_id, fence=1)
        (declined,) = await until(lambda: gate.all("decline"), "the grant is given back")
        assert (declined["fence"], declined["end"]) == (1, "cancelled")
        gate.take_back(1)
        gate.ended = [{"run_id": run_id, "end": "cancelled", "reason": "cancelled"}]
        assert (await cancel).end == "cancelled"
        assert gate.all("started") == []

    served(side, test)


def test_an_attempt_begins_when_all_of_the_one_before_is_over(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """A second grant, given because the first was not used in time, waits for that one's end."""
    side = launcher()

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("print('ran')"))
        gate.verdicts[1] = (503, {})  # no word yet: the supervisor goes on asking
        gate.grant(run_id, fence=1)
        await until(lambda: gate.all("started"), "the first one asks")
        gate.take_back(1)
        gate.grant(run_id, fence=2)
        asked = len(gate.all("started"))
        await until(lambda: len(gate.all("started")) >= asked + 2, "it asks again and again")
        assert {body["fence"] for body in gate.all("started")} == {1}
        gate.verdicts[1] = (409, {"error": "fence"})
        await side.records.known(run_id).end.wait()
        assert side.records.known(run_id).summary["end"] == "completed"
        fences = [body["fence"] for body in gate.all("started")]
        assert fences == sorted(fences)
        assert len({body["pid"] for body in gate.all("started")}) == 2

    served(side, test)


def test_a_submit_that_the_gate_may_have_heard_is_taken_back(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """Without an answer the submit is refused, its directory goes, and the gate is told so."""
    side = launcher()

    async def test() -> None:
        gate.replies["request"] = (503, {"error": "journal", "message": "the disk is full"})
        told = "^nothing can be queued now: the disk is full$"
        with pytest.raises(Refused, match=told) as refused:
            await side.intake.submit(program("pass"))
        assert refused.value.status == 503
        (request,) = gate.all("request")
        withdrawal = await until(lambda: gate.all("withdraw"), "it is taken back")
        assert withdrawal[0]["run_id"] == request["request"]["run_id"]
        assert side.records.rows() == []
        assert not side.records.unfinished()

    served(side, test)


def test_a_key_that_is_sent_many_times_at_once_is_one_run(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """Of equal submits side by side one makes the run, and all have its id."""
    side = launcher()

    async def test() -> None:
        body = program("pass", idempotency_key="once")
        answers = await asyncio.gather(*(side.intake.submit(body) for _ in range(5)))
        assert len({run_id for run_id, _ in answers}) == 1
        assert sum(is_new for _, is_new in answers) == 1
        assert len(gate.all("request")) == 1

    served(side, test)


def test_what_a_silent_gate_does_not_know_is_asked_for_until_it_answers(
    gate: GateOfRuns, launcher: Callable[[], Launcher], tmp_path: Path
) -> None:
    """After a restart, a gate that cannot write is no reason to reject a run that waits: it is
    asked for again, before anything that is submitted later.
    """
    first = launcher()
    runs: list[str] = []

    async def submit() -> None:
        runs.extend([(await first.intake.submit(program("pass")))[0] for _ in range(2)])

    served(first, submit)
    gate.messages.clear()
    gate.replies["register"] = (200, {"unknown": runs, "unneeded": []})
    gate.replies["request"] = (503, {"error": "journal", "message": "the disk is full"})
    second = launcher()

    async def wait() -> None:
        await until(lambda: len(gate.all("request")) >= 2, "it is asked for again and again")
        assert [second.records.known(run).status for run in runs] == ["queued", "queued"]
        with pytest.raises(Refused) as refused:
            await second.intake.submit(program("pass"))
        assert refused.value.status == 503
        gate.replies["request"] = (200, {"status": "queued"})
        later = await submitted_at_last(second)
        order = [body["request"]["run_id"] for body in gate.all("request")]
        assert list(dict.fromkeys(order)) == [*runs, later]

    served(second, wait)
    summary = json.loads((tmp_path / "runs" / runs[0] / "summary.json").read_text())
    assert summary["status"] == "queued"


def test_an_end_that_the_gate_has_missed_is_told_again(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """A gate that holds a lease of a run that has ended hears the end once more; of a run that
    nobody knows it hears so.
    """
    first, second = launcher(), launcher()
    runs: list[str] = []

    async def complete() -> None:
        runs.append((await first.intake.submit(program("pass")))[0])
        gate.grant(runs[0], fence=1)
        await first.records.known(runs[0]).end.wait()

    served(first, complete)
    gate.messages.clear()
    gate.replies["register"] = (200, {"unknown": [], "unneeded": [*runs, "nobody"]})

    async def register() -> None:
        (told,) = gate.all("finished")
        assert (told["run_id"], told["fence"]) == (runs[0], 1)
        assert told["end"]["outcome"] == "completed"
        assert [body["run_id"] for body in gate.all("withdraw")] == ["nobody"]

    served(second, register)


def test_a_run_of_another_boot_is_lost_to_the_reboot(
    gate: GateOfRuns, launcher: Callable[[], Launcher]
) -> None:
    """What ran when the machine went down is lost, and its reason is not a killed supervisor."""
    first, second = launcher(), launcher()
    runs: list[str] = []

    async def submit() -> None:
        runs.append((await first.intake.submit(program("pass")))[0])
        path = first.records.known(runs[0]).path
        directory.create_attempt(path, 1, {"attempt": 1, "fence": 1})
        tree = {"boot_id": "another", "supervisor": [7, 7], "tree": []}
        (path / "attempts" / "1" / "tree.json").write_text(json.dumps(tree))

    async def adopt() -> None:
        await second.records.known(runs[0]).end.wait()
        assert gate.all("finished")[0]["end"]["reason"] == "reboot"
        summary = second.records.known(runs[0]).summary
        assert (summary["end"], summary["reason"]) == ("lost", "reboot")

    served(first, submit)
    served(second, adopt)


def test_an_end_that_a_full_disk_did_not_take_is_written_later(
    gate: GateOfRuns,
    launcher: Callable[[], Launcher],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run has ended for whoever asks, and its summary follows when there is room."""
    side = launcher()
    monkeypatch.setattr(attempts, "WRITE_AGAIN_S", 0.01)
    write = directory.write_summary
    refused: list[Path] = []

    def full_once(path: Path, summary: Any) -> None:
        if not refused:
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, summary)

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("pass"))
        monkeypatch.setattr(directory, "write_summary", full_once)
        gate.grant(run_id, fence=1)
        await side.records.known(run_id).end.wait()
        assert side.records.known(run_id).status == "ended"
        place = tmp_path / "runs" / run_id / "summary.json"
        await until(lambda: '"ended"' in place.read_text(), "the summary is on the disk")

    served(side, test)
    assert refused
