"""The programs that run alone, started from the copy of their version."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs.launcher import Launcher
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Refused
from tests.integration.cell_process import other_interpreters
from tests.integration.run_side import GateOfRuns, program, run_side, served, until
from tests.integration.supervisor_process import attempts, python


async def completed(
    side: Launcher, gate: GateOfRuns, fence: int, body: Mapping[str, Any] | None = None
) -> Path:
    """Run a program, or what is in ``body``, to its end; return its attempt."""
    run_id, _ = await side.intake.submit(body or program("pass"))
    gate.grant(run_id, fence)
    record = side.records.known(run_id)
    await record.end.wait()
    assert record.summary["end"] == "completed", str(record.summary)
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
        assert words[-2:] == [str(copy / "supervisor" / "__main__.py"), str(record.attempt_path)]
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
        assert {path.name.partition(".")[0] for path in compiled} >= {"main", "crew"}
        await completed(side, gate, 2)
        assert {path: path.stat().st_mtime_ns for path in programs.rglob("*.pyc")} == compiled

    served(side, test)


@pytest.mark.parametrize("what", ["argv", "source"])
def test_compiled_files_that_were_cut_short_are_compiled_anew(
    gate: GateOfRuns, tmp_path: Path, what: str
) -> None:
    """A disk that was full when Python wrote them stops no later run, of a program or of a cell."""
    side = run_side(gate.path, tmp_path)
    body = {**program("pass"), "interpreter": sys.executable}
    cell = {"argv": None, "source": "import multiprocessing as mp; mp.get_context('spawn')"}

    async def test() -> None:
        for fence in (1, 2):
            await completed(side, gate, fence, body if what == "argv" else {**body, **cell})
            for path in (tmp_path / "runs" / "programs").rglob("*.pyc"):
                path.write_bytes(path.read_bytes()[:-40])

    served(side, test)


def test_a_run_is_refused_at_once_where_its_programs_cannot_be_kept(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """A folder that others can write to is reported by the submit, which leaves nothing behind."""
    side = run_side(gate.path, tmp_path)

    async def test() -> None:
        (tmp_path / "runs" / "programs").mkdir(parents=True)
        (tmp_path / "runs" / "programs").chmod(0o777)
        with pytest.raises(Refused, match="programs is open to others") as refused:
            await side.intake.submit(program("pass"))
        assert refused.value.status == 503
        assert not list((tmp_path / "runs").glob("2*"))

    served(side, test)


def test_a_start_that_fails_for_want_of_its_programs_leaves_no_attempt(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """While the copy cannot be written, however often it is tried, nothing else is."""
    side = run_side(gate.path, tmp_path)

    async def test() -> None:
        run_id, _ = await side.intake.submit(program("pass"))
        (tmp_path / "runs" / "programs").chmod(0o777)
        gate.grant(run_id, 1)
        record = side.records.known(run_id)
        await record.end.wait()
        assert record.summary["end"] == "failed"
        assert not (record.path / "attempts").exists() or not list(
            (record.path / "attempts").iterdir()
        )

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
