"""The fingerprint program as the run side starts it: a process of the run's own interpreter."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import jupyter_gpugate.programs
from jupyter_gpugate.runs import fingerprinting
from jupyter_gpugate.runs.fingerprinting import Fingerprinter
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Refused
from tests.integration.cell_process import PATIENCE_S, other_interpreters

PROGRAM = Path(jupyter_gpugate.programs.__file__).parent / "fingerprint" / "__main__.py"
CELL = """\
from __future__ import annotations
import asyncio, near


@near.mark("x", y=1)
async def f(a, /, *b: int, c=1.5, **d) -> None:
    async with a as x, b:
        yield x[1:2, ...], {**d}, f"{a!r:>{c}} {b}" "text", b"\\x00", -1j
    try:
        assert (n := 10), 'no'
    except* (ValueError, KeyError) as e:
        raise e from None
    while not a < b <= c: del d[0]
    else: pass
    return [i for i in a if i async for j in i], lambda *, k=None: k


await asyncio.sleep(0)
print(used_here)
""".replace("except*", "except")


def ask(interpreter: str, cwd: Path, *words: str | Path, **request: Any) -> dict[str, Any]:
    """Run the program under an interpreter, started with these words, and return its answer."""
    done = subprocess.run(
        [interpreter, *(words or [PROGRAM])],
        input=json.dumps({"kind": "cell", "cwd": str(cwd), "path": None, **request}).encode(),
        capture_output=True,
        check=True,
        cwd=cwd,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.stderr == b""
    return answer


def reader_in(tmp_path: Path, cache: Path | None = None) -> Fingerprinter:
    """Make a reader that keeps its program in a test's folder."""
    return Fingerprinter(Programs(tmp_path / "runs"), cache)


@pytest.mark.parametrize("interpreter", other_interpreters(), ids=os.path.basename)
def test_a_source_is_the_same_under_every_python(tmp_path: Path, interpreter: str) -> None:
    """Another version of Python reads the same cell and modules as the same source."""
    (tmp_path / "near.py").write_text("def mark(*a, **k): return lambda f: f\nx: list[int] = []\n")
    cell = CELL.replace("return [i", "yield [i")
    here = ask(sys.executable, tmp_path, source=cell)
    there = ask(interpreter, tmp_path, source=cell)
    assert here["syntax_error"] is None
    assert there["source_hash"] == here["source_hash"]
    assert there["files"] == [str(tmp_path / "near.py")]
    assert there["python"].startswith(Path(interpreter).name.removeprefix("python"))


def test_without_a_path_the_interpreters_own_is_read(tmp_path: Path) -> None:
    """Without a path, modules are looked up where this interpreter does, not beside the program."""
    (tmp_path / "files.py").write_text("x = 1")
    beside = "files, cell, fingerprint, gpugate_programs"
    answer = ask(sys.executable, tmp_path, source=f"import numpy, torch, cloudpickle, {beside}")
    assert set(answer["packages"]) == {"cloudpickle", "numpy", "torch"}
    assert answer["runtime"] == f"torch {answer['packages']['torch']}"
    assert answer["files"] == [str(tmp_path / "files.py")]


def test_a_copy_of_the_program_gives_the_same_answer(tmp_path: Path) -> None:
    """The program needs no other file of this package, and no particular folder."""
    copy = shutil.copytree(PROGRAM.parent, tmp_path / "programs" / "fingerprint")
    (tmp_path / "near.py").write_text("x = 1")
    answer = ask(sys.executable, tmp_path, source="import near")
    assert answer["files"] == [str(tmp_path / "near.py")]
    alone = ask(sys.executable, tmp_path, "-I", "-S", copy / PROGRAM.name, source="import near")
    assert alone["source_hash"] == answer["source_hash"]


def test_the_program_starts_without_slow_imports(tmp_path: Path) -> None:
    """A cell of plain files is described without modules that only other sources need."""
    request = {"kind": "cell", "cwd": str(tmp_path), "source": "x = 1", "path": [""]}
    done = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", PROGRAM],
        input=json.dumps(request).encode(),
        capture_output=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "hashlib" in imported
    slow = {"asyncio", "concurrent.futures", "multiprocessing", "pathlib", "shutil", "subprocess"}
    assert (slow | {"symtable", "threading", "zipfile"}) & imported == set()


def test_a_command_of_another_python_is_read_with_its_packages(tmp_path: Path) -> None:
    """A program's imports are looked up where the Python that the command names has them."""
    others = [path for path in other_interpreters() if path != sys.executable]
    if not others:
        pytest.skip("this machine has one Python only")
    argv = [others[0], "-c", "import torch, pip"]
    answer = ask(sys.executable, tmp_path, kind="program", argv=argv)
    assert "torch" not in answer["packages"]
    assert "pip" in answer["packages"]
    assert answer["python"].startswith(Path(others[0]).name.removeprefix("python"))


def test_an_answer_is_remembered_until_a_file_behind_it_changes(tmp_path: Path) -> None:
    """The source is read again after a module was edited, and after a missing one was added."""
    (tmp_path / "near.py").write_text("x = 1\n")
    question = {"kind": "cell", "cwd": str(tmp_path), "source": "import near, far", "path": None}
    reader = reader_in(tmp_path)

    def read() -> dict[str, Any]:
        return asyncio.run(reader.read(sys.executable, question, os.environ))

    first = read()
    assert read() is first
    (tmp_path / "near.py").write_text("x = 22\n")
    edited = read()
    assert edited["source_hash"] != first["source_hash"]
    (tmp_path / "far.py").write_text("x = 1\n")
    assert read()["files"] == [str(tmp_path / "far.py"), str(tmp_path / "near.py")]


def test_the_program_runs_from_the_copy_of_its_version(tmp_path: Path) -> None:
    """Compiled files lie in the copy, are the user's alone, and are made again if cut short."""
    programs = Programs(tmp_path / "runs")

    def read(source: str) -> list[Path]:
        question = {"kind": "cell", "cwd": str(tmp_path), "source": source, "path": []}
        answer = asyncio.run(Fingerprinter(programs).read(sys.executable, question, os.environ))
        assert answer["error"] is None
        return list((programs.ready() / "fingerprint").rglob("*.pyc"))

    before = os.umask(0o002)
    try:
        compiled = read("x = 1")
    finally:
        os.umask(before)
    assert compiled
    for path in compiled:
        path.write_bytes(path.read_bytes()[:-40])
    assert sorted(read("x = 2")) == sorted(compiled)


def test_where_the_program_cannot_be_kept_the_submit_is_refused(tmp_path: Path) -> None:
    """A folder that others could change is reported with its path, and nothing is executed."""
    (tmp_path / "runs" / "programs").mkdir(parents=True)
    (tmp_path / "runs" / "programs").chmod(0o777)
    question = {"kind": "cell", "cwd": str(tmp_path), "source": "pass", "path": None}
    reader = reader_in(tmp_path)
    with pytest.raises(Refused, match="programs is open to others") as refused:
        asyncio.run(reader.read(sys.executable, question, os.environ))
    assert (refused.value.status, refused.value.error) == (503, "disk")


def test_an_interpreter_that_does_not_answer_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submit is refused, and the process is killed."""
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def kept(*argv: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await create(*argv, **options))
        return started[-1]

    async def read() -> int:
        question = {"kind": "cell", "cwd": str(tmp_path), "source": "pass", "path": None}
        with pytest.raises(Refused, match="does not answer"):
            await reader_in(tmp_path).read(str(silent), question, os.environ)
        return await asyncio.wait_for(started[0].wait(), PATIENCE_S)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", kept)
    monkeypatch.setattr(fingerprinting, "TIMEOUT_S", 0.05)
    assert asyncio.run(read()) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exec yes", "prints more than a Python interpreter would"),
        ("exec yes >&2", "prints more than a Python interpreter would"),
        ("exec true", "does not answer like a Python interpreter"),
        ("echo '[]'", "does not answer like a Python interpreter"),
        ("echo '{}'", "does not answer like a Python interpreter"),
        ("echo '{\"source_hash\": {}}'", "does not answer like a Python interpreter"),
        ("head -c 200000 /dev/zero | tr '\\0' '['", "does not answer like a Python interpreter"),
        ("exec cat", "does not answer like a Python interpreter"),
        ("echo broken >&2; exit 3", "cannot read the source: broken"),
        ("exit 3", "cannot read the source"),
    ],
)
def test_a_program_that_is_no_interpreter_is_refused(
    tmp_path: Path, script: str, problem: str
) -> None:
    """The submit is refused with the program's name, whatever and however much it prints."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    question = {"kind": "cell", "cwd": str(tmp_path), "source": "pass", "path": None}
    with pytest.raises(Refused) as refusal:
        asyncio.run(reader_in(tmp_path).read(str(program), question, os.environ))
    assert (refusal.value.status, refusal.value.detail) == (400, {"field": "interpreter"})
    assert str(refusal.value) == f"interpreter: {program} {problem}"


def test_children_of_an_interpreter_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is left of a program that took too long."""
    program, told = tmp_path / "python", tmp_path / "child"
    program.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {told}.new\nmv {told}.new {told}\nwait\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(fingerprinting, "TIMEOUT_S", 3.0)
    question = {"kind": "cell", "cwd": str(tmp_path), "source": "pass", "path": None}
    with pytest.raises(Refused, match="does not answer"):
        asyncio.run(reader_in(tmp_path).read(str(program), question, os.environ))
    until_gone(int(told.read_text()))


def test_a_program_that_poses_as_python_is_read_within_bounds(tmp_path: Path) -> None:
    """The Python that a command names may print anything, without end."""
    (tmp_path / "python").symlink_to("/usr/bin/yes")
    answer = ask(sys.executable, tmp_path, kind="program", argv=["./python", "-c", "pass"])
    assert (answer["python"], len(answer["source_hash"])) == ("", 64)


def test_many_sources_at_once_start_few_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other sources wait for their turn, and all are read."""
    at_once: list[int] = []
    open_now: set[int] = set()
    said = fingerprinting._run

    async def counted(*asked: Any) -> tuple[int, bytes, bytes]:
        mark = id(asyncio.current_task())
        open_now.add(mark)
        at_once.append(len(open_now))
        try:
            return await said(*asked)
        finally:
            open_now.discard(mark)

    async def read() -> list[dict[str, Any]]:
        reader = reader_in(tmp_path)
        questions = [
            {"kind": "cell", "cwd": str(tmp_path), "source": f"x = {n}", "path": []}
            for n in range(12)
        ]
        tasks = [reader.read(sys.executable, one, os.environ) for one in questions]
        return list(await asyncio.gather(*tasks))

    monkeypatch.setattr(fingerprinting, "_run", counted)
    assert len({answer["source_hash"] for answer in asyncio.run(read())}) == 12
    assert max(at_once) < fingerprinting.AT_ONCE


def test_summaries_of_files_are_kept_on_disk(tmp_path: Path) -> None:
    """A process finds on the disk the summaries that an earlier one has made."""
    (tmp_path / "near.py").write_text("import far\n")
    (tmp_path / "far.py").write_text("x = 1\n")
    cache = tmp_path / "state" / "sources"
    question = {"kind": "cell", "cwd": str(tmp_path), "source": "import near", "path": [""]}

    def kept() -> list[Path]:
        asyncio.run(reader_in(tmp_path, cache).read(sys.executable, question, os.environ))
        return list(cache.iterdir())

    deadline = time.monotonic() + PATIENCE_S
    while not (files := kept()):
        assert time.monotonic() < deadline
    known = json.loads(files[0].read_text())
    assert known["folder"] == str(tmp_path)
    assert set(known["known"]) <= {"tree near.py", "tree far.py"}


def until_gone(pid: int) -> None:
    """Wait until a process has ended, collected or not."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} is alive")
