"""The programs that run alone, started from the copy of their version."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.programs import Programs
from tests.integration.cell_process import other_interpreters
from tests.integration.run_side import GateOfRuns, program, run_side, served, until
from tests.integration.supervisor_process import attempts, python


async def completed(side: Launcher, gate: GateOfRuns, fence: int) -> Path:
    """Run a program to its end; return its attempt."""
    run_id, _ = await side.intake.submit(program("pass"))
    gate.grant(run_id, fence)
    record = side.records.known(run_id)
    await record.end.wait()
    assert record.summary["end"] == "completed"
    gate.take_back(fence)
    return record.attempt_path


def command_of(pid: int) -> list[str]:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def test_a_supervisor_runs_from_the_copy_that_its_instructions_name(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """The attempt's launch.json names the version, whose copy is what its supervisor executes."""
    side = run_side(gate.path, tmp_path)

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("input()"))
        gate.replies["started"] = (503, {})
        gate.grant(run_id, fence=1)
        await until(lambda: gate.all("started"), "its supervisor")
        record = side.records.known(run_id)
        launch = json.loads((record.attempt_path / "launch.json").read_text())
        copy = tmp_path / "runs" / "programs" / launch["programs"] / "gpugate_programs"
        assert record.life.supervisor is not None
        words = command_of(record.life.supervisor.pid)
        assert words[-2:] == [str(copy / "supervisor"), str(record.attempt_path)]
        assert not list(record.attempt_path.glob("*.py"))
        await side.orders.cancel(run_id)

    served(side, test)


def test_all_runs_of_a_version_share_what_python_compiles(gate: GateOfRuns, tmp_path: Path) -> None:
    """The second supervisor of a version compiles nothing."""
    side = run_side(gate.path, tmp_path)
    programs = tmp_path / "runs" / "programs"

    async def test() -> None:
        await completed(side, gate, 1)
        compiled = {path: path.stat().st_mtime_ns for path in programs.rglob("*.pyc")}
        assert {path.name.partition(".")[0] for path in compiled} >= {"__main__", "main"}
        await completed(side, gate, 2)
        assert {path: path.stat().st_mtime_ns for path in programs.rglob("*.pyc")} == compiled

    served(side, test)


def test_a_copy_that_was_removed_is_there_again_for_the_next_start(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """A cleaner that removes the programs keeps no run from starting."""
    side = run_side(gate.path, tmp_path)

    async def test() -> None:
        await completed(side, gate, 1)
        shutil.rmtree(tmp_path / "runs" / "programs")
        await completed(side, gate, 2)

    served(side, test)


def test_a_run_side_removes_the_versions_before_its_own(gate: GateOfRuns, tmp_path: Path) -> None:
    """A copy of another version that nobody has used for long goes when a run side starts."""
    side = run_side(gate.path, tmp_path)
    copy = Programs(tmp_path / "runs").ready().parent
    other = copy.with_name("0123456789abcdef")
    shutil.copytree(copy, other)
    os.utime(other, (0, 0))

    async def test() -> None:
        await until(lambda: not other.exists(), "its removal")
        await completed(side, gate, 1)

    served(side, test)


@pytest.mark.parametrize("interpreter", other_interpreters())
def test_a_program_starts_without_a_warning_and_without_the_users_modules(
    interpreter: str, tmp_path: Path
) -> None:
    """Under every Python nothing is imported but the program and the standard library."""
    for name in ("selectors", "ctypes", "clock", "main"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    with attempts() as make:
        attempt = make(argv=python("print('ran')"), cwd=str(tmp_path))
        for module in tmp_path.iterdir():
            shutil.copy(module, attempt.path)
        end = attempt.start(python=interpreter, flags=("-W", "error")).end()
        assert (end["outcome"], attempt.output()) == ("completed", "ran\n")
