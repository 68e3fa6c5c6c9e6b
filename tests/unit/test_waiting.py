"""What interrupts mean, and how a wait goes on through a gate's absence."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.client import waiting
from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.client.following import Background, RunFollower, in_background
from jupyter_gpugate.client.waiting import Interrupts, Patience, Verdict, submitted, until_end
from jupyter_gpugate.places import SERVER_VARIABLE, SOCKET_VARIABLE
from tests.kit.gate_stand_in import PATIENCE_S, GateStandIn, gate_at

RUN = "20261129-143600-abcde"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateStandIn]:
    """Serve a gate that this process finds."""
    path = tmp_path / "own" / "gpugate.sock"
    for name in (SOCKET_VARIABLE, SERVER_VARIABLE):  # as a server sets them
        monkeypatch.setenv(name, str(path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(places, "spare_runtime_folder", lambda: tmp_path / "in-tmp")
    monkeypatch.setattr(places, "state_folders", lambda _environ: [tmp_path / "state"])
    with gate_at(path) as gate:
        yield gate


def follower_threads() -> list[str]:
    """Name the threads of waits that are still alive."""
    return [t.name for t in threading.enumerate() if t.name.startswith("gpugate-")]


def verdicts(patience: Patience, looks: list[tuple[int, float]]) -> list[Verdict]:
    """Judge a series of (interrupts so far, time)."""
    return [patience.verdict(count, now) for count, now in looks]


def test_one_interrupt_warns_and_then_leaves_the_run_to_itself() -> None:
    """A single interrupt never stops a run: it ends the wait after five seconds."""
    looks = [(0, 10.0), (1, 20.0), (1, 24.9), (1, 25.0)]
    assert verdicts(Patience(interactive=True), looks) == [
        Verdict.WAIT,
        Verdict.WARN,
        Verdict.WARN,
        Verdict.LEAVE,
    ]


def test_a_second_interrupt_in_time_cancels() -> None:
    """Two interrupts within five seconds cancel, however far apart, and the wait goes on."""
    looks = [(1, 20.0), (2, 24.9), (2, 60.0)]
    assert verdicts(Patience(interactive=True), looks)[1:] == [Verdict.CANCEL, Verdict.CANCEL]
    assert Patience(interactive=True).verdict(2, 0.0) is Verdict.CANCEL


def test_without_a_person_the_first_interrupt_cancels() -> None:
    """Nobody is there to interrupt twice: the run must not outlive what wanted it."""
    assert Patience(interactive=False).verdict(1, 0.0) is Verdict.CANCEL


def test_only_a_late_further_interrupt_gives_up_on_the_cancel() -> None:
    """A burst of interrupts is one wish; another one, later, no longer waits for the end."""
    looks = [(2, 20.0), (4, 20.5), (4, 30.0), (5, 30.0)]
    assert verdicts(Patience(interactive=True), looks) == [
        Verdict.CANCEL,
        Verdict.CANCEL,
        Verdict.CANCEL,
        Verdict.ENOUGH,
    ]


def test_an_interrupt_is_counted_and_the_former_handler_comes_back() -> None:
    """Within a wait SIGINT raises nothing; after it everything is as before."""
    before = signal.getsignal(signal.SIGINT)
    interrupts = Interrupts()
    with interrupts.taken():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            if interrupts.count:
                break
    assert interrupts.count >= 1
    assert signal.getsignal(signal.SIGINT) is before


def test_elsewhere_than_in_the_main_thread_nothing_is_counted() -> None:
    """Python delivers signals to the main thread alone: other threads wait without a handler."""

    def enter() -> None:
        with Interrupts().taken():
            pass

    Background(enter).result()


def test_a_call_in_the_background_returns_or_raises_as_itself() -> None:
    """The caller sees the call's own result and its own exception."""
    assert in_background(lambda: 7, lambda: False, lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0, lambda: False, lambda: None)


def test_an_abandoned_call_has_ended_when_its_caller_goes_on() -> None:
    """No thread of an interrupted cell is left to do anything later."""
    enough = threading.Event()
    assert in_background(enough.wait, lambda: True, enough.set) is None
    assert follower_threads() == []


def test_a_wait_shows_every_turn_and_ends_with_the_run(gate: GateStandIn) -> None:
    """Each state that the gate tells is shown once, the last one is returned."""
    gate.put(RUN)
    shown: list[Any] = []

    def show(state: dict[str, Any], note: str) -> None:
        shown.append((state["status"], note))
        if state["status"] == "queued":
            gate.put(RUN, status="active")
        elif state["status"] == "active":
            gate.put(RUN, status="ended", end="completed")

    follower = RunFollower(Client(gate.socket_path), RUN)
    state, verdict = until_end(follower, Interrupts(), Patience(interactive=True), show)
    follower.close()
    assert (state["end"], verdict) == ("completed", Verdict.WAIT)
    assert shown == [("queued", ""), ("active", ""), ("ended", "")]


def test_closing_ends_a_long_poll_at_once(gate: GateStandIn) -> None:
    """A cell that leaves does not wait for the gate's next answer, and leaves no thread."""
    gate.put(RUN)
    follower = RunFollower(Client(gate.socket_path), RUN)
    assert follower.next(PATIENCE_S) is not None
    gate.wait_for(lambda: gate.polls(RUN) > 1)
    follower.close()
    assert len(gate.answered) == 1
    assert follower_threads() == []


@pytest.mark.parametrize("place", ["own", "in-tmp"])
def test_a_wait_outlives_its_gate(gate: GateStandIn, tmp_path: Path, place: str) -> None:
    """A gate that went away is found again, elsewhere too; meanwhile the card says what is up."""
    gate.put(RUN)
    follower = RunFollower(Client(gate.socket_path), RUN)
    assert follower.next(PATIENCE_S) is not None
    gate.close()
    path, troubled = tmp_path / place / "gpugate.sock", threading.Event()

    def show(_state: dict[str, Any], note: str) -> None:
        if "the run goes on" in note:
            troubled.set()

    def come_back() -> None:
        assert troubled.wait(PATIENCE_S)
        with gate_at(path) as second:
            second.put(RUN, status="ended", end="completed")
            over.wait(PATIENCE_S)

    over = threading.Event()
    again = threading.Thread(target=come_back)
    again.start()
    try:
        state, _ = until_end(follower, Interrupts(), Patience(interactive=True), show)
    finally:
        follower.close()
        over.set()
        again.join()
    assert state["end"] == "completed"


def test_a_cancel_that_the_gate_refuses_is_told(gate: GateStandIn) -> None:
    """A refused cancel does not look like one under way."""
    gate.put(RUN)
    answer = {"error": "state", "message": "it is somebody else's", "detail": {}}
    gate.refusals[("POST", f"/runs/{RUN}/cancel")] = (409, answer)
    interrupts = Interrupts()
    interrupts.count = 2
    notes: list[str] = []

    def show(_state: dict[str, Any], note: str) -> None:
        notes.append(note)
        if "refused" in note:
            gate.put(RUN, status="ended", end="completed")

    follower = RunFollower(Client(gate.socket_path), RUN)
    until_end(follower, interrupts, Patience(interactive=True), show)
    follower.close()
    assert "the cancel was refused: it is somebody else's" in notes
    assert len(gate.bodies(f"/runs/{RUN}/cancel")) == 1


def test_a_cancel_that_fails_is_asked_again(gate: GateStandIn) -> None:
    """A gate in trouble is asked until it takes the cancel, and meanwhile the card says so."""
    gate.put(RUN)
    route = ("POST", f"/runs/{RUN}/cancel")
    gate.refusals[route] = (503, {"error": "disk", "message": "the disk is full", "detail": {}})
    interrupts = Interrupts()
    interrupts.count = 2
    notes: list[str] = []

    def show(_state: dict[str, Any], note: str) -> None:
        notes.append(note)
        if "the disk is full" in note:
            gate.refusals.clear()

    follower = RunFollower(Client(gate.socket_path), RUN)
    state, verdict = until_end(follower, interrupts, Patience(interactive=True), show)
    follower.close()
    assert (state["end"], verdict) == ("cancelled", Verdict.CANCEL)
    assert "cancelling: the disk is full" in notes


def test_a_cancel_that_never_arrived_is_not_said_to_have(gate: GateStandIn) -> None:
    """Whoever gives up on a cancel that the gate would not take is told that the run goes on."""
    gate.put(RUN)
    answer = {"error": "state", "message": "it is somebody else's", "detail": {}}
    gate.refusals[("POST", f"/runs/{RUN}/cancel")] = (409, answer)
    interrupts = Interrupts()
    interrupts.count = 2

    def show(_state: dict[str, Any], note: str) -> None:
        interrupts.left = interrupts.left or "refused" in note

    follower = RunFollower(Client(gate.socket_path), RUN)
    state, verdict = until_end(follower, interrupts, Patience(interactive=True), show)
    follower.close()
    assert (state["run_id"], verdict) == (RUN, Verdict.LEAVE)


def test_whoever_leaves_tells_the_gate(gate: GateStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is left is detached, so that it does not end with the process that waited."""
    monkeypatch.setattr(waiting, "SECOND_CHANCE_S", 0.0)
    gate.put(RUN)
    interrupts = Interrupts()
    interrupts.count = 1
    follower = RunFollower(Client(gate.socket_path), RUN)
    _, verdict = until_end(follower, interrupts, Patience(interactive=True), lambda *_: None)
    follower.close()
    assert verdict is Verdict.LEAVE
    assert gate.bodies(f"/runs/{RUN}/detach") == [{}]


def test_an_end_that_comes_before_the_leaving_is_the_end(
    gate: GateStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that can no longer be detached has ended: its end is what the wait returns."""
    monkeypatch.setattr(waiting, "SECOND_CHANCE_S", 0.0)
    gate.put(RUN)
    answer = {"error": "state", "message": "it has ended", "detail": {}}
    gate.refusals[("POST", f"/runs/{RUN}/detach")] = (409, answer)
    interrupts = Interrupts()
    interrupts.count = 1

    def end() -> None:
        gate.wait_for(lambda: gate.bodies(f"/runs/{RUN}/detach"))
        gate.put(RUN, status="ended", end="completed")

    ending = threading.Thread(target=end)
    ending.start()
    follower = RunFollower(Client(gate.socket_path), RUN)
    state, _ = until_end(follower, interrupts, Patience(interactive=True), lambda *_: None)
    follower.close()
    ending.join()
    assert state["end"] == "completed"


def test_a_silent_gate_is_not_asked_again_after_an_interrupt(tmp_path: Path) -> None:
    """A submit that got no answer ends at the first interrupt, and says what is not known."""
    interrupts = Interrupts()
    interrupts.count = 1
    nowhere = Client(tmp_path / "gpugate.sock")
    with pytest.raises(GateUnreachable, match="the queue shows whether the run was queued"):
        submitted(nowhere, {}, interrupts, Patience(interactive=True))


def test_a_run_that_the_gate_does_not_know_ends_the_wait(gate: GateStandIn) -> None:
    """A wait for nothing is an error, not for ever."""
    follower = RunFollower(Client(gate.socket_path), "20261129-143600-nobod")
    with pytest.raises(GateError, match="there is no run"):
        follower.next(PATIENCE_S)
    follower.close()
