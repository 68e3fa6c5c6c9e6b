"""Kernels that end while their runs wait or run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.interrupted_cells import gone, waiting_cell
from tests.kit.controlled_runs import ControlledRun, drained
from tests.kit.front_end import FrontEnd, ask_jupyter, notebook, served_notebook
from tests.kit.real_server import Served

# -- what the kernel's end does -----------------------------------------------------------------


def end_kernel(server: Served, how: str, front_end: FrontEnd, session: str, kernel: str) -> None:
    """End a kernel as a crash, or a person at JupyterLab, does."""
    if how == "killed":
        os.kill(front_end.pid, signal.SIGKILL)
    elif how == "restarted":
        ask_jupyter(server, "POST", f"/api/kernels/{kernel}/restart", {})
    else:
        ask_jupyter(server, "DELETE", f"/api/sessions/{session}")
    gone(front_end.pid)


@pytest.mark.behaviour(133)
@pytest.mark.parametrize("how", ["killed", "restarted", "closed"])
def test_a_kernel_that_ends_takes_its_waiting_run_along_and_no_other(
    shared_server: Served, how: str
) -> None:
    """Killed, restarted or closed in the middle of a waiting cell: its queued run is withdrawn,
    what it had detached stays queued.
    """
    server = shared_server
    detached, waits = (
        ControlledRun(server.places, "detached"),
        ControlledRun(server.places, "waits"),
    )
    with drained(server):
        with served_notebook(server, f"{how}.ipynb") as (front_end, session, kernel):
            stays = front_end.run_id(front_end.run(detached.source("--detach")))
            _, run_id = waiting_cell(server, front_end, waits)
            end_kernel(server, how, front_end, session, kernel)
        row = server.ended(run_id)
        assert row["end"] == "cancelled"
        assert row["exit_reason"] == "the notebook's kernel is gone"
        server.waiting(stays, "drain")
        server.ask("POST", f"/runs/{stays}/cancel")
    assert (waits.times_begun(), detached.times_begun()) == (0, 0)


@pytest.mark.behaviour(15)
@pytest.mark.parametrize("how", ["killed", "restarted", "closed"])
def test_a_live_run_goes_on_without_the_kernel_that_waits_for_it(
    shared_server: Served, how: str
) -> None:
    """Killed, restarted or closed in the middle of a waiting cell: a run that has begun ends by
    itself.
    """
    work = ControlledRun(shared_server.places, "goes-on")
    with served_notebook(shared_server, f"live-{how}.ipynb") as (front_end, session, kernel):
        cell = front_end.start(work.source())
        work.begins()
        run_id = front_end.run_id(cell)
        end_kernel(shared_server, how, front_end, session, kernel)
    work.end()
    assert shared_server.ended(run_id)["end"] == "completed"
    assert work.times_begun() == 1


def test_a_kernel_of_another_machine_is_told_so(shared_server: Served, tmp_path: Path) -> None:
    """A kernel with another boot id than its gate is refused in one line, and nothing is queued."""
    other = tmp_path / "boot_id"
    other.write_text("00000000-0000-4000-8000-000000000000\n")
    mount = f'mount --bind {other} /proc/sys/kernel/random/boot_id && exec "$@"'
    before = ("unshare", "-m", "sh", "-c", mount, "sh")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    runs = len(list(shared_server.places.runs.glob("2*")))
    with notebook(shared_server.places, *before) as front_end:
        cell = front_end.run("%%gated_eval far\nx = 1")
        assert cell.printed.startswith("UsageError: this notebook's kernel runs on another machine")
    assert len(list(shared_server.places.runs.glob("2*"))) == runs
