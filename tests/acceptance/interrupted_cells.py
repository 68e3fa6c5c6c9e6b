"""Cells that wait, to be interrupted."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.kit.controlled_runs import ControlledRun
from tests.kit.front_end import Cell, FrontEnd
from tests.kit.real_server import Served, until


def waiting_cell(
    server: Served, front_end: FrontEnd, work: ControlledRun, options: str = "--output x"
) -> tuple[Cell, str]:
    """Start a cell that waits in the queue; itself and its run."""
    cell = front_end.start(work.source(options))
    run_id = front_end.run_id(cell)
    server.waiting(run_id, "drain")
    return cell, run_id


def answers(front_end: FrontEnd) -> bool:
    """Whether the kernel goes on after a cell."""
    return front_end.value("1+1") == "2"


def story(server: Served, run_id: str, kind: str) -> list[dict[str, Any]]:
    """What happened of one kind to a run at the gate."""
    entries = server.ask("GET", f"/runs/{run_id}/story").json["story"]
    return [entry for entry in entries if entry["event"] == kind]


def gone(pid: int) -> None:
    """Wait until a process has ended, or is nobody's any more than its parent's to bury."""

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    until(is_gone, f"{pid} ends")


def pending(pid: int) -> bool:
    """Whether a SIGINT waits to be taken by a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    bit = 1 << (signal.SIGINT - 1)
    return any(int(fields[name], 16) & bit for name in ("SigPnd", "ShdPnd"))
