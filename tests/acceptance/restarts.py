"""Runs and hosts across restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import boot_id, start_ticks
from jupyter_gpugate.runs.processes import is_alive
from tests.kit.real_server import Served, until


class Notes:
    """Files by which the cells of a test say that they ran, and are told to end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ran = root / "ran"

    def cell(self, name: str, more: str = "") -> str:
        """A cell that says that it runs, prints without end, and ends when it is told to."""
        return (
            "import os, time\n"
            f"with open({str(self._ran)!r}, 'a') as ran:\n"
            "    ran.write(os.environ['GPUGATE_RUN_ID'] + '\\n')\n"
            f"{more}\n"
            "print(os.environ.get('MARK'), flush=True)\n"
            f"while not os.path.exists({str(self._root / name)!r}):\n"
            "    print('.', end='', flush=True)\n"
            "    time.sleep(0.05)\n"
        )

    def path(self, name: str) -> Path:
        return self._root / name

    def end(self, *names: str) -> None:
        for name in names:
            self.path(name).touch()

    def ran(self) -> list[str]:
        """The runs that began, each time that they did, in order."""
        return self._ran.read_text().splitlines() if self._ran.exists() else []


def story_of(server: Served, run_id: str) -> list[dict[str, Any]]:
    """All that is written down of a run."""
    story: list[dict[str, Any]] = server.ask("GET", f"/runs/{run_id}/story").json["story"]
    return story


def times_told(server: Served, run_id: str, kind: str) -> int:
    """How often one thing happened to a run."""
    return sum(entry["event"] == kind for entry in story_of(server, run_id))


def first_fence(server: Served, run_id: str) -> int:
    """The fence of a run's first grant: fences only grow."""
    fences = [e["grant"]["fence"] for e in story_of(server, run_id) if e["event"] == "granted"]
    return int(fences[0])


def tree_of(server: Served, run_id: str, least: int = 2) -> list[ProcessKey]:
    """The processes of a run, its supervisor first, once the gate knows so many of them."""

    def known() -> list[ProcessKey] | None:
        rows = [r for r in server.queue().get("running", []) if r["run_id"] == run_id]
        tree = [ProcessKey(*key) for row in rows for key in row["tree"]]
        return tree if len(tree) >= least else None

    found: list[ProcessKey] = until(known, f"the tree of {run_id} is known")
    return found


def waiting_ids(server: Served) -> list[str]:
    """The queue, in its order."""
    return [row["run_id"] for row in server.queue()["queued"]]


def gone(process: ProcessKey) -> bool:
    """Whether this very process has ended."""
    return not is_alive(process)


def _as_kernel(pid: int) -> dict[str, Any]:
    ticks = start_ticks(pid)
    return {"pid": pid, "start_ticks": ticks, "boot_id": boot_id(), "notebook": "a.ipynb"}
