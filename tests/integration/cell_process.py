"""Starts workers of a cell as a supervisor does: real files, real interpreters, a real pipe."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jupyter_gpugate.programs.worker
from jupyter_gpugate.client import values

#: A worker that is started from here runs as from its copy: it does not know the package.
PROGRAM = Path(jupyter_gpugate.programs.worker.__file__).parent
PATIENCE_S = 240


@dataclass(frozen=True)
class Ended:
    """What one worker left behind: exit code, output, events in order."""

    code: int
    stdout: str
    stderr: str
    events: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def error(self) -> dict[str, Any]:
        (error,) = self.of("error")
        return error

    @property
    def plain(self) -> list[str]:
        return [shown["data"]["text/plain"] for shown in self.of("display")]


@dataclass
class CellRun:
    """A run directory with one attempt after another of the same cell."""

    directory: Path
    source: str
    interpreter: str = sys.executable
    program: Path = PROGRAM
    path: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # of launch.json, where not the default
    environment: dict[str, str] = field(default_factory=dict)
    number: int = 0

    def attempt(self, **facts: Any) -> Path:
        """Lay out the next attempt and return its directory."""
        self.number += 1
        directory = self.directory / "attempts" / str(self.number)
        directory.mkdir(parents=True)
        launch = {
            "kind": "cell",
            "path": self.path or ["", *python_path(self.interpreter)],
            "workers": 1,
            "episodes": 1,
            "parameters": {},
            "inputs": [],
            "outputs": [],
            "devices": [],
            "resume_from": None,
            **self.facts,
            **facts,
        }
        (directory / "launch.json").write_text(json.dumps(launch))
        (directory / "cell.py").write_text(textwrap.dedent(self.source))
        return directory

    def start(self, worker: int = 0, directory: Path | None = None, **facts: Any) -> Worker:
        """Start one worker, of a new attempt unless ``directory`` says which."""
        return Worker(self, worker, directory or self.attempt(**facts))

    def run(self, **facts: Any) -> Ended:
        """Run every worker of a new attempt to its end; return what worker 0 left."""
        return self.run_all(**facts)[0]

    def run_all(self, **facts: Any) -> list[Ended]:
        directory = self.attempt(**facts)
        workers = json.loads((directory / "launch.json").read_bytes())["workers"]
        started = [self.start(worker, directory) for worker in range(workers)]
        return [worker.ended() for worker in started]

    def result(self, name: str, worker: int = 0) -> Any:
        """Load an output of the newest attempt."""
        return values.read(self.result_path(name, worker))

    def result_path(self, name: str, worker: int = 0) -> Path:
        return self.directory / "attempts" / str(self.number) / f"result.{name}.{worker}.pickle"

    def stage(self, name: str, value: object) -> None:
        """Store an input as a notebook does."""
        folder = self.directory / "inputs"
        folder.mkdir(exist_ok=True)
        values.write(folder, name, value)


class Worker:
    """One started worker process and the reading end of its events."""

    def __init__(self, run: CellRun, index: int, directory: Path) -> None:
        reading, writing = os.pipe()
        marks = {
            "GPUGATE_EVENTS_FD": str(writing),
            "GPUGATE_WORKER": str(index),
            "GPUGATE_CAPS": "{}",
            "PYTHONUNBUFFERED": "1",
            "IPYTHONDIR": str(run.directory / "ipython"),
        }
        self.process = subprocess.Popen(
            [run.interpreter, str(run.program / "__main__.py"), str(directory), str(index)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=run.directory,
            env={**os.environ, **marks, **run.environment},
            pass_fds=[writing],
        )
        os.close(writing)
        self.pipe = os.fdopen(reading, "rb")

    def next_event(self) -> dict[str, Any]:
        """Wait for the next event."""
        event: dict[str, Any] = json.loads(self.pipe.readline())
        return event

    def ended(self) -> Ended:
        """Wait for the end of the worker."""
        lines = self.pipe.read().splitlines()
        self.pipe.close()
        out, err = self.process.communicate(timeout=PATIENCE_S)
        code = self.process.returncode
        return Ended(code, out.decode(), err.decode(), [json.loads(line) for line in lines])

    def kill(self) -> None:
        self.process.kill()
        self.ended()


@functools.cache
def python_path(interpreter: str) -> tuple[str, ...]:
    """Return ``sys.path`` of a bare start of this interpreter, its script's folder apart."""
    command = [interpreter, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    return tuple(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


@functools.cache
def other_interpreters() -> tuple[str, ...]:
    """Return one working interpreter of each CPython version from 3.9 on that this machine has."""
    found = {}
    folders = [Path(f) for f in os.get_exec_path()]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob("*/bin"))
    for minor in range(9, 16):
        for folder in folders:
            name = folder / f"python3.{minor}"
            check = (
                f"import sys; assert sys.version_info[:2] == (3, {minor}); print(sys.executable)"
            )
            if name.is_file() and minor not in found:
                tried = subprocess.run([name, "-c", check], capture_output=True, check=False)
                if tried.returncode == 0:
                    found[minor] = tried.stdout.decode().strip()
    return tuple(found.values())
