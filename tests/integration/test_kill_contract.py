"""Nothing of a run is left when it has ended: no process that hides, ignores, forks or lingers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.programs.supervisor.cgroups import cgroup_directory
from jupyter_gpugate.programs.supervisor.processes import stat_fields
from tests.integration.supervisor_process import (
    Attempt,
    Make,
    limited_cgroup,
    python,
    until,
)

#: Four ways out of a process group; every process of the tree turns a deaf ear to SIGTERM.
ESCAPES = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def plain(): pass
def session(): os.setsid()
def group(): os.setpgid(0, 0)
def daemon():
    os.setsid()
    if os.fork(): os._exit(0)
for escape in (plain, session, group, daemon):
    if os.fork() == 0:
        escape()
        os.write(1, b"out\\n")
        time.sleep(600)
time.sleep(600)
"""

#: A hundred deaf processes and more, each in a session of its own, started one by another.
BOMB = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for generation in range(7):
    os.fork()
os.setsid() if os.getpid() != os.getsid(0) else None
os.write(1, b"out\\n")
time.sleep(600)
"""


def without_cgroups() -> tuple[str, ...]:
    """Return the command that hides the v2 tree, so that the subreaper's loop is all there is."""
    tree = subprocess.run(
        ["findmnt", "-n", "-o", "TARGET", "-t", "cgroup2"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if not tree:
        return ()
    hide = f'umount -l {tree[0]} && exec "$@"'
    command = ("unshare", "--mount", "sh", "-c", hide, "-")
    done = subprocess.run([*command, "true"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("needs a mount namespace to hide the cgroup tree")
    return command


def lines(attempt: Attempt, count: int) -> None:
    """Wait until so many processes of the run have said that they are out."""
    until(lambda: attempt.output().count("out\n") >= count, f"{count} processes")


@pytest.mark.behaviour(13, 44)
@pytest.mark.parametrize("has_cgroup", [True, False])
def test_no_process_escapes_a_cancel(make: Make, has_cgroup: bool) -> None:
    """New session, new group, double fork, deaf to SIGTERM: after the grace all are killed."""
    before = () if has_cgroup else without_cgroups()
    attempt = make(argv=python(ESCAPES), grace_s=0.2).start(before=before)
    lines(attempt, 4)
    attempt.gate.wait_for("heartbeat", lambda beat: len(beat["tree"]) >= 6)
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"
    assert attempt.tagged() == []
    kill = attempt.outcome()["kill"]
    assert kill["means"].split(" + ")[0] == "term"
    assert kill["means"].split(" + ")[-1] == "kill"
    assert kill["ms"] >= 200
    assert kill["survivors"] == []
    if not has_cgroup:
        assert "cgroup" not in kill["means"]


def test_a_cgroup_of_the_runs_own_is_killed_whole(make: Make) -> None:
    """Where the kernel lets the run have a cgroup, all in it goes at once, and it is taken away."""
    attempt = make(argv=python(ESCAPES), grace_s=0.0).start()
    lines(attempt, 4)
    tree = attempt.gate.wait_for("heartbeat", lambda beat: len(beat["tree"]) >= 6)["tree"]
    places = Path(f"/proc/{tree[1][0]}/cgroup").read_text().splitlines()
    own = next((p.split("::")[1] for p in places if p.startswith("0::")), "")
    parent = cgroup_directory("")
    if attempt.run_id not in own or parent is None:
        pytest.skip("needs the right to make a v2 cgroup")
    cgroup = Path(parent) / Path(own).name
    with subprocess.Popen(["sleep", "600"]) as stranger:
        (cgroup / "cgroup.procs").write_text(str(stranger.pid))
        attempt.stop("cancelled")
        attempt.end()
        with contextlib.ExitStack() as stack:
            stack.callback(stranger.kill)
            until(lambda: stranger.poll() == -signal.SIGKILL, "the stranger's end")
    assert attempt.outcome()["kill"]["means"] == "term + cgroup.kill + kill"
    assert not cgroup.exists()


@pytest.mark.parametrize("has_cgroup", [True, False])
def test_a_fork_bomb_is_stopped(make: Make, has_cgroup: bool) -> None:
    """A hundred processes that start one another end with the run."""
    before = () if has_cgroup else without_cgroups()
    attempt = make(argv=python(BOMB), grace_s=0.1).start(before=before)
    lines(attempt, 128)
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"
    assert attempt.tagged() == []


@pytest.mark.parametrize("rest_s", [0, 0.005], ids=["without rest", "resting"])
def test_a_bomb_at_its_limit_is_stopped(make: Make, rest_s: float) -> None:
    """Processes that fill every free place end; their supervisor outlives the shortage."""
    bomb = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "words = [b'out\\n']\n"
        "while True:\n  try: os.fork()\n  except OSError:\n    if words: os.write(1, words.pop())\n"
        f"    time.sleep({rest_s})\n"
    )
    with limited_cgroup("pids", {"pids.max": 100}, {"pids.max": 100}) as into:
        before = (*into, *without_cgroups())
        attempt = make(argv=python(bomb), grace_s=0.0).start(before=before)
        lines(attempt, 1)
        attempt.stop("cancelled")
        assert attempt.end()["outcome"] == "cancelled"
    assert attempt.tagged() == []


def test_a_tree_that_takes_the_hint_is_not_killed(make: Make) -> None:
    """Every process of the tree gets SIGTERM and the grace to end by itself, stopped ones too."""
    tidy = (
        "import os, signal, sys, time\n"
        "def leave(*_): os.write(1, b'tidied\\n'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "child = os.fork()\n"
        "if not child: os.setsid()\n"
        "os.write(1, b'%d out\\n' % os.getpid())\n"
        "if not child: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(600)\n"
    )
    attempt = make(argv=python(tidy), grace_s=600.0).start()
    lines(attempt, 2)
    pids = [int(line.split()[0]) for line in attempt.output().splitlines()]
    until(lambda: any(stat_fields(pid)[0] == b"T" for pid in pids), "the stop")
    attempt.stop("cancelled")
    assert attempt.end()["outcome"] == "cancelled"
    assert attempt.output().count("tidied\n") == 2
    assert attempt.outcome()["kill"]["means"] == "term"


def test_a_run_lives_while_a_process_of_its_tree_lives(make: Make) -> None:
    """Idle children that the worker leaves behind are stopped before the run has ended."""
    left = (
        "import os, signal, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "def leave(*_): os.write(1, b'told\\n'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "time.sleep(600)\n"
    )
    attempt = make(argv=python(left))
    attempt.change_supervisor("IDLE_S = 300.0", "IDLE_S = 0.3")
    end = attempt.start().end()
    assert end["outcome"] == "completed"
    assert attempt.output() == "told\n"
    assert attempt.outcome()["kill"]["means"] == "term"
    assert attempt.tagged() == []


def test_what_left_the_tree_is_found_by_its_tag(make: Make) -> None:
    """A process of the run that is no descendant any more is swept up; another run's is not."""
    attempt = make(argv=python(""))
    with contextlib.ExitStack() as stack:
        swept, other = (
            stack.enter_context(subprocess.Popen(["sleep", "600"], env={"GPUGATE_RUN_ID": tag}))
            for tag in (attempt.run_id, attempt.run_id + "0")
        )
        stack.callback(other.kill)
        stack.callback(swept.kill)
        assert attempt.start().end()["outcome"] == "completed"
        until(lambda: swept.poll() == -signal.SIGKILL, "the sweep")
        assert other.poll() is None
    assert attempt.outcome()["kill"]["means"] == "sweep"


@pytest.mark.behaviour(15)
def test_workers_die_with_their_supervisor(make: Make) -> None:
    """A killed supervisor takes its workers along; the file names the rest of the tree."""
    code = (
        "import os, time\nif not os.fork():\n  os.setsid(); os.write(1, b'out\\n')\n"
        "time.sleep(600)\n"
    )
    attempt = make(argv=python(code)).start()
    lines(attempt, 1)

    def tree() -> dict[str, list[list[int]]]:
        loaded: dict[str, list[list[int]]] = json.loads((attempt.path / "tree.json").read_text())
        return loaded

    until(lambda: len(tree()["tree"]) == 2, "the tree in its file")
    worker, child = sorted(pid for pid, _ in tree()["tree"])
    os.kill(attempt.pid, signal.SIGKILL)
    until(lambda: worker not in attempt.tagged(), "the end of the worker")
    assert attempt.tagged() == [child]
    assert not (attempt.path / "_DONE").exists()


@contextlib.contextmanager
def freezer() -> Iterator[Path]:
    """Make a cgroup that holds its processes where not even a SIGKILL reaches them."""
    path = Path(f"/sys/fs/cgroup/freezer/gpugate-test-{os.getpid()}")
    try:
        path.mkdir()
        (path / "freezer.state").write_text("THAWED")
    except OSError:
        pytest.skip("needs the v1 freezer, whose processes cannot be killed")
    try:
        yield path
    finally:
        (path / "freezer.state").write_text("THAWED")
        until(lambda: not (path / "cgroup.procs").read_text(), "an empty cgroup")
        path.rmdir()


def test_what_cannot_be_killed_is_named_and_waited_for(make: Make) -> None:
    """While a killed process does not go the run has not ended, and the beats name it."""
    with freezer() as cold:
        attempt = make(argv=["sleep", "600"], grace_s=0.0).start()
        tree = attempt.gate.wait_for("heartbeat", lambda beat: len(beat["tree"]) == 2)["tree"]
        stuck = tree[1][0]
        (cold / "cgroup.procs").write_text(str(stuck))
        (cold / "freezer.state").write_text("FROZEN")
        until(lambda: (cold / "freezer.state").read_text() == "FROZEN\n", "the frost")
        attempt.stop("cancelled")
        beat = attempt.gate.wait_for("heartbeat", lambda b: "kill_pending" in b["stop_reason"])
        assert beat["phase"] == "stopping"
        assert beat["stop_reason"] == f"cancelled (kill_pending: {stuck})"
        assert not (attempt.path / "outcome.json").exists()
        (cold / "freezer.state").write_text("THAWED")
        assert attempt.end()["outcome"] == "cancelled"


def test_a_broken_supervisor_still_leaves_nothing_behind(make: Make) -> None:
    """When the supervisor itself fails, the tree is killed and the end says so."""
    attempt = make(argv=python(ESCAPES))
    attempt.change_supervisor("self.meter.look(pids)", "self.meter.look(1 / 0)")
    end = attempt.start().end()
    assert (end["outcome"], end["reason"][:29]) == ("failed", "supervisor: ZeroDivisionError")
    assert attempt.tagged() == []
