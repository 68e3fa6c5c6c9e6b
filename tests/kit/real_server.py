"""A real Jupyter server with a gate of its own, in directories of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fake_nvml import StandIn

PATIENCE_S = 120.0
#: Variables of the tests' own surroundings that would lead a gate to somebody else's places.
STRANGE = ("JPY_", "JUPYTER", "GPUGATE", "XDG_", "IPYTHONDIR")


def until(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """Look until a condition holds and return what it gave; the limit is for broken code only."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"never came true: {what or condition}")


def end_everything_of(places: Places) -> None:
    """Kill whatever carries this test's directories in its environment."""
    mark = f"XDG_RUNTIME_DIR={places.runtime}".encode()
    tag = str(places.root).encode()

    def left() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                    if mark in told or tag in told:
                        found.append(int(entry.name))
        return found

    def none_left() -> bool:
        pids = left()
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    until(none_left, "everything has ended")


class Answer:
    """An HTTP answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Places:
    """The directories and the environment of one user's gate."""

    def __init__(self, root: Path, stand_in: StandIn | None = None) -> None:
        self.root = root
        self.stand_in = stand_in
        self.notebooks = root / "notebooks"
        # A socket's path is short: pytest's own directories are not.
        self.runtime = Path("/tmp") / f"gg-{secrets.token_hex(4)}"  # noqa: S108 - made 0700 here
        for path in (self.notebooks, root / "home", root / "state", root / "data"):
            path.mkdir(parents=True, exist_ok=True)
        self.runtime.mkdir(mode=0o700)

    @property
    def socket(self) -> Path:
        return self.runtime / "gpugate" / "gpugate.sock"

    @property
    def runs(self) -> Path:
        return self.root / "data" / "gpugate" / "runs"

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of every process that belongs to this user."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(STRANGE)}
        own = {
            "HOME": str(self.root / "home"),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(self.root / "state"),
            "JUPYTER_DATA_DIR": str(self.root / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.root / "runtime"),
            "JUPYTER_CONFIG_DIR": str(self.root / "config"),
            "IPYTHONDIR": str(self.root / "ipython"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {**kept, **own, **(self.stand_in.env() if self.stand_in else {}), **more}


#: What the tests' environment brings along, and a plain server takes long to load.
OTHERS = ("jupyter_lsp", "jupyterlab", "notebook", "notebook_shim")


def extensions(**enabled: bool) -> str:
    """The option that enables or disables extensions; those of others are off."""
    return f"--ServerApp.jpserver_extensions={ {**dict.fromkeys(OTHERS, False), **enabled} }"


class Served:
    """One Jupyter server as a process."""

    def __init__(
        self,
        places: Places,
        *options: str,
        ready: str = "/gpugate/api/v1/machine",
        app: str = "jupyter_server",
        **environ: str,
    ) -> None:
        told = any("jpserver_extensions" in option for option in options)
        self.places = places
        self._ready = ready
        self.token = secrets.token_hex(8)
        self.port = _free_port()
        self.log = places.root / f"server-{self.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    app,
                    "--allow-root",
                    "--no-browser",
                    "--ServerApp.ip=127.0.0.1",
                    f"--ServerApp.port={self.port}",
                    "--ServerApp.port_retries=0",
                    f"--IdentityProvider.token={self.token}",
                    f"--ServerApp.root_dir={places.notebooks}",
                    *([extensions()] if app == "jupyter_server" and not told else []),
                    *options,
                ],
                stdout=log,
                stderr=log,
                env=places.environ(**environ),
                start_new_session=True,
            )
        until(self._answers, "the server answers")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        raw: bytes = b"",
        **headers: str,
    ) -> Answer:
        """One request to the API of the extension."""
        data = raw or (None if body is None else json.dumps(body).encode())
        if method == "POST" and data is None:
            data = b"{}"
        request = urllib.request.Request(  # noqa: S310 - a server of this test's own
            f"{self.url}/gpugate/api/v1{path}", data=data, method=method
        )
        request.add_header("Authorization", f"token {self.token if token is None else token}")
        request.add_header("Content-Type", "application/json")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:  # noqa: S310
                return Answer(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    # -- the questions that tests ask again and again ---------------------------------------------

    def submit(self, name: str, source: str, **fields: Any) -> str:
        """Submit a cell; its run id."""
        answer = self.ask("POST", "/runs", {"name": name, "source": source, **fields})
        assert answer.status == 202, answer.body
        run_id: str = answer.json["run_id"]
        return run_id

    def run(self, run_id: str) -> dict[str, Any]:
        """One run as the API tells it."""
        answer = self.ask("GET", f"/runs/{run_id}")
        assert answer.status == 200, answer.body
        row: dict[str, Any] = answer.json
        return row

    def queue(self, query: str = "") -> dict[str, Any]:
        """The snapshot."""
        snapshot: dict[str, Any] = self.ask("GET", f"/queue{query}").json
        return snapshot

    def ended(self, run_id: str) -> dict[str, Any]:
        """The run once it has ended."""
        found: dict[str, Any] = until(
            lambda: (row := self.run(run_id))["status"] == "ended" and row, f"{run_id} ends"
        )
        return found

    def active(self, run_id: str) -> dict[str, Any]:
        """The run once its attempt is running."""
        found: dict[str, Any] = until(
            lambda: (row := self.run(run_id))["phase"] == "running" and row, f"{run_id} runs"
        )
        return found

    def waiting(self, run_id: str, kind: str) -> dict[str, Any]:
        """The run once it is kept waiting for this reason."""

        def waits() -> Any:
            row = self.run(run_id)
            assert row["status"] != "ended", row
            return row if row["reasons"] and row["reasons"][0]["kind"] == kind else None

        found: dict[str, Any] = until(waits, f"{run_id} waits for {kind}")
        return found

    def completed(self, name: str, source: str, **fields: Any) -> dict[str, Any]:
        """Submit a run and see it complete."""
        row = self.ended(self.submit(name, source, **fields))
        assert row["end"] == "completed", (row, self.output(row["run_id"]))
        return row

    def figures(self) -> dict[str, float]:
        """The gate's own figures in the server's /metrics."""
        request = urllib.request.Request(  # noqa: S310 - a server of this test's own
            f"{self.url}/metrics", headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request) as response:  # noqa: S310
            lines = response.read().decode().splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith("gpugate_"))
        return {name: float(value) for name, _, value in found}

    def output(self, run_id: str) -> str:
        text: str = self.ask("GET", f"/runs/{run_id}/output").json["text"]
        return text

    # -- ends -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End the server as its user would."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            request = urllib.request.Request(  # noqa: S310 - a server of this test's own
                self.url + self._ready, headers={"Authorization": f"token {self.token}"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:  # noqa: S310
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False


def _free_port() -> int:
    """A port below those that the system gives to sockets without one, as kernels' are."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
