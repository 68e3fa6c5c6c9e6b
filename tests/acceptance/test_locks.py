"""Memory that is kept for work by hand: locks, from a notebook."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.served import Served, until
from tests.user_notebook import UserNotebook


@pytest.fixture
def notebook(server: Served) -> Iterator[UserNotebook]:
    """A notebook of a server of its own: a lock is everybody's business."""
    opened = UserNotebook(server)
    yield opened
    opened.close()


@pytest.mark.behaviour(22)
def test_a_lock_keeps_runs_out_until_it_is_released(notebook: UserNotebook, server: Served) -> None:
    """While a notebook has locked the machine nothing starts; its release lets the run go."""
    said = notebook.run("%gpu_lock --time 1h").text.strip()
    assert said.startswith("the machine is yours for 60 min, or until this kernel ends")
    run_id = server.submit("patient", "print('its turn')")
    reason = server.waiting(run_id, "lock")["reasons"][0]
    assert "locked" in reason["message"]
    assert "the machine is locked by" in notebook.run("%gpu_queue").text
    assert notebook.run("%gpu_release").text.strip() == "the machine is open to runs again"
    assert server.ended(run_id)["end"] == "completed"


def test_a_terminal_gives_a_forgotten_lock_back(notebook: UserNotebook, server: Served) -> None:
    """Whoever waits at a terminal for a lock of their own can open it there."""
    notebook.run("%gpu_lock")
    command = [sys.executable, "-m", "jupyter_gpugate", "release"]
    done = subprocess.run(
        command, env=server.places.environ(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "the machine is open to runs again\n"
    assert server.queue()["locks"] == []


@pytest.mark.behaviour(22)
def test_a_lock_ends_with_its_kernel(server: Served) -> None:
    """A notebook that is closed, or dies, keeps nobody out."""
    notebook = UserNotebook(server)
    notebook.run("%gpu_lock")
    run_id = server.submit("patient", "pass")
    server.waiting(run_id, "lock")
    notebook.close()
    assert server.ended(run_id)["end"] == "completed"
    until(lambda: server.queue()["locks"] == [], "the lock is gone")


def test_a_lock_of_one_device_leaves_the_machine_open(
    stand_in: object, start: Callable[..., Served]
) -> None:
    """A run with a GPU waits for the locked one, and a run that needs none starts."""
    assert stand_in
    server = start()
    notebook = UserNotebook(server)
    notebook.run("%gpu_lock 0")
    waits = server.submit("gpu", "pass", gpus=1)
    server.waiting(waits, "lock")
    server.completed("cpu", "pass", gpus=0)
    notebook.run("%gpu_release 0")
    assert server.ended(waits)["end"] == "completed"
    notebook.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%gpu_lock 7", "no device '7' here"),
        ("%gpu_lock --time 3h", "2h at most"),
        ("%gpu_lock --time soon", "such as 90s, 30m or 4h"),
        ("%gpu_release 7", "no device '7' here"),
    ],
)
def test_a_mistake_in_a_lock_is_one_line(notebook: UserNotebook, line: str, words: str) -> None:
    """A device that is not there, or a time that cannot be, is refused with what can."""
    assert words in notebook.refused(line)


def test_a_panel_says_the_same_where_there_are_no_widgets(notebook: UserNotebook) -> None:
    """The panel carries the queue as text and HTML beside its widget."""
    shown = notebook.run("%gpu_panel")
    assert "no run is live and none is waiting" in shown.text
