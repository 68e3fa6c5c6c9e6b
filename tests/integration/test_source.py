"""The source reader as a run side starts it: a process of the run's own interpreter."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import source, sources
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.runs.sources import SourceReader
from tests.integration.cell_process import PATIENCE_S, other_interpreters

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


def ask(interpreter: str, cwd: Path, **request: Any) -> dict[str, Any]:
    """Start the reader under an interpreter and return its answer."""
    done = subprocess.run(
        [interpreter, source.__file__],
        input=json.dumps({"kind": "cell", "cwd": str(cwd), "path": None, **request}).encode(),
        capture_output=True,
        check=True,
        cwd=cwd,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.stderr == b""
    return answer


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
    assert there["uses_names"] == ["used_here"]
    assert there["python"].startswith(Path(interpreter).name.removeprefix("python"))


def test_without_a_path_the_interpreters_own_is_read(tmp_path: Path) -> None:
    """A request without a path looks where this interpreter looks, and not beside the reader."""
    (tmp_path / "directory.py").write_text("x = 1")
    answer = ask(
        sys.executable, tmp_path, source="import numpy, torch, cloudpickle, directory, cell"
    )
    assert set(answer["packages"]) == {"cloudpickle", "numpy", "torch"}
    assert answer["runtime"] == f"torch {answer['packages']['torch']}"
    assert answer["files"] == [str(tmp_path / "directory.py")]


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


def test_an_answer_stands_until_a_file_behind_it_changes(tmp_path: Path) -> None:
    """What was read is remembered, until a module is edited or a missing one has come."""
    (tmp_path / "near.py").write_text("x = 1\n")
    question = {"kind": "cell", "cwd": str(tmp_path), "source": "import near, far", "path": None}
    reader = SourceReader()

    def read() -> dict[str, Any]:
        return asyncio.run(reader.read(sys.executable, question, os.environ))

    first = read()
    assert read() is first
    (tmp_path / "near.py").write_text("x = 22\n")
    edited = read()
    assert edited["source_hash"] != first["source_hash"]
    (tmp_path / "far.py").write_text("x = 1\n")
    assert read()["files"] == [str(tmp_path / "far.py"), str(tmp_path / "near.py")]


def test_an_interpreter_that_does_not_answer_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever named it is told so, and nothing of the question goes on."""
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
            await SourceReader().read(str(silent), question, os.environ)
        return await asyncio.wait_for(started[0].wait(), PATIENCE_S)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", kept)
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.05)
    assert asyncio.run(read()) == -signal.SIGKILL
