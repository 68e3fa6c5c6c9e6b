"""A host in this process, its socket and its journal: what is answered only once it is on disk."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.flow import tick
from jupyter_gpugate.core.messages import (
    LEASE_PATH,
    DeclineMessage,
    FinishedMessage,
    RequestMessage,
)
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport, RunEnd
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.gate import failpoints, known_gpus, sampling
from jupyter_gpugate.gate.gpu.reader import Reading
from jupyter_gpugate.gate.pace import Pace
from jupyter_gpugate.proc import start_ticks
from jupyter_gpugate.runs.lease_client import GateAway, GateRefused
from jupyter_gpugate.server import host as host_module
from tests.integration.hosted import Hosted, Hosting
from tests.kit.core_builders import request

FULL = "store.write.before:enospc"
COMPLETED = EndReport(AttemptOutcome.COMPLETED)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that could be a run's supervisor."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_no_message_says_who_sends_it(hosting: Hosting) -> None:
    """A request belongs to the user whose process sent it, whoever its body names."""

    async def body(hosted: Hosted) -> None:
        asked = request("one", vram=None, ram=GB, gpus=0)
        asked = replace(asked, family=replace(asked.family, owner="somebody"))
        await hosted.lease.ask(RequestMessage(asked, run_side="uid-12345"))
        state = hosted.gate.state
        queued = state.queue.get("one") or state.leases["one"].attempt.queued
        assert queued.request.owner == getpass.getuser()
        assert queued.run_side == f"uid-{os.geteuid()}/uid-12345"

    hosting(body)


@pytest.mark.behaviour(123)
def test_of_many_that_ask_to_go_at_once_one_goes(hosting: Hosting) -> None:
    """Two supervisors of one fence never both get "go", and whoever got it gets it again; one of
    another fence, or of a run that has no lease, gets none.
    """

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("one")
        asked = (hosted.started("one", fence, pid) for pid in range(100, 108))
        verdicts = await asyncio.gather(*asked)
        assert sorted(verdicts) == ["go"] + 7 * ["refused 409"]
        again = await hosted.started("one", fence, 100 + verdicts.index("go"))
        assert again == "go"
        assert await hosted.started("one", fence - 1, 100) == "refused 409"
        assert await hosted.started("nobodys", fence, 100) == "refused 409"

    hosting(body)


def test_a_grant_that_is_declined_is_given_again(hosting: Hosting) -> None:
    """Who cannot use a grant gives it back, and its run stands in the queue for the next one."""

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("one")
        declined = DeclineMessage("one", fence, "no disk")
        assert (await hosted.lease.ask(declined)).gone
        lease = hosted.gate.state.leases.get("one")
        assert lease is None or lease.terms.fence > fence

    hosting(body)


def test_a_message_that_is_wrong_is_refused_by_its_field(hosting: Hosting) -> None:
    """The one who sent it is told what is wrong, and nothing comes of it."""

    async def body(hosted: Hosted) -> None:
        wrong = json.dumps({"run_id": "one", "end": "eaten"})
        answer = await hosted.api.fetch(f"{LEASE_PATH}/withdraw", method="POST", body=wrong)
        assert answer.code == 400
        assert "end" in json.loads(answer.body)["message"]

    hosting(body)


@pytest.mark.behaviour(112, 144)
def test_a_lease_has_one_holder_who_is_known_by_its_whole_name(hosting: Hosting) -> None:
    """A holder's pid, its start and its fence each count to the last digit: nobody else, however
    alike, may go or give the lease back, and the queue shows whose it is.
    """
    pid = os.getpid()
    ticks = start_ticks(pid) or 0

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("one")
        assert await hosted.started("one", fence, pid, ticks) == "go"
        for other in ((10 * pid, ticks), (pid // 10, ticks), (pid, 10 * ticks), (pid, ticks // 10)):
            assert await hosted.started("one", fence, *other) == "refused 409"
        for wrong in (fence // 10, 10 * fence):
            with pytest.raises(GateRefused, match="this lease is over"):
                await hosted.lease.ask(FinishedMessage("one", wrong, COMPLETED))
        assert await hosted.started("on", fence, pid, ticks) == "refused 409"
        (row,) = (await hosted.ask("GET", "/queue"))[1]["running"]
        assert (row["run_id"], row["owner"], row["pid"]) == ("one", getpass.getuser(), pid)
        assert await hosted.started("one", fence, pid, ticks) == "go"

    hosting(body)


@pytest.mark.behaviour(112)
def test_a_lease_that_nobody_takes_goes_back_by_itself(hosting: Hosting) -> None:
    """Once to the queue, and the second time for good; its fence opens nothing any more."""

    async def body(hosted: Hosted) -> None:
        await hosted.granted("silent")
        assert await hosted.ended("silent") == ("failed", "never_started")
        first, second = await hosted.fences("silent")
        assert first < second
        assert await hosted.started("silent", second, 100) == "refused 409"
        assert await hosted.is_empty()

    hosting(body, start_by_s=0.5, lease_ttl_s=0.5)


@pytest.mark.behaviour(112)
def test_a_lease_ends_when_it_is_given_back_or_its_holder_is_gone(
    hosting: Hosting, holder: subprocess.Popen[bytes]
) -> None:
    """Whoever gives it back has nothing reserved any more; from a holder that is gone, the gate
    takes it back by itself.
    """

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("declined")
        declined = DeclineMessage("declined", fence, "no disk", RunEnd.FAILED)
        assert (await hosted.lease.ask(declined)).gone
        assert await hosted.ended("declined") == ("failed", "no disk")
        assert await hosted.is_empty()

        fence = await hosted.granted("orphan")
        ticks = start_ticks(holder.pid)
        assert await hosted.started("orphan", fence, holder.pid, ticks) == "go"
        assert not await hosted.is_empty()
        holder.kill()
        holder.wait()
        assert await hosted.ended("orphan") == ("lost", "supervisor gone")
        while not await hosted.is_empty():
            await hosted.gate.changed(hosted.gate.version, 60)

    hosting(body, lease_ttl_s=0.5)


class SilentReader:
    """A GPU reader whose driver never comes to an end with loading."""

    def __init__(self, clock: Callable[[], float]) -> None:
        del clock

    async def read(self) -> Reading:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """There is nothing to end."""


def test_while_the_driver_says_nothing_a_run_with_a_gpu_is_to_come_again(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told that the machine has no GPU, which nobody knows; a run on RAM alone starts."""
    monkeypatch.setattr(host_module, "GpuReader", SilentReader)
    monkeypatch.setattr(sampling, "FIRST_PATIENCE_S", 0.1)
    monkeypatch.setattr(known_gpus, "GPUS_KNOWN_S", 0.1)

    async def body(hosted: Hosted) -> None:
        asked = RequestMessage(request("gpu", gpus=1), run_side="another")
        with pytest.raises(GateAway, match="the driver has not listed the GPUs yet"):
            await hosted.lease.ask(asked)
        assert await hosted.is_empty()
        await hosted.granted("ram")

    hosting(body)


def test_a_start_that_cannot_be_written_down_is_none(hosting: Hosting) -> None:
    """While the journal is full nobody goes; with room again the same question is answered."""

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("one")
        failpoints.arm(FULL)
        assert await hosted.started("one", fence, 100) == "away"
        assert hosted.gate.state.leases["one"].phase.value == "granted"
        failpoints.arm("")
        assert await hosted.started("one", fence, 100) == "go"

    hosting(body)


def test_an_end_that_was_written_down_late_is_written_down_once(hosting: Hosting) -> None:
    """What ends while the journal is full is in the run's story when there is room again, and
    nothing that happens later adds it anew.
    """

    async def body(hosted: Hosted) -> None:
        fence = await hosted.granted("one")
        assert await hosted.started("one", fence, 100) == "go"
        failpoints.arm(FULL)
        end = EndReport(AttemptOutcome.COMPLETED, episodes_done=1)
        await hosted.lease.ask(FinishedMessage("one", fence, end))
        failpoints.arm("")
        for _ in range(2):
            assert (await hosted.ask("POST", "/drain"))[0] == 200
            assert (await hosted.ask("DELETE", "/drain"))[0] == 200
        story = [told["event"] for told in await hosted.gate.story("one")]
        assert story.count("finished") == 1

    hosting(body)


def test_what_cannot_be_written_down_is_not_done(hosting: Hosting) -> None:
    """A lock, a drain, its end and a forgotten name are a 503 while the journal is full, and none
    is in force; a lock that is given back is given back.
    """

    async def body(hosted: Hosted) -> None:
        assert (await hosted.ask("POST", "/lock"))[0] == 200
        assert (await hosted.ask("POST", "/drain", {"reason": "first"}))[0] == 200
        failpoints.arm(FULL)
        for method, path in (
            ("POST", "/drain"),
            ("DELETE", "/drain"),
            ("POST", "/lock"),
            ("DELETE", "/calibrations?name=x"),
        ):
            status, answer = await hosted.ask(method, path)
            assert (status, answer["error"]) == (503, "journal"), (method, path)
        assert hosted.gate.state.draining == "first"
        assert (await hosted.ask("DELETE", "/lock"))[0] == 200
        assert not hosted.gate.state.locks
        assert (await hosted.ask("POST", "/lock"))[0] == 503
        assert not hosted.gate.state.locks
        failpoints.arm("")
        assert (await hosted.ask("POST", "/lock"))[0] == 200
        assert (await hosted.ask("DELETE", "/drain"))[0] == 200
        assert hosted.gate.state.draining is None

    hosting(body)


def test_a_sample_that_cannot_be_used_is_told_until_one_can(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue says what is wrong, the gate ticks on, and with the next good sample it is over."""

    def fail(*_args: Any) -> Any:
        raise ValueError("no such number")

    async def body(hosted: Hosted) -> None:
        with monkeypatch.context() as within:
            within.setattr(tick, "apply_sample", fail)
            assert (await hosted.ask("POST", "/drain"))[0] == 200
            while not (told := (await hosted.ask("GET", "/queue"))[1]["sample_fault"]):
                await hosted.gate.changed(hosted.gate.version, 60)
            assert told == "ValueError: no such number"
        while (await hosted.ask("GET", "/queue"))[1]["sample_fault"]:
            await hosted.gate.changed(hosted.gate.version, 60)

    hosting(body)


def test_every_tick_keeps_the_pace(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many events come, no tick is taken that was not allowed for."""
    allowed: list[float] = []
    pause = Pace.pause

    def counted(pace: Pace, now: float) -> float:
        allowed.append(now)
        return pause(pace, now)

    monkeypatch.setattr(Pace, "pause", counted)

    async def body(hosted: Hosted) -> None:
        for _ in range(4):
            assert (await hosted.ask("POST", "/drain"))[0] == 200
            assert (await hosted.ask("DELETE", "/drain"))[0] == 200
        # But for the first one, which is the start itself.
        assert 8 <= hosted.gate.state.tick - 1 <= len(allowed)

    hosting(body)


def test_a_listener_that_fails_harms_nobody(hosting: Hosting) -> None:
    """What listens to the ticks may raise; the gate goes on, and so do the other listeners."""

    async def body(hosted: Hosted) -> None:
        heard: list[int] = []

        def fail() -> None:
            raise RuntimeError("a listener's own mistake")

        hosted.gate.listeners[:0] = [fail, lambda: heard.append(hosted.gate.version)]
        assert (await hosted.ask("POST", "/drain"))[0] == 200
        assert heard
        assert (await hosted.ask("GET", "/queue"))[0] == 200

    hosting(body)


def test_a_host_that_cannot_lead_says_why_and_tries_again(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state directory that cannot be made is told as the fault, until it can be."""
    (tmp_path / "state").write_text("in the way")
    monkeypatch.setattr(host_module, "LOOK_S", 0.01)

    async def body(hosted: Hosted) -> None:
        host = hosted.host
        assert host.backend is None
        assert str(tmp_path / "state") in host.fault
        (tmp_path / "state").unlink()
        await asyncio.wait_for(host.services.ready.wait(), 60)
        assert (host.backend is not None, host.fault) == (True, "")

    hosting(body)
