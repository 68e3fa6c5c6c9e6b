"""Processes as a supervisor sees them: identity, descendants, signals, stopping."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from jupyter_gpugate.programs.supervisor import ending, stopping
from jupyter_gpugate.programs.supervisor.processes import (
    Proc,
    carriers,
    descendants,
    is_alive,
    process,
    send,
    stop_then_kill,
)
from jupyter_gpugate.programs.supervisor.stopping import Stopping


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Give a child that does nothing."""
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


def proc_of(pid: int) -> Proc:
    """Identify a process that is there."""
    one = process(pid)
    assert one is not None
    return one


@pytest.mark.parametrize("has_lists", [True, False])
def test_children_of_every_thread_are_descendants(
    has_lists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process started by a thread that is not the main one is found, by either way of looking."""
    monkeypatch.setattr(os.path, "exists", lambda _: has_lists)
    children: list[subprocess.Popen[bytes]] = []
    done = threading.Event()

    def start_and_stay() -> None:
        children.append(subprocess.Popen(["sleep", "600"]))
        started.set()
        done.wait()

    started = threading.Event()
    thread = threading.Thread(target=start_and_stay)
    thread.start()
    started.wait()
    try:
        found = list(descendants(os.getpid()))
        assert proc_of(children[0].pid) in found
    finally:
        done.set()
        thread.join()
        for child in children:
            child.kill()
            child.wait()


def test_a_pid_that_means_another_process_by_now_is_not_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """A signal reaches only the process whose start ticks were remembered."""
    one = proc_of(sleeper.pid)
    stranger = Proc(one.pid, one.ticks - 1)
    assert not send(stranger, signal.SIGKILL)
    assert sleeper.poll() is None
    assert send(one, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not send(one, signal.SIGKILL)


def test_signals_go_without_pidfd_too(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python built without pidfd signals by pid, after the same look at the start ticks."""
    monkeypatch.delattr(os, "pidfd_open")
    one = proc_of(sleeper.pid)
    assert not send(Proc(one.pid, one.ticks + 1), signal.SIGKILL)
    assert send(one, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL


def test_what_nobody_has_waited_for_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    """A zombie still has its pid and ticks, and is dead all the same."""
    one = proc_of(sleeper.pid)
    assert is_alive(one)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert proc_of(sleeper.pid) == one
    assert not is_alive(one)


def test_the_whole_tree_is_known_before_anybody_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parent that dies at once must not hide its children from the same SIGTERM."""
    steps: list[str] = []

    def walk(_: int) -> Iterator[Proc]:
        yield Proc(1, 1)
        steps.append("parent seen")
        yield Proc(2, 2)
        steps.append("child seen")

    monkeypatch.setattr(stopping, "descendants", walk)
    monkeypatch.setattr(stopping, "send", lambda one, number: steps.append(f"{one.pid} {number:d}"))
    Stopping(0, 10.0, None, begin_at=0.0).advance(0.0)
    assert steps[:2] == ["parent seen", "child seen"]
    told = [f"{pid} {number:d}" for pid in (1, 2) for number in (signal.SIGTERM, signal.SIGCONT)]
    assert sorted(steps[2:]) == sorted(told)


def test_only_carriers_of_the_very_tag_are_found() -> None:
    """Sweeping looks for the whole tag: a longer run id that begins alike is another run."""
    with contextlib.ExitStack() as stack:
        own, other = (
            stack.enter_context(subprocess.Popen(["sleep", "600"], env={"GPUGATE_RUN_ID": name}))
            for name in ("a-run", "a-run-more")
        )
        stack.callback(own.kill)
        stack.callback(other.kill)
        found = [one.pid for one in carriers(b"GPUGATE_RUN_ID=a-run")]
        assert found == [own.pid]


def test_processes_that_appear_meanwhile_are_stopped_before_any_is_killed() -> None:
    """Whatever is forked while the others are being stopped is stopped too, then all are killed."""
    rounds = iter([["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"], ["b", "c"]])
    sent: list[tuple[int, str]] = []
    stop_then_kill(lambda: next(rounds), lambda one, number: sent.append((number, one)))
    assert sent[:3] == [(signal.SIGSTOP, one) for one in "abc"]
    assert sorted(sent[3:]) == [(signal.SIGKILL, one) for one in "abc"]


def test_a_sweep_stops_all_before_it_kills_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the processes that have left the tree can fork while the others are killed."""
    sent: list[int] = []

    def send_and_note(one: Proc, number: int) -> bool:
        sent.append(number)
        return send(one, number)

    monkeypatch.setattr(ending, "send", send_and_note)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            left = subprocess.Popen(["sleep", "600"], env={"GPUGATE_RUN_ID": "a-swept-run"})
            stack.callback(left.wait)
            stack.callback(left.kill)
        assert ending.sweep("a-swept-run", lambda _: None) == (True, [])
    assert sent[:4] == [signal.SIGSTOP] * 2 + [signal.SIGKILL] * 2
