"""Who lives and who has ended, also while the run side has no descriptor left to look with."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import start_ticks
from jupyter_gpugate.runs import processes
from jupyter_gpugate.runs.processes import (
    ended,
    is_alive,
    kill_orphans,
    send,
    tagged,
)
from tests.kit.external_processes import external_process, running
from tests.kit.headless_process import headless


def named(pid: int) -> ProcessKey:
    """A living process by its name."""
    return ProcessKey(pid, start_ticks(pid) or 0)


def out_of_descriptors(*_: Any) -> Any:
    """Stand in for any call that opens something."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_an_end_is_waited_for() -> None:
    """Waiting ends with the process, and at once for one that is gone; it leaves nothing open."""
    held = len(list(Path("/proc/self/fd").iterdir()))

    async def wait(process: subprocess.Popen[bytes]) -> None:
        waiting = asyncio.create_task(ended(named(process.pid)))
        await asyncio.sleep(0)
        assert not waiting.done()
        process.kill()
        await waiting

    with running(["sleep", "1000"]) as process:
        name = named(process.pid)
        asyncio.run(wait(process))
    asyncio.run(ended(name))
    assert len(list(Path("/proc/self/fd").iterdir())) <= held
    assert not is_alive(name)
    assert not send(name, signal.SIGTERM)


def test_a_pid_of_another_start_is_another_process() -> None:
    """The same pid with other start ticks is neither alive nor signalled."""
    with external_process() as pid:
        other = ProcessKey(pid, (start_ticks(pid) or 0) - 1)
        assert not is_alive(other)
        assert not send(other, signal.SIGKILL)
        asyncio.run(ended(other))
        assert is_alive(named(pid))


def test_only_processes_with_a_runs_whole_mark_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What carries a mark that only begins alike is left alone, and so is what has ended."""
    run_id = f"of-{os.getpid()}"
    monkeypatch.setenv("GPUGATE_RUN_ID", run_id)
    with running(["sleep", "1000"]) as own, running(["sleep", "1000"]) as ended_one:
        ended_one.kill()
        os.waitid(os.P_PID, ended_one.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setenv("GPUGATE_RUN_ID", f"{run_id}-more")
        with running(["sleep", "1000"]):
            assert tagged(run_id) == [named(own.pid)]


def test_a_process_that_has_lost_its_first_thread_lives() -> None:
    """It is alive, known by its mark, waited for and killed, as long as any thread of it lives."""
    run_id = f"headless-{os.getpid()}"
    with headless(1, GPUGATE_RUN_ID=run_id) as process:
        name = tagged(run_id)[0]
        assert name.pid == process.pid
        assert is_alive(name)
        assert asyncio.run(kill_orphans(run_id, [])) == []
        asyncio.run(ended(name))
        assert process.wait() == -signal.SIGKILL
        assert not is_alive(name)


def test_all_processes_of_a_run_are_stopped_before_one_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of them runs any more, and forks, while the others are killed."""
    run_id, sent = f"several-{os.getpid()}", []

    def send_and_note(process: ProcessKey, number: int) -> bool:
        sent.append(number)
        return send(process, number)

    monkeypatch.setattr(processes, "send", send_and_note)
    monkeypatch.setenv("GPUGATE_RUN_ID", run_id)
    with running(["sleep", "1000"]), running(["sleep", "1000"]):
        assert asyncio.run(kill_orphans(run_id, [])) == []
    assert sent == [signal.SIGSTOP] * 2 + [signal.SIGKILL] * 2


@pytest.mark.parametrize("call", ["pidfd_open", "read_bytes"])
def test_without_descriptors_nobody_counts_as_gone(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A process that cannot be looked at is waited for until it can be, and is gone."""
    monkeypatch.setattr(processes, "LOOK_S", 0.01)

    async def wait(process: subprocess.Popen[bytes]) -> None:
        name = named(process.pid)
        with monkeypatch.context() as broken:
            broken.setattr(os if call == "pidfd_open" else Path, call, out_of_descriptors)
            assert is_alive(name)
            waiting = asyncio.create_task(ended(name))
            _, pending = await asyncio.wait({waiting}, timeout=0.2)
            assert pending
        process.kill()
        await waiting

    with running(["sleep", "1000"]) as process:
        asyncio.run(wait(process))
