"""A kernel and the person before it, as a front end that executes cells one by one."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.kit.real_server import PATIENCE_S, Places, Served, until

LOAD = "%load_ext jupyter_gpugate"
ASKS = "interrupt again within 5 s to cancel; the run goes on otherwise"
RUN_ID = re.compile(r"\d{8}-\d{6}-[a-z]{5}")


class Cell:
    """What one execution has shown, and how it ended."""

    def __init__(self, msg_id: str) -> None:
        self.msg_id = msg_id
        self.messages: list[dict[str, Any]] = []
        self.over = False

    @property
    def error(self) -> dict[str, Any]:
        """The error that the cell ended in; empty where it ended well."""
        return next((m["content"] for m in self.messages if m["msg_type"] == "error"), {})

    @property
    def ename(self) -> str:
        return str(self.error.get("ename", ""))

    @property
    def texts(self) -> list[str]:
        """Each state of each display, as text."""
        data = (m["content"].get("data", {}) for m in self.messages)
        return [d["text/plain"] for d in data if "text/plain" in d]

    @property
    def printed(self) -> str:
        """All that went to its stdout and stderr."""
        streams = (m["content"] for m in self.messages if m["msg_type"] == "stream")
        return "".join(content["text"] for content in streams)

    @property
    def run_ids(self) -> set[str]:
        """The runs that it has named to the person, on its card or in its error."""
        told = [*self.texts, *self.error.get("traceback", ()), self.error.get("evalue", "")]
        return set(RUN_ID.findall("\n".join(told)))


class FrontEnd:
    """One notebook: executes cells, interrupts, and sees what every cell shows."""

    def __init__(self, client: Any, pid: int, interrupt: Callable[[], object]) -> None:
        self.client = client
        self.pid = pid
        self.interrupt = interrupt
        self._cells: dict[str, Cell] = {}

    def start(self, source: str, *, allow_stdin: bool = True, **header: Any) -> Cell:
        """Execute a cell without waiting for it; as JupyterLab does, with a person who answers."""
        content = {"code": source, "silent": False, "store_history": True}
        content.update(user_expressions={}, allow_stdin=allow_stdin, stop_on_error=True)
        message = self.client.session.msg("execute_request", content)
        message["header"].update(header)
        self.client.shell_channel.send(message)
        cell = Cell(message["header"]["msg_id"])
        self._cells[cell.msg_id] = cell
        return cell

    def subshell(self) -> str:
        """Make a subshell; its id."""
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        reply = self.client.get_control_msg(timeout=PATIENCE_S)
        return str(reply["content"]["subshell_id"])

    def run(self, source: str) -> Cell:
        """Execute a cell to its end."""
        return self.end_of(self.start(source))

    def value(self, source: str) -> str:
        """What a cell that must end well shows as its value."""
        cell = self.run(source)
        assert not cell.error, cell.error
        return cell.texts[-1]

    def end_of(self, cell: Cell) -> Cell:
        """A cell once it is over."""
        self.see(lambda: cell.over, "the cell ends")
        return cell

    def shows(self, cell: Cell, words: str) -> None:
        """Wait until one of a cell's displays says something."""

        def shown() -> bool:
            assert not cell.over, (words, cell.texts, cell.error)
            return any(words in text for text in cell.texts)

        self.see(shown, words)

    def run_id(self, cell: Cell) -> str:
        """The run of a cell, once its card has named it."""
        self.see(lambda: bool(cell.run_ids), "the card names the run")
        (run_id,) = cell.run_ids
        return run_id

    def see(self, condition: Callable[[], bool], what: str) -> None:
        """Take the kernel's messages until something is so; the limit is for broken code only."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"it never came: {what}; {self._cells.values()}"
            self.look()

    def look(self, timeout_s: float = 0.05) -> None:
        """Take the next message of the kernel, if there is one in time."""
        try:
            message = self.client.get_iopub_msg(timeout=timeout_s)
        except queue.Empty:
            return
        cell = self._cells.get(message["parent_header"].get("msg_id", ""))
        if cell is None:
            return
        cell.messages.append(message)
        cell.over = cell.over or message["content"].get("execution_state") == "idle"


@contextmanager
def notebook(places: Places, *before: str, load: bool = True, **environ: str) -> Iterator[FrontEnd]:
    """A notebook of this user with the extension loaded; ``before`` wraps the kernel's command."""
    manager: Any = KernelManager()
    if before:
        manager.kernel_spec.argv[:1] = [*before, sys.executable]
    manager.start_kernel(env=places.environ(**environ), cwd=str(places.notebooks))
    client = manager.client()
    try:
        with attached(client, manager.provisioner.pid, manager.interrupt_kernel) as front_end:
            if load:
                assert not front_end.run(LOAD).error
            yield front_end
    finally:
        manager.shutdown_kernel(now=True)


@contextmanager
def attached(client: Any, pid: int, interrupt: Callable[[], object]) -> Iterator[FrontEnd]:
    """A front end on a kernel that is there."""
    # On a busy machine a kernel whose heart beats a second late is not a dead one.
    client.start_channels(hb=False)
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield FrontEnd(client, pid, interrupt)
    finally:
        client.stop_channels()


def ask_jupyter(server: Served, method: str, path: str, body: Any = None) -> Any:
    """One request to a Jupyter server's own API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data, method=method)  # noqa: S310
    request.add_header("Authorization", f"token {server.token}")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        text = answer.read()
    return json.loads(text) if text else None


@contextmanager
def served_notebook(server: Served, path: str) -> Iterator[tuple[FrontEnd, str, str]]:
    """A notebook that a Jupyter server has opened; the ids of its session and of its kernel."""
    asked = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
    session = ask_jupyter(server, "POST", "/api/sessions", asked)
    kernel = session["kernel"]["id"]
    file = server.places.root / "runtime" / f"kernel-{kernel}.json"
    client = BlockingKernelClient()
    client.load_connection_file(str(until(lambda: file.exists() and file, "the kernel starts")))
    with attached(client, 0, lambda: None) as front_end:
        front_end.pid = int(front_end.value("import os; os.getpid()"))
        front_end.interrupt = lambda: os.kill(front_end.pid, signal.SIGINT)
        assert not front_end.run(LOAD).error
        yield front_end, session["id"], kernel


def ended(places: Places, run_id: str) -> str:
    """How a run has ended, as its directory says, once it does."""

    def end() -> Any:
        return json.loads((places.runs / run_id / "summary.json").read_text()).get("end")

    return str(until(end, f"{run_id} ends"))
