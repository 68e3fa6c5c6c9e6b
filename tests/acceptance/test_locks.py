"""Memory that is kept for work by hand: locks, from a notebook."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import GB, StandIn
from tests.kit.real_server import Served, until
from tests.kit.user_notebook import UserNotebook


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
    assert said.startswith("the machine is locked: for 60 min, or until this kernel ends")
    run_id = server.submit("patient", "print('its turn')")
    reason = server.waiting(run_id, "lock")["reasons"][0]
    assert "locked" in reason["message"]
    assert "the machine is locked by" in notebook.run("%gpu_queue").text
    assert notebook.run("%gpu_release").text.strip() == "the machine is no longer locked"
    assert server.ended(run_id)["end"] == "completed"


def test_a_terminal_gives_a_forgotten_lock_back(notebook: UserNotebook, server: Served) -> None:
    """Whoever waits at a terminal for a lock of their own can open it there."""
    notebook.run("%gpu_lock")
    command = [sys.executable, "-m", "jupyter_gpugate", "release"]
    done = subprocess.run(
        command, env=server.places.environ(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "the machine is no longer locked\n"
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
        ("%gpu_lock --time soon", "write 90s, 30m or 4h"),
        ("%gpu_release 7", "no device '7' here"),
    ],
)
def test_a_mistake_in_a_lock_is_one_line(notebook: UserNotebook, line: str, words: str) -> None:
    """A device that is not there, or a time that cannot be, is refused with what can."""
    assert words in notebook.refused(line)


def test_a_panel_says_the_same_where_there_are_no_widgets(notebook: UserNotebook) -> None:
    """The panel carries the queue as text and HTML beside its widget."""
    shown = notebook.run("%gpu_panel")
    assert "no run is active and none is waiting" in shown.text


def test_a_number_names_the_board_that_is_there(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """A board that moved up is locked by its number, not the missing one that had it before."""
    middle, last = stand_in.gpu(24 * GB), stand_in.gpu(24 * GB)
    server = start()
    until(lambda: len(server.queue()["devices"]) == 3, "all three are known")
    stand_in.remove(middle)
    until(lambda: states(server)[middle] == "missing", "the middle one is missing")
    names = [device["name"] for device in server.queue()["devices"]]
    assert len(set(names)) == len(names)
    answer = server.ask("POST", "/lock", {"resource": "1"})
    assert (answer.status, answer.json["locked"]) == (200, last)
    assert states(server) == {stand_in.uuid(0): "ok", middle: "missing", last: "lock"}
    assert server.ask("DELETE", "/lock?resource=1").json["unlocked"] == last
    refused = server.ask("DELETE", "/machine?forget=1")
    assert refused.status == 400
    assert set(refused.json["detail"]["candidates"]) == {middle, last}
    assert server.ask("DELETE", f"/machine?forget={middle}").json == {"forgotten": middle}


def states(server: Served) -> dict[str, str]:
    """How each device stands."""
    return {device["uuid"]: device["state"] for device in server.queue()["devices"]}


def test_a_lock_on_a_board_keeps_runs_off_its_slices(
    tmp_path: Path, stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """A board that is cut into slices is closed with all of them, and one with none is refused."""
    board = stand_in.uuid(0)
    stand_in.change(board, mig=1)
    part = stand_in.mig_slice(board, 10 * GB)
    stand_in.gpu(24 * GB, mig=1)
    server = start()
    until(lambda: states(server) == {part: "ok"}, "the slice is known")
    go_on = tmp_path / "go on"
    source = f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.1)"
    live = server.submit("before", source, gpus=1)
    server.active(live)
    answer = server.ask("POST", "/lock", {"resource": "0"}).json
    assert (answer["closes"], answer["at_work"]) == ([part], [{"run_id": live, "name": "before"}])
    waits = server.submit("after", "pass", gpus=1)
    server.waiting(waits, "lock")
    assert server.ask("POST", "/lock", {"resource": "1"}).status == 409
    go_on.touch()
    server.ended(live)
    assert server.run(waits)["status"] == "queued"
    assert server.ask("DELETE", "/lock").json["unlocked"] == board
    assert server.ended(waits)["end"] == "completed"


def test_a_lock_says_which_runs_it_finds_at_work(tmp_path: Path, notebook: UserNotebook) -> None:
    """Whoever locks the machine is told that a run still uses it, and whose runs are kept off."""
    go_on = tmp_path / "go on"
    cell = f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.1)"
    notebook.run(f"%%gated_eval busy --gpus 0 --detach\n{cell}")
    until(lambda: "running" in notebook.run("%gpu_queue").text, "it runs")
    said = notebook.run("%gpu_lock").text
    assert "is locked: for" in said
    assert "Still running there: " in said
    assert "(busy)" in said
    go_on.touch()
    until(lambda: "at work" not in notebook.run("%gpu_lock").text, "it has ended")
    assert "is no longer locked" in notebook.run("%gpu_release").text
    assert "was not locked" in notebook.run("%gpu_release").text
