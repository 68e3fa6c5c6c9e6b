"""Prints the demonstration: cells with their output, commands, and a few sentences."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import nbformat
from demo_server import PATIENCE_S, DemoError, ServedKernel, Server
from nbclient import NotebookClient
from nbclient.exceptions import (
    CellControlSignal,
    CellExecutionError,
    CellTimeoutError,
    DeadKernelError,
)

#: Short phases: their cards would only fill the screen.
FLEETING = (
    "reading your sources",
    "submitting to the gate",
    "about to start",
    "starting",
    "ending",
)


class Teller(NotebookClient):
    """Runs cells in a kernel of the server and prints their output as it arrives."""

    def __init__(self, server: Server, name: str, cells: list[Any]) -> None:
        made: Any = nbformat.v4
        kernel: Any = ServedKernel(server, name)
        super().__init__(made.new_notebook(cells=cells), km=kernel, timeout=int(PATIENCE_S))
        self.when_waiting: Callable[[], None] | None = None
        self._shown: dict[str, str] = {}
        self._bodies: set[str] = set()

    def tell(self) -> None:
        """Run every cell; raise `DemoError` with the error of a cell."""
        with self.setup_kernel(cleanup_kc=True):
            for index, cell in enumerate(self.nb.cells):
                if cell.cell_type == "code":
                    self._print_source(cell.source)
                    self._execute(cell, index)

    def _execute(self, cell: Any, index: int) -> None:
        try:
            self.execute_cell(cell, index)
        except CellTimeoutError as error:
            raise DemoError(f"not over in {self.timeout} s; the last card says why") from error
        except (CellControlSignal, CellExecutionError, DeadKernelError) as error:
            raise DemoError(f"a cell failed: {error}") from error

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        kind, content = msg["msg_type"], msg["content"]
        shown = super().process_message(msg, cell, cell_index)
        if kind == "stream":
            self._print(content["text"])
        elif kind in ("display_data", "update_display_data", "execute_result"):
            self._show(content)
        return shown

    def _show(self, content: Mapping[str, Any]) -> None:
        text = content["data"].get("text/plain", "")
        title, *rows = text.splitlines() or [""]
        # Of one card: its name, its state, and the number of finished episodes.
        news = "\n".join([title, *(row for row in rows if row.startswith("  episodes"))])
        display = content.get("transient", {}).get("display_id")
        if display and (self._shown.get(display) == news or any(w in title for w in FLEETING)):
            return
        if display:
            self._shown[display] = news
        self._print(text)
        act = self.when_waiting
        if act is not None and "· waiting" in title:
            self.when_waiting = None
            act()

    def _print_source(self, source: str) -> None:
        first, _, body = source.partition("\n")
        lines = [first, "... as above"] if body and body in self._bodies else source.splitlines()
        self._bodies.add(body)
        print("\n".join(f"  | {line}" for line in lines), end="\n\n", flush=True)

    def _print(self, text: str) -> None:
        print(textwrap.indent(text.rstrip("\n"), "    "), end="\n\n", flush=True)


def heading(text: str) -> None:
    """Print the heading of a part."""
    print(f"\n== {text} ==\n", flush=True)


def note(text: str) -> None:
    """Print a few sentences between the messages of the gate."""
    print(textwrap.fill(text, 96), end="\n\n", flush=True)


def terminal(server: Server, verb: str) -> None:
    """Run ``jupyter gpugate VERB`` as this server's user would, and print its output."""
    command = [sys.executable, "-m", "jupyter_gpugate", verb]
    done = subprocess.run(
        command, env=server.environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    if done.returncode:
        raise DemoError(f"`jupyter gpugate {verb}` failed: {done.stderr}")
    print(f"  $ jupyter gpugate {verb}\n{textwrap.indent(done.stdout, '    ')}", flush=True)
