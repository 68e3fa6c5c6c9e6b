"""Full disks, limits and floods: what breaks around a gate, and what continues."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.real_server import Answer, Places, Served, until

MB = 1 << 20


# -- the disk -------------------------------------------------------------------------------------


class SmallDisk:
    """A file system of a few megabytes that can be filled to the last byte."""

    def __init__(self, path: Path, size_mb: int) -> None:
        self.path = path
        path.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0700", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")

    def fill(self) -> None:
        with suppress(OSError), (self.path / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass

    def empty(self) -> None:
        (self.path / "ballast").unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture
def small_disk(places: Places) -> Iterator[Callable[[str], SmallDisk]]:
    """Make a small disk; whatever uses it ends first."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disks: list[SmallDisk] = []

    def make(name: str) -> SmallDisk:
        disks.append(SmallDisk(places.root / name, 4))
        return disks[-1]

    yield make
    for disk in disks:
        disk.unmount()


def refused(server: Served, words: str) -> Answer:
    """Submit until it is refused, as a full disk has it; what was taken before is not lost."""
    body = {"name": "refused", "source": "pass"}
    answer: Answer = until(
        lambda: (a := server.ask("POST", "/runs", body)).status != 202 and a, "a submit is refused"
    )
    assert answer.status == 503
    assert words in answer.json["message"]
    return answer


def prints(release: Path) -> str:
    """A cell that prints a lot until a file appears."""
    return (
        "import os, time\n"
        f"while not os.path.exists({str(release)!r}):\n"
        "    print('x' * 1000, flush=True)\n"
        "    time.sleep(0.02)\n"
    )


def test_a_full_disk_for_runs_refuses_submits_and_harms_no_run(
    start: Callable[..., Served], small_disk: Callable[[str], SmallDisk], tmp_path: Path
) -> None:
    """With no room for run directories submits are refused with the reason, live runs go on and
    end, and nothing half-written is left or read; with room again all goes on by itself.
    """
    disk = small_disk("run-directories")
    options = f"--GpuGate.runs_directory={disk.path / 'runs'}"
    server = start(options)
    releases = [tmp_path / "first", tmp_path / "second"]
    first, second = (server.submit("live", prints(release)) for release in releases)
    server.active(first)
    server.active(second)
    server.ask("POST", "/drain", {})
    waits = server.submit("waits", "print('began')")
    disk.fill()
    assert refused(server, "No space left on device").json["error"] == "disk"
    server.ask("DELETE", "/drain")  # what is granted now finds no room for its attempt
    until(lambda: server.run(waits)["phase"] == "granted", "it may start")
    tick = server.queue()["tick"]
    until(lambda: server.queue()["tick"] > tick + 2, "time has passed")
    releases[0].touch()
    tail = server.output(second)
    assert server.run(second)["phase"] == "running"
    assert server.run(waits)["end"] is None

    disk.empty()
    assert server.ended(first)["end"] == "completed"
    assert server.ended(waits)["end"] == "completed"
    assert server.output(waits) == "began\n"
    until(lambda: server.output(second) != tail, "output is kept again")
    server.completed("after", "pass")
    releases[1].touch()
    assert server.ended(second)["end"] == "completed"

    server.kill()
    server = start(options)
    rows = server.ask("GET", "/runs").json["runs"]
    assert {row["end"] for row in rows} == {"completed"}
    assert {first, second, waits} <= {row["run_id"] for row in rows}
    leftovers = [p.name for p in (disk.path / "runs").iterdir() if p.name.startswith(".")]
    assert leftovers == []


def test_a_full_disk_for_the_journal_refuses_submits_and_harms_no_run(
    start: Callable[..., Served], small_disk: Callable[[str], SmallDisk], tmp_path: Path
) -> None:
    """While the journal cannot grow, submits are refused with the reason and nothing starts, live
    runs go on and end, and so it is for a server that starts meanwhile; with room again all goes on
    by itself, and ends that could not be written down are known.
    """
    disk = small_disk("journal")
    options = f"--GpuGate.state_directory={disk.path}"
    server = start(options)
    release = tmp_path / "release"
    live = server.submit("live", prints(release))
    server.active(live)
    server.ask("POST", "/drain", {})
    waits = server.submit("waits", "pass")
    disk.fill()
    refused(server, "disk is full")
    assert server.ask("GET", "/machine").json["journal_fault"]
    server.ask("DELETE", "/drain")
    release.touch()
    assert server.ended(live)["end"] == "completed"
    assert server.run(waits)["attempt"] == 0
    assert waits in [row["run_id"] for row in server.queue()["queued"]]

    server.kill()
    server = start(options)
    refused(server, "disk is full")
    assert server.run(live)["end"] == "completed"
    assert waits in [row["run_id"] for row in server.queue()["queued"]]

    disk.empty()
    server.ask("DELETE", "/drain")
    server.completed("after", "pass")
    assert server.ended(waits)["end"] == "completed"
    assert server.queue()["queued"] == server.queue()["running"] == []
    story = server.ask("GET", f"/runs/{live}/story").json["story"]
    ends = [entry["end"]["outcome"] for entry in story if entry["event"] == "finished"]
    assert ends == ["completed"]


# -- runs that take too long, or are too many -----------------------------------------------------


def test_a_run_that_outlives_its_time_limit_is_stopped(shared_server: Served) -> None:
    """A time limit counts from the start and ends the run as failed, with the reason time_limit."""
    source = "import time\nprint('up', flush=True)\ntime.sleep(1000)"
    row = shared_server.ended(shared_server.submit("long", source, time_limit_s=1))
    assert (row["end"], row["exit_reason"]) == ("failed", "time_limit")
    assert shared_server.output(row["run_id"]) == "up\n"


SLOW_START = """
import json, pathlib, time
from jupyter_gpugate.runs import directory
make, release = directory.create_attempt, pathlib.Path({release!r})
def slowly(path, *rest):
    name = json.loads((path / "spec.json").read_text())["name"]
    while name == "slow" and not release.exists():
        time.sleep(0.02)
    return make(path, *rest)
directory.create_attempt = slowly
"""


@pytest.mark.behaviour(127)
def test_a_start_that_takes_for_ever_holds_up_nobody(
    places: Places, start: Callable[..., Served]
) -> None:
    """While the disk keeps one run from starting, others are queued, started and ended."""
    release = places.root / "release"
    config = places.root / "config" / "jupyter_server_config.py"
    config.parent.mkdir()
    config.write_text(SLOW_START.format(release=str(release)))
    server = start()
    slow = server.submit("slow", "print('at last')")
    until(lambda: server.run(slow)["phase"] == "granted", "it may start")
    for n in range(3):
        server.completed(f"quick-{n}", "pass")
    assert server.run(slow)["end"] is None
    release.touch()
    assert server.ended(slow)["end"] == "completed"
    assert server.output(slow) == "at last\n"


@pytest.mark.behaviour(122)
def test_a_cancel_stops_the_run_that_was_meant(shared_server: Served, tmp_path: Path) -> None:
    """Of runs alike only the cancelled one is stopped, and the gate goes on starting others."""
    release = tmp_path / "release"
    runs = [shared_server.submit("alike", prints(release)) for _ in range(3)]
    for run in runs:
        shared_server.active(run)
    assert shared_server.ask("POST", f"/runs/{runs[1]}/cancel").json["end"] == "cancelled"
    tick = shared_server.queue()["tick"]
    until(lambda: shared_server.queue()["tick"] > tick + 1, "the gate ticks on")
    shared_server.completed("after", "pass")
    assert [shared_server.run(run)["phase"] for run in runs] == ["running", None, "running"]
    release.touch()
    ends = [shared_server.ended(run)["end"] for run in runs]
    assert ends == ["completed", "cancelled", "completed"]


@pytest.mark.behaviour(124)
def test_every_way_out_gives_back_what_was_reserved(shared_server: Served, tmp_path: Path) -> None:
    """Completed, failed, cancelled, lost and never started: nothing stays charged or listed."""
    server = shared_server
    never = tmp_path / "never"
    server.completed("completes", "pass")
    assert server.ended(server.submit("fails", "1 / 0"))["end"] == "failed"
    cancelled, lost = (server.submit("live", prints(never)) for _ in range(2))
    server.active(cancelled)
    os.kill(server.active(lost)["pid"], 9)
    server.ask("POST", f"/runs/{cancelled}/cancel")
    assert server.ended(lost)["end"] == "lost"
    server.ask("POST", "/drain", {})
    blocked = server.submit("blocked", "pass")
    attempts = server.places.runs / blocked / "attempts"
    attempts.rmdir()
    attempts.touch()  # no attempt can be made there: the grant cannot be used
    server.ask("DELETE", "/drain")
    row = server.ended(blocked)
    assert (row["end"], "cannot be started" in row["exit_reason"]) == ("failed", True)

    def all_is_given_back() -> bool:
        snapshot = server.queue()
        rows = [*snapshot["running"], *snapshot["queued"]]
        return not rows and not any(snapshot["reservations"].values())

    until(all_is_given_back, "nothing is reserved and nobody is listed")


@pytest.mark.behaviour(132)
def test_a_run_that_waits_too_long_expires(shared_server: Served) -> None:
    """A run that did not start in time expires without any attempt, and says what it waited for."""
    shared_server.ask("POST", "/drain", {"reason": "a new disk"})
    patient = shared_server.submit("patient", "pass")
    row = shared_server.ended(shared_server.submit("impatient", "pass", max_wait_s=0.5))
    assert (row["end"], row["attempt"]) == ("expired", 0)
    assert row["exit_reason"] == "max_wait: your gate starts no new runs (a new disk)"
    assert shared_server.run(patient)["status"] == "queued"
    shared_server.ask("DELETE", "/drain")
    assert shared_server.ended(patient)["end"] == "completed"


def test_a_flood_of_submits_is_bounded(start: Callable[..., Served]) -> None:
    """Of one user so many runs may wait: more are told to come again, and those taken are kept."""
    server = start("--GpuGate.max_queued_per_user=40")
    server.ask("POST", "/drain", {})
    answers: list[Answer] = []
    lock = threading.Lock()

    def submit(number: int) -> None:
        answer = server.ask("POST", "/runs", {"name": f"run-{number}", "source": "pass"})
        with lock:
            answers.append(answer)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, range(45)))
    taken = [answer.json["run_id"] for answer in answers if answer.status == 202]
    others = [answer for answer in answers if answer.status != 202]
    assert (len(taken), len(others)) == (40, 5)
    for answer in others:
        assert (answer.status, answer.json["error"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) > 0
    queued = [row["run_id"] for row in server.queue()["queued"]]
    assert sorted(queued) == sorted(taken)
    listed = [row["run_id"] for row in server.ask("GET", "/runs?limit=1000").json["runs"]]
    assert sorted(listed) == sorted(taken)
    assert len(list(server.places.runs.glob("2*"))) == 40
    assert server.ask("POST", f"/runs/{queued[0]}/cancel").json["means"] == "withdrawn"
    assert server.ask("POST", "/runs", {"name": "again", "source": "pass"}).status == 202
