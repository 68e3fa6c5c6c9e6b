"""The surroundings that a supervisor gives to its run, and what becomes of its output."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.integration.supervisor_process import (
    Make,
    needs,
    python,
    until,
)

MB = 1 << 20


@pytest.mark.behaviour(10)
def test_a_run_is_a_process_tree_of_its_own(make: Make) -> None:
    """Supervisor and worker live in sessions of their own, and what is printed is in the file."""
    tells = "import os, time; print(os.getsid(0) == os.getpid(), os.getppid()); time.sleep(600)"
    attempt = make(argv=python(tells)).start()
    until(lambda: attempt.output() == f"True {attempt.pid}\n", "the output")
    beat = attempt.gate.wait_for("heartbeat", lambda beat: len(beat["tree"]) == 2)
    assert os.getsid(attempt.pid) == attempt.pid
    assert beat["tree"][0][0] == attempt.pid
    assert beat["tree"][1][0] in attempt.tagged()
    attempt.stop("cancelled")
    attempt.end()


def test_a_program_finds_the_users_circumstances(make: Make, tmp_path: Path) -> None:
    """Command by the run's own PATH, working directory, umask, environment and tags."""
    tool = tmp_path / "bin" / "my-tool"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\numask\npwd\necho "$GREETING $GPUGATE_RUN_ID $GPUGATE_WORKER"\n')
    tool.chmod(0o700)
    attempt = make(argv=["my-tool"], umask=0o027, cwd=str(tmp_path))
    attempt.environment.update(PATH=f"{tool.parent}:{os.environ['PATH']}", GREETING="hello")
    assert attempt.start().end()["outcome"] == "completed"
    assert attempt.output() == f"0027\n{tmp_path}\nhello {attempt.run_id} 0\n"


def test_workers_are_told_apart(make: Make) -> None:
    """Each worker of a program knows its number and how many there are."""
    tells = "import os; print(os.environ['GPUGATE_WORKER'] + '/' + os.environ['GPUGATE_WORKERS'])"
    attempt = make(argv=python(tells), workers=3)
    assert attempt.start().end()["outcome"] == "completed"
    assert sorted(attempt.output().splitlines()) == ["[0] 0/3", "[1] 1/3", "[2] 2/3"]


def test_the_kernel_takes_a_run_before_its_supervisor(make: Make) -> None:
    """When memory runs out the run's processes go first: the setting is theirs alone."""
    reads = "print(open('/proc/self/oom_score_adj').read(), end='')"
    own = Path("/proc/self/oom_score_adj").read_text()
    attempt = make(argv=python(reads + "; import time; time.sleep(600)")).start()
    until(lambda: attempt.output() == "500\n", "the setting")
    assert Path(f"/proc/{attempt.pid}/oom_score_adj").read_text() == own
    attempt.stop("cancelled")
    attempt.end()


def test_a_run_does_not_inherit_what_its_supervisor_ignores(make: Make) -> None:
    """An interrupt works inside the run as in any process."""
    attempt = make(argv=python("import os, signal; os.kill(os.getpid(), signal.SIGINT)"))
    end = attempt.start().end()
    assert end["reason"] == "signal SIGINT"
    assert "KeyboardInterrupt" in attempt.output()


def test_the_records_are_the_owners_alone(make: Make) -> None:
    """Files of a run are readable by its owner only, whatever the umask was."""
    attempt = make(argv=python("print('secret')"), umask=0)
    attempt.start().end()
    for name in ("output.log", "outcome.json", "tree.json", "episodes.jsonl", "_DONE"):
        assert stat.S_IMODE((attempt.path / name).stat().st_mode) == 0o600, name


def python39() -> str | None:
    """Find the oldest interpreter that a supervisor must work on, here or in pyenv's places."""
    places = [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")]
    for path in map(str, filter(None, places)):
        done = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)
        if done.stdout.startswith("Python 3.9."):
            return path
    return None


def test_the_oldest_python_will_do(make: Make) -> None:
    """A supervisor lives, measures and stops under CPython 3.9 as under any later one."""
    found = python39()
    if found is None:
        pytest.skip("needs CPython 3.9")
    attempt = make(argv=["sleep", "600"]).start(python=found)
    attempt.gate.wait_for("heartbeat", lambda beat: beat["report"]["ram_held_bytes"])
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"


def test_output_is_in_the_order_of_writing(make: Make) -> None:
    """Lines of stdout and stderr come out exactly as they were written, in turns."""
    writes = (
        "import sys\n"
        "for i in range(2000): print(i, file=(sys.stdout, sys.stderr)[i % 2])\n"
        "print('no end of line', end='')"
    )
    attempt = make(argv=python(writes))
    assert attempt.start().end()["outcome"] == "completed"
    assert attempt.output() == "".join(f"{i}\n" for i in range(2000)) + "no end of line"


def test_lines_of_several_workers_do_not_mix(make: Make) -> None:
    """Every line is one worker's, whole and in that worker's order."""
    writes = "import os\nfor i in range(500): print(os.environ['GPUGATE_WORKER'] * 50, i)"
    attempt = make(argv=python(writes), workers=2)
    assert attempt.start().end()["outcome"] == "completed"
    lines = attempt.output().splitlines()
    for worker in "01":
        expected = [f"[{worker}] {worker * 50} {i}" for i in range(500)]
        assert [line for line in lines if line.startswith(f"[{worker}]")] == expected
    assert len(lines) == 1000


def test_output_has_a_cap_and_keeps_its_tail(make: Make) -> None:
    """A run that prints without end fills no disk, and its last words are there."""
    attempt = make(argv=python("for i in range(100_000): print(i)"))
    attempt.change_supervisor("OUTPUT_CAP = 64 << 20", "OUTPUT_CAP = 100_000")
    assert attempt.start().end()["outcome"] == "completed"
    text = attempt.output()
    assert len(text) <= 100_000
    assert text.startswith("[gpugate: the first ")
    assert text.endswith("99998\n99999\n")


def test_a_full_disk_harms_no_run(make: Make) -> None:
    """The run goes on while nothing can be written; its end is recorded once there is room."""
    attempt = make(argv=python("print('x' * 2_000_000)"))
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(attempt.path)]
    needs(os.getuid() == 0 and subprocess.run(mounted, check=False).returncode == 0, "mount")
    try:
        ballast = attempt.path / "ballast"
        ballast.write_bytes(b"x" * (MB // 4))
        attempt.start()
        attempt.gate.wait_for("finished")
        assert not (attempt.path / "outcome.json").exists()
        ballast.unlink()
        assert attempt.end()["outcome"] == "completed"
    finally:
        attempt.clear()
        subprocess.run(["umount", "-l", str(attempt.path)], check=True)
