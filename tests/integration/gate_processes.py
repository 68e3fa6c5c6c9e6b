"""A gate in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_gpugate.client.connection import Client
from tests.kit.real_server import Places, until

SOON = {"hints": {"ram_bytes": 1 << 26}, "environment": {"PATH": os.environ["PATH"]}, "gpus": 0}


class Gate:
    """`jupyter gpugate serve --user` as a process."""

    def __init__(self, places: Places, *before: str, **environ: str) -> None:
        self.places = places
        self.environ = places.environ(**environ)
        self.refusal = ""  # what the last attempt to find it has raised
        self.log = places.root / f"gate-{len(list(places.root.glob('gate-*')))}.log"
        command = [*before, sys.executable, "-m", "jupyter_gpugate", "serve", "--user"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environ, cwd="/", start_new_session=True
            )

    def find(self) -> Path | None:
        """What a terminal with this gate's settings finds."""
        program = "from jupyter_gpugate.client import discovery; print(discovery.find())"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        self.refusal = done.stderr
        found = done.stdout.strip()
        return Path(found) if found not in ("", "None") else None

    def client(self) -> Client:
        """A client of this gate, once it listens."""
        return Client(until(self.find, "the gate listens"))

    def said(self) -> str:
        return self.log.read_text()


Starts = Callable[..., Gate]


def submitted(client: Client, source: str, **fields: Any) -> str:
    """Submit a run that needs little and starts soon."""
    run_id: str = client.submit({"name": "x", "source": source, **SOON, **fields})["run_id"]
    return run_id


def state(client: Client, run_id: str) -> dict[str, Any]:
    """Where a run stands."""
    return client.run(run_id).body or {}
