"""A notebook that is open at a real Jupyter server: its cells run in the server's kernel."""

from __future__ import annotations

import json
import queue
import re
import secrets
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from tests.kit.real_server import PATIENCE_S, Served

LOAD = "%load_ext jupyter_gpugate"


@dataclass
class Shown:
    """What one cell has shown."""

    stdout: str = ""
    stderr: str = ""
    #: What displays say in plain text, the newest of each display alone.
    displays: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    #: In which forms, by MIME type.
    kinds: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        return "\n".join([self.stdout, *self.displays])

    @property
    def traceback(self) -> str:
        """The error as the page shows it, without its colours."""
        assert self.error is not None, self.text
        return plain("\n".join(self.error["traceback"]))


class UserNotebook:
    """A session of the server, as JupyterLab opens one; the extension is loaded."""

    def __init__(self, server: Served, kernel: str = "python3") -> None:
        self._server = server
        # The server gives a notebook that is opened twice the same kernel.
        name = f"notebook-{secrets.token_hex(4)}.ipynb"
        asked = {"path": name, "name": name, "type": "notebook", "kernel": {"name": kernel}}
        self._session = self._ask("POST", "/api/sessions", asked)
        kernel_id = self._session["kernel"]["id"]
        file = server.places.root / "runtime" / f"kernel-{kernel_id}.json"
        self._client: Any = BlockingKernelClient(connection_file=str(file))
        self._client.load_connection_file()
        # On a busy machine a kernel that answers late is not a dead one.
        self._client.hb_channel.time_to_dead = PATIENCE_S
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)
        self.run(LOAD)

    def run(self, source: str) -> Shown:
        """Execute a cell to its end; an error in it fails the test."""
        shown = self.executed(source)
        assert shown.error is None, shown.traceback
        assert "UsageError" not in shown.stderr, shown.stderr
        return shown

    def refused(self, source: str) -> str:
        """Execute a cell that is refused as a mistake; what the one line says."""
        shown = self.executed(source)
        kind, _, message = shown.stderr.partition(": ")
        assert (kind, shown.error, message.count("\n")) == ("UsageError", None, 1), shown
        return message.rstrip("\n")

    def fails(self, source: str) -> Shown:
        """Execute a cell that is to end in an error."""
        shown = self.executed(source)
        assert shown.error is not None, shown.text
        return shown

    def executed(self, source: str) -> Shown:
        """Execute a cell and wait until the kernel is idle again."""
        return self.finish(self.start(source))

    def start(self, source: str) -> str:
        """Execute a cell without waiting for it."""
        return str(self._client.execute(source, allow_stdin=False))

    def finish(self, cell: str) -> Shown:
        """Take what a started cell shows until it is over."""
        shown, slots = Shown(), dict[str, str]()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if content.get("execution_state") == "idle":
                shown.displays = list(slots.values())
                return shown
            _take(message["msg_type"], content, shown, slots)
        raise AssertionError(f"the cell never ended: {shown}")

    def value(self, expression: str) -> Any:
        """The JSON of an expression in the kernel."""
        told = self.run(f"import json as _j; print(_j.dumps(({expression})))").stdout
        return json.loads(told)

    def close(self) -> None:
        """Close the notebook and its kernel."""
        self._client.stop_channels()
        self._ask("DELETE", f"/api/sessions/{self._session['id']}")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - a server of this test's own
            self._server.url + path, data=data, method=method
        )
        request.add_header("Authorization", f"token {self._server.token}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            text = answer.read()
        return json.loads(text) if text else None


def _take(kind: str, content: dict[str, Any], shown: Shown, slots: dict[str, str]) -> None:
    if kind == "stream" and content["name"] == "stdout":
        shown.stdout += content["text"]
    elif kind == "stream":
        shown.stderr += content["text"]
    elif kind == "error":
        shown.error = content
    elif "data" in content:
        slot = (content.get("transient") or {}).get("display_id") or f"#{len(slots)}"
        shown.kinds |= set(content["data"])
        slots[slot] = plain(content["data"].get("text/plain", ""))


def plain(text: str) -> str:
    """The text without the escapes that colour it."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
