"""A Jupyter server in directories of its own, and the kernels that it starts.

For the demonstration and for the tests of the tutorials.  It does not touch the user's own
settings, runs or gate, and none of its processes outlives it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from jupyter_client.asynchronous.client import AsyncKernelClient

API = "/gpugate/api/v1"
#: More than a slow machine needs.
PATIENCE_S = 180.0
#: Variables that refer to directories of the calling environment.
_STRANGE = ("GPUGATE", "IPYTHONDIR", "JPY_", "JUPYTER", "XDG_")


class DemoError(RuntimeError):
    """The demonstration cannot go on; the message says why."""


class Places:
    """One user's directories, made for this occasion and removed after it."""

    def __init__(self) -> None:
        # Below /tmp whatever TMPDIR says: the path of a socket has at most 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="gpugate-demo-", dir="/tmp"))
        self.notebooks = self.root / "notebooks"
        self._runtime = self.root / "runtime"
        self._config = self.root / "config"
        self._home = self.root / "home"
        own = (self.notebooks, self._runtime, self._config, self._home, self.root / "state")
        for folder in own:
            folder.mkdir(mode=0o700)

    def environ(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of every process that belongs here."""
        kept = {name: v for name, v in os.environ.items() if not name.startswith(_STRANGE)}
        own = {
            "HOME": self._home,  # a user has one gate for each home, whatever else is set
            "XDG_RUNTIME_DIR": self._runtime,
            "XDG_STATE_HOME": self.root / "state",
            "JUPYTER_DATA_DIR": self.root / "data",
            "JUPYTER_RUNTIME_DIR": self.root / "jupyter",
            "JUPYTER_CONFIG_DIR": self._config,
            "IPYTHONDIR": self.root / "ipython",
        }
        return {**kept, **{name: str(path) for name, path in own.items()}, **more}

    def configure(self, settings: Mapping[str, Mapping[str, object]]) -> None:
        """Write the configuration of a Jupyter server that starts here."""
        (self._config / "jupyter_server_config.json").write_text(json.dumps(settings))

    def remove(self) -> None:
        """End every process that was started here, and remove the directories."""
        until(lambda: not self._ended(), "every process has ended", 30.0)
        shutil.rmtree(self.root, ignore_errors=True)

    def _ended(self) -> list[int]:
        """Kill the remaining processes, and return their pids."""
        left = [p for p in psutil.process_iter() if p.pid != os.getpid() and self._belongs(p)]
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        return [process.pid for process in left]

    def _belongs(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            environ = process.environ()
            # A supervisor has next to no environment, but its command names its run's directory.
            of_a_run = process.cmdline() if "GPUGATE_RUN_ID" in environ else []
            return str(self.root) in "\0".join([*environ.values(), *of_a_run])
        return False


class Server:
    """A Jupyter server with the extension, on the loopback interface."""

    def __init__(self, places: Places, more_environ: Mapping[str, str]) -> None:
        self.places = places
        self.environ = places.environ(more_environ)
        self.log = places.root / "server.log"
        self._token = secrets.token_hex(16)
        self._process = self._start()
        self._port = until(self._answering, "the server answers", PATIENCE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send one request and return the JSON of its answer; raise `DemoError` for an error."""
        return self._ask(self._port, method, path, body)

    def stop(self) -> None:
        """Stop the server, and with it its kernels and its runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _start(self) -> subprocess.Popen[bytes]:
        self.places.configure(
            {
                "ServerApp": {
                    "allow_root": True,
                    "ip": "127.0.0.1",
                    "open_browser": False,
                    "port": _free_port(),
                    "root_dir": str(self.places.notebooks),
                },
                # Not on the command line, which everybody on the machine can read.
                "IdentityProvider": {"token": self._token},
                "GpuGate": {"stop_runs_on_exit": True},
            }
        )
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "jupyter_server"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.places.notebooks,
                env=self.environ,
                start_new_session=True,  # an interrupt at the terminal is for the demonstration
            )

    def _answering(self) -> int:
        """Return the port once the extension answers there; 0 until then."""
        if self._process.poll() is not None:
            raise DemoError(f"the Jupyter server did not start:\n{self.last_words()}")
        info = self.places.root / "jupyter" / f"jpserver-{self._process.pid}.json"
        try:
            port = int(json.loads(info.read_text())["port"])
            self._ask(port, "GET", f"{API}/machine")
        except (OSError, ValueError):
            return 0
        return port

    def _ask(self, port: int, method: str, path: str, body: object = None) -> Any:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            headers = {"Authorization": f"token {self._token}", "Content-Type": "application/json"}
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            text = answer.read()
        finally:
            line.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise DemoError(f"{method} {path}: {answer.status} {text.decode(errors='replace')}")
        return json.loads(text) if text else None


class ServedKernel:
    """A kernel that the server has started, with the interface of a kernel manager for nbclient."""

    has_kernel = True

    def __init__(self, server: Server, notebook: str) -> None:
        """Open a session for ``notebook``, as JupyterLab does when it opens one."""
        self._server = server
        asked = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {}}
        kernel = server.ask("POST", "/api/sessions", asked)["kernel"]["id"]
        self._path = f"/api/kernels/{quote(kernel)}"
        self._connection = server.places.root / "jupyter" / f"kernel-{kernel}.json"

    def client(self) -> AsyncKernelClient:
        client = AsyncKernelClient()
        client.load_connection_file(str(self._connection))
        # On a busy machine a kernel that answers a second late is not a dead one.
        client.hb_channel.time_to_dead = PATIENCE_S
        return client

    async def is_alive(self) -> bool:
        try:
            await asyncio.to_thread(self._server.ask, "GET", self._path)
        except (DemoError, OSError):
            return False
        return True

    async def interrupt_kernel(self) -> None:
        await asyncio.to_thread(self._server.ask, "POST", f"{self._path}/interrupt", {})

    async def shutdown_kernel(self, **_how: bool) -> None:
        await asyncio.to_thread(self._server.ask, "DELETE", self._path)

    async def cleanup_resources(self) -> None:
        """Do nothing: the server owns the kernel's resources."""


def until(condition: Callable[[], Any], what: str, patience_s: float) -> Any:
    """Poll until ``condition`` holds and return its value; raise `DemoError` if it does not."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise DemoError(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(0.05)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
