"""The end of a tree is told truthfully: what works on is waited for, what is stopped is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integration.supervisor_process import Attempt, Make, python, until
from tests.kit.controlled_runs import waits_for


def warnings(attempt: Attempt) -> list[str]:
    """What the supervisor found worth a warning."""
    if not (attempt.path / "messages.jsonl").exists():
        return []
    return [e["text"] for e in attempt.lines("messages.jsonl") if e["event"] == "warning"]


def launcher(work: str) -> list[str]:
    """A program that starts work in the background, apart from itself, and returns at once."""
    return python(
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {work!r}], start_new_session=True,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
    )


def test_a_program_runs_on_while_its_background_works(make: Make, tmp_path: Path) -> None:
    """A launcher that returns at once is not the end of its run; the output says what goes on."""
    go, made = tmp_path / "go", tmp_path / "made"
    work = (
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        f"open({str(made)!r}, 'w').close()"
    )
    attempt = make(argv=launcher(work)).start()
    until(lambda: "the run goes on" in attempt.output(), "the note")
    go.touch()
    assert attempt.end()["outcome"] == "completed"
    assert made.exists()
    assert warnings(attempt) == []


def test_a_background_that_fails_is_named(make: Make, tmp_path: Path) -> None:
    """The program itself has completed; what it left and failed is in a warning."""
    go = tmp_path / "go"
    work = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\nos._exit(3)"
    attempt = make(argv=launcher(work)).start()
    until(lambda: "the run goes on" in attempt.output(), "the note")
    go.touch()
    assert attempt.end()["outcome"] == "completed"
    [warning] = warnings(attempt)
    assert "in the background" in warning
    assert "exit 3" in warning


def test_a_background_without_work_is_stopped_and_named(make: Make) -> None:
    """What uses no processor is not waited for without end."""
    attempt = make(argv=launcher("import time; time.sleep(1000)"))
    attempt.change_supervisor("IDLE_S = 300.0", "IDLE_S = 1.0")
    assert attempt.start().end()["outcome"] == "completed"
    [warning] = warnings(attempt)
    assert "had not worked" in warning
    assert os.path.basename(sys.executable) in warning  # noqa: PTH119


SERVICES = {
    "a daemon": (
        "import os, time\nif os.fork(): os._exit(0)\nos.setsid(); os.chdir('/')\ntime.sleep(1000)"
    ),
    "one that daemonized twice": (
        "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "os.chdir('/')\ntime.sleep(1000)"
    ),
}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_is_not_waited_for(make: Make, service: str) -> None:
    """An agent that a program has started by the way keeps no run from ending, and is named."""
    attempt = make(argv=python(service)).start()
    assert attempt.end()["outcome"] == "completed"
    [warning] = warnings(attempt)
    assert "stopped at its end" in warning
    assert attempt.tagged() == []


def test_pythons_own_helpers_are_no_news(make: Make) -> None:
    """A resource tracker that outlives its program by a moment is neither work nor a warning."""
    code = (
        "import os\nfrom multiprocessing import resource_tracker\n"
        "resource_tracker.ensure_running()\nos.dup2(resource_tracker.getfd(), 100)\n"
        "os.set_inheritable(100, True)\nif os.fork() == 0:\n"
        "    os.setsid(); os.chdir('/'); import time; time.sleep(0.2)\n    os._exit(0)\nos._exit(0)"
    )
    attempt = make(argv=python(code)).start()
    assert attempt.end()["outcome"] == "completed"
    assert warnings(attempt) == []


def test_what_a_cell_leaves_is_stopped_and_named(make: Make) -> None:
    """A cell ends when it has ended; processes that it leaves behind are stopped with a warning."""
    attempt = make(kind="cell", argv=[])
    (attempt.path / "cell.py").write_text(
        "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    )
    assert attempt.start().end()["outcome"] == "completed"
    [warning] = warnings(attempt)
    assert "(sleep)" in warning


def test_a_background_keeps_to_the_limits_of_its_run(make: Make) -> None:
    """A time limit and a cancel end a run whose program has returned already."""
    attempt = make(argv=launcher("import time; time.sleep(1000)"), time_limit_s=1.0).start()
    end = attempt.end()
    assert (end["outcome"], end["reason"]) == ("failed", "time_limit")
    assert attempt.tagged() == []


@pytest.mark.parametrize("name", ["docker", "srun"])
def test_a_cancel_names_what_it_cannot_reach(make: Make, tmp_path: Path, name: str) -> None:
    """The client of a daemon is stopped; what the daemon does for it is told to be left."""
    client = tmp_path / name
    client.write_text(
        f"#!{sys.executable}\nprint('up', flush=True)\nimport time\ntime.sleep(600)\n"
    )
    client.chmod(0o755)
    attempt = make(argv=["sh", "-c", f"{client} run image; true"]).start()
    until(lambda: "up" in attempt.output(), "the client")
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"
    [left] = attempt.outcome()["kill"]["survivors"]
    assert name in left
    [warning] = warnings(attempt)
    assert warning.startswith(name)


def test_files_that_are_left_in_memory_are_named(make: Make, tmp_path: Path) -> None:
    """What a run leaves in shared memory takes RAM after its end, and it says where."""
    path = Path("/dev/shm", f"gpugate-test-{os.getpid()}")  # noqa: S108 - this is about it
    if not path.parent.is_dir():
        pytest.skip("needs /dev/shm")
    try:
        release = tmp_path / "release"
        code = f"open({str(path)!r}, 'wb').write(bytes(64 << 20))\n{waits_for(release)}"
        attempt = make(argv=python(code)).start()
        attempt.gate.wait_for(
            "heartbeat", lambda beat: (beat["report"]["ram_held_bytes"] or 0) > 64 << 20
        )
        release.touch()
        assert attempt.end()["outcome"] == "completed"
        [warning] = warnings(attempt)
        assert str(path) in warning
    finally:
        path.unlink(missing_ok=True)
