"""Runs that ran out of GPU memory are tried again once, through a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.evaluations import MB, vram
from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.external_processes import external_process
from tests.kit.real_server import PATIENCE_S, Served, until
from tests.kit.torch_with_memory import install
from tests.kit.user_notebook import UserNotebook


def needs(gb: float, library: Path) -> str:
    """A torch cell of ten episodes that keeps each, and needs more memory from the sixth on."""
    return install(library) + (
        "for e in episodes:\n"
        "    if e.index == len(episodes) // 2:\n"
        f"        torch.cuda.allocate({int(gb * GB)})\n"
        "    print('episode', e.index, flush=True)\n"
        "    e.keep(e.index)\n"
        "found = episodes.values\n"
    )


def pushed_out(holds: Path, go_on: Path) -> str:
    """A program that takes 5 GB, then waits for a file, and then needs 12 GB."""
    return (
        "import os, runpy, time\n"
        f"hold = runpy.run_path({str(HOLDER)!r})['hold_gpu']\n"
        "print('begins', flush=True)\n"
        f"hold(0, {5 * GB})\n"
        "time.sleep(2.5)  # long enough for the gate to see it once\n"
        f"open({str(holds)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.05)\n"
        f"hold(0, {12 * GB})\n"
        "time.sleep(2.5)\n"
        "print('done', flush=True)\n"
    )


@pytest.mark.behaviour(155, 170)
@pytest.mark.usefixtures("stand_in")
def test_a_run_that_hit_its_cap_is_tried_again_with_more_and_keeps_its_episodes(
    server: Served, tmp_path: Path
) -> None:
    """Its own cap is the evidence; the second attempt is charged half as much more, goes on at the
    sixth episode, and says so; what the first one has shown is the need from then on.
    """
    cell = needs(4, tmp_path / "library")
    hint = {"vram_bytes": int(3.5 * GB), "ram_bytes": GB}
    run = server.submit("hinted", cell, episodes=10, outputs=["found"], hints=hint)
    row = server.ended(run)
    assert (row["end"], row["attempt"]) == ("completed", 2), server.output(run)
    cap = int(3.5 * GB) + -(-35 * GB // 100) + 64 * MB
    retry = row["retry"]
    assert (retry["cause"], retry["at_bytes"]) == ("own_cap", pytest.approx(cap, abs=1))
    assert retry["charge_bytes"] == vram(row["charges"]) == pytest.approx(1.5 * cap, abs=2)
    episodes = server.ask("GET", f"/runs/{run}/episodes").json["episodes"]
    told = [(e["attempt"], e["index"]) for e in episodes]
    assert told == [(1, n) for n in range(5)] + [(2, n) for n in range(5, 10)]
    assert row["episodes"] == {"done": 10, "of": 10}
    assert server.output(run).split() == [w for n in range(5, 10) for w in ("episode", str(n))]


@pytest.mark.behaviour(155, 170)
@pytest.mark.usefixtures("stand_in")
def test_a_second_end_out_of_memory_is_the_end(server: Served, tmp_path: Path) -> None:
    """One retry, with no more than the device has; the run then ends out of memory, with its second
    cap as the evidence.
    """
    cell = needs(30, tmp_path / "library")
    run = server.submit("greedy", cell, episodes=10, hints={"vram_bytes": 17 * GB})
    row = server.ended(run)
    assert (row["end"], row["attempt"]) == ("oom", 2)
    ceiling = 24 * GB - 256 * MB
    assert row["retry"]["charge_bytes"] == vram(row["charges"]) == ceiling
    assert row["oom_evidence"] == "own_cap"
    story = [e["event"] for e in server.ask("GET", f"/runs/{run}/story").json["story"]]
    assert story.count("granted") == story.count("finished") == 2


@pytest.mark.behaviour(170)
def test_a_program_that_others_pushed_out_is_tried_again_with_the_same_charge(
    server: Served, stand_in: StandIn, tmp_path: Path
) -> None:
    """Somebody outside took what was reserved for it: it waits for that, and completes."""
    uuid, go_on = stand_in.uuid(0), tmp_path / "go on"
    program = pushed_out(tmp_path / "holds", go_on)
    with external_process() as greedy:
        body = {"argv": ["python", "-c", program], "hints": {"vram_bytes": 14 * GB}}
        answer = server.ask("POST", "/runs", {"name": "victim", **body})
        run = answer.json["run_id"]
        server.active(run)
        until(lambda: server.run(run)["held"].get(uuid) == 5 * GB, "it holds its first part")
        charge = vram(server.run(run)["charges"])
        stand_in.hold(greedy, uuid, 16 * GB)
        until(lambda: server.queue()["free_bytes"][uuid] == 3 * GB, "the growth is seen")
        go_on.touch()
        row = until(lambda: (r := server.run(run))["retry"] and r, "it is to be tried again")
        assert (row["status"], row["attempt"]) == ("queued", 1)
        assert (row["retry"]["cause"], row["retry"]["at_bytes"]) == ("pushed_out", 16 * GB)
        stand_in.hold(greedy, uuid, 0)
        row = server.ended(run)
    assert (row["end"], row["attempt"]) == ("completed", 2), server.output(run)
    assert row["retry"]["charge_bytes"] == vram(row["charges"]) == charge


@pytest.mark.behaviour(170)
@pytest.mark.usefixtures("stand_in")
def test_a_card_says_in_one_sentence_that_the_run_was_tried_again(
    server: Served, tmp_path: Path
) -> None:
    """The cap that was hit and the new reservation, on the card of the cell that has completed."""
    notebook = UserNotebook(server)
    options = "--episodes 10 --hint-vram 3584MB --hint-ram 1GB"
    shown = notebook.run(f"%%gated_eval hinted {options}\n{needs(4, tmp_path / 'library')}")
    assert "completed" in shown.text
    assert "its cap of 4,006 MB was hit; retried with 6,010 MB" in shown.text
    notebook.close()


@pytest.mark.behaviour(170)
def test_the_terminal_says_that_the_run_is_tried_again(
    server: Served, stand_in: StandIn, tmp_path: Path
) -> None:
    """As soon as it waits for that; the output of both attempts is passed on."""
    go_on, holds = tmp_path / "go on", tmp_path / "holds"
    program = tmp_path / "victim.py"
    program.write_text(pushed_out(holds, go_on))
    command = ("--", sys.executable, str(program))
    words = ("-m", "jupyter_gpugate", "run", "victim", "--hint-vram", "14GB", *command)
    with (
        external_process() as greedy,
        subprocess.Popen(
            [sys.executable, *words],
            env=server.places.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as terminal,
    ):
        assert terminal.stderr is not None
        until(holds.exists, "it holds its first part")
        stand_in.hold(greedy, 0, 16 * GB)
        go_on.touch()
        said = next((line for line in terminal.stderr if "to be retried" in line), "nothing")
        stand_in.hold(greedy, 0, 0)
        output, _ = terminal.communicate(timeout=PATIENCE_S)
    assert "others took 16,384 MB of GPU 0 (NVIDIA L4) while it ran; to be retried with" in said
    assert terminal.returncode == 0
    assert [w for w in output.split() if w in {"begins", "done"}] == ["begins", "begins", "done"]


@pytest.mark.behaviour(170)
@pytest.mark.usefixtures("stand_in")
def test_a_retry_survives_the_death_of_the_server(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    """The next server knows that the run waits to be tried again, and with how much."""
    server, go_on = start(), tmp_path / "go on"
    wait = f"while not os.path.exists({str(go_on)!r}): time.sleep(0.05)\n"
    cell = wait + needs(4, tmp_path / "library")
    run = server.submit("hinted", f"import os, time\n{cell}", hints={"vram_bytes": 3 * GB})
    server.active(run)
    server.ask("POST", "/drain", {"reason": "to keep the second attempt waiting"})
    go_on.touch()
    before = until(lambda: (row := server.run(run))["retry"] and row, "it is to be tried again")
    server.kill()
    server = start()
    row = server.waiting(run, "drain")
    assert (row["attempt"], row["retry"]) == (1, before["retry"])
    server.ask("DELETE", "/drain")
    row = server.ended(run)
    assert (row["end"], row["attempt"]) == ("completed", 2), server.output(run)
    assert row["retry"]["charge_bytes"] == vram(row["charges"])
