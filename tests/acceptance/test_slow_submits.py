"""Submits whose sources take long to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.real_server import Places, Served, until


def slow_interpreter(root: Path) -> tuple[Path, Path]:
    """A Python that starts once a file is there: itself, and the file."""
    program, go = root / "slow-python", root / "go"
    program.write_text(
        f'#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return program, go


def test_a_submit_whose_sources_take_long_says_so(server: Served, places: Places) -> None:
    """Whoever asks for it is answered at once, several at a time, and later has the run."""
    program, go = slow_interpreter(places.root)
    submits = [
        {
            "name": f"slow{n}",
            "source": f"print({n})",
            "interpreter": str(program),
            "idempotency_key": f"key{n}",
        }
        for n in range(3)
    ]
    for body in submits:
        answer = server.ask("POST", "/runs", body, prefer="respond-async")
        assert (answer.status, answer.json) == (
            202,
            {"run_id": None, "status": "reading", "repeats": None},
        )
        assert answer.headers["preference-applied"] == "respond-async"
    go.touch()

    def queued() -> list[str] | None:
        answers = [server.ask("POST", "/runs", body, prefer="respond-async") for body in submits]
        ids = [answer.json["run_id"] for answer in answers]
        return ids if all(ids) else None

    runs = until(queued)
    assert len(set(runs)) == 3
    assert [server.ended(run_id)["end"] for run_id in runs] == ["completed"] * 3
    assert [server.output(run_id).strip() for run_id in runs] == ["0", "1", "2"]


@pytest.mark.usefixtures("server")
def test_a_terminal_says_that_sources_are_read(places: Places) -> None:
    """The line stands there before the run is queued."""
    program, go = slow_interpreter(places.root)
    environ = places.environ()
    code = """\
import sys
from jupyter_gpugate.terminal.cli import main
sys.executable = sys.argv.pop(1)
sys.exit(main(sys.argv[1:]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(program), "run", "slow", "--gpus", "0", "--", "true"],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as terminal:
        assert terminal.stderr is not None
        assert terminal.stderr.readline() == "slow · reading your sources\n"
        go.touch()
        terminal.stderr.read()
    assert terminal.returncode == 0


def test_a_refusal_that_took_long_reaches_whoever_asks_again(
    server: Served, places: Places
) -> None:
    """What is wrong with a source is kept until it is told."""
    program, go = slow_interpreter(places.root)
    body = {"name": "x", "source": "def", "interpreter": str(program), "idempotency_key": "wrong"}
    assert server.ask("POST", "/runs", body, prefer="respond-async").json["status"] == "reading"
    go.touch()

    def refused() -> Any:
        answer = server.ask("POST", "/runs", body, prefer="respond-async")
        return answer if answer.status == 400 else None

    answer = until(refused)
    assert (answer.json["error"], answer.json["detail"]["field"]) == ("bad_request", "source")


def test_a_large_package_of_ones_own_is_read_once(server: Served, places: Places) -> None:
    """After an edit of one file its digest alone is made anew, by the next server as well."""
    own = places.notebooks / "own"
    own.mkdir()
    names = [f"m{n}" for n in range(60)]
    for name in names:
        (own / f"{name}.py").write_text(f"def {name}(x):\n    return x\n")
    (own / "__init__.py").write_text(f"from . import {', '.join(names)}\n")
    cell = {"name": "own", "source": "import own\nprint(own.m1.m1(3))"}
    hashes = []

    def submitted() -> str:
        run_id = server.ask("POST", "/runs", cell).json["run_id"]
        row = server.ended(run_id)
        hashes.append(json.loads((Path(row["directory"]) / "spec.json").read_text())["source_hash"])
        return str(row["end"])

    assert submitted() == submitted() == "completed"
    (own / "m1.py").write_text("def m1(x):\n    return x + 1\n")
    assert submitted() == "completed"
    assert (hashes[0] == hashes[1], hashes[1] == hashes[2]) == (True, False)
    kept = places.root / "state" / "gpugate" / "sources"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert any("tree m2.py" in file.read_text() for file in kept.iterdir())
