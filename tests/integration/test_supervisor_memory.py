"""The memory of a run as its supervisor measures it, and running out of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from jupyter_gpugate.programs.supervisor.cgroups import cgroup_directory, memberships
from tests.integration.supervisor_process import (
    TOUCH,
    Make,
    as_cell,
    limited_cgroup,
    needs,
    python,
    until,
)

MB = 1 << 20


@pytest.mark.parametrize("seconds", [0.3, 3.0])
def test_touched_memory_is_measured(make: Make, seconds: float) -> None:
    """The peak is what the run touched, whether it lives for 0.3 s or for 3 s."""
    attempt = make(argv=python(TOUCH % 600 + f"import time; time.sleep({seconds})"))
    peaks = attempt.start().end()["peaks"]
    assert peaks["ram_bytes"] == pytest.approx(600 * MB, rel=0.05)
    assert (peaks["ram_meter"], peaks["ram_covered"]) == ("pss", True)


def test_memory_that_is_gone_at_once_is_measured(make: Make) -> None:
    """A run that ends the moment it has touched its memory leaves its mark."""
    peaks = make(argv=python(TOUCH % 600)).start().end()["peaks"]
    assert peaks["ram_bytes"] == pytest.approx(600 * MB, rel=0.05)


def test_memory_touched_late_is_measured(make: Make) -> None:
    """A run that touches its memory in the last moment of a longer life is measured too."""
    attempt = make(argv=python("import time; time.sleep(1.5)\n" + TOUCH % 600))
    assert attempt.start().end()["peaks"]["ram_bytes"] == pytest.approx(600 * MB, rel=0.05)


def test_short_workers_add_up(make: Make, tmp_path: Path) -> None:
    """Two workers that end as soon as both hold their memory are charged for both."""
    meet = (
        "import os, pathlib, time\n"
        f"here = pathlib.Path({str(tmp_path)!r}, os.environ['GPUGATE_WORKER'])\n"
        "here.touch()\n"
        "while not all((here.parent / n).exists() for n in '01'): time.sleep(0.001)\n"
    )
    attempt = make(argv=python(TOUCH % 300 + meet), workers=2)
    peaks = attempt.start().end()["peaks"]
    assert peaks["ram_bytes"] == pytest.approx(600 * MB, rel=0.08)
    assert not peaks["ram_covered"]


def test_shared_memory_is_counted_once(make: Make) -> None:
    """Children that share their parent's pages do not multiply them."""
    forks = "import os, time\nfor _ in range(4):\n  if not os.fork(): time.sleep(600)\n"
    tells = "for i in range(6000):\n  tell('episode', index=i); time.sleep(0.1)"
    attempt = as_cell(make(), TOUCH % 200 + forks + tells).start()
    # Readings at the ends of so many episodes were not all too dear.
    beat = attempt.gate.wait_for("heartbeat", lambda b: b["episode"] >= 15)
    attempt.stop("cancelled")
    peaks = attempt.end()["peaks"]
    assert 200 * MB < beat["report"]["ram_held_bytes"] < 260 * MB
    assert peaks["ram_bytes"] < 260 * MB
    assert not peaks["ram_covered"]


def test_a_mark_covers_one_process_only(make: Make) -> None:
    """A second process, even one that the kernel buries by itself, leaves stretches unread."""
    forks = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "if not os.fork(): time.sleep(0.5); os._exit(0)\n"
        "time.sleep(1)"
    )
    end = make(argv=python(forks)).start().end()
    assert end["outcome"] == "completed"
    assert not end["peaks"]["ram_covered"]


def test_pages_of_a_mapped_file_are_shown_and_not_charged(make: Make, tmp_path: Path) -> None:
    """Reading a file through a mapping raises what is mapped, not what is held."""
    with (tmp_path / "data").open("wb") as data:
        data.truncate(200 * MB)
    reads = (
        f"import mmap, time\nfile = open({str(tmp_path / 'data')!r}, 'rb')\n"
        "seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "for at in range(0, len(seen), 4096): seen[at]\n"
        "print('read')\ntime.sleep(600)"
    )
    attempt = make(argv=python(reads)).start()
    beat = attempt.gate.wait_for(
        "heartbeat", lambda b: (b["report"]["mapped_bytes"] or 0) > 190 * MB
    )
    attempt.stop("cancelled")
    assert attempt.end()["peaks"]["ram_bytes"] < 60 * MB
    assert beat["report"]["ram_held_bytes"] < 60 * MB


def test_memory_is_read_at_the_end_of_an_episode(make: Make, tmp_path: Path) -> None:
    """The end of an episode calls for a reading of its own, beside the regular ones."""
    ends = (
        "import time\nwhile not open('go').read(): time.sleep(0.01)\n"
        "del held\ntell('episode', index=0)\ntime.sleep(600)"
    )
    go = tmp_path / "go"
    go.write_text("")
    attempt = as_cell(make(cwd=str(tmp_path)), TOUCH % 100 + ends)
    attempt.change_supervisor("READING_S = 5.0", "READING_S = 10_000.0")
    attempt.start()
    attempt.gate.wait_for("heartbeat", lambda b: (b["report"]["ram_held_bytes"] or 0) > 100 * MB)
    go.write_text("go")
    attempt.gate.wait_for(
        "heartbeat", lambda b: b["episode"] == 1 and b["report"]["ram_held_bytes"] < 60 * MB
    )
    attempt.stop("cancelled")
    attempt.end()


def test_a_frameworks_own_figures_add_up_over_workers(make: Make) -> None:
    """Peaks, held bytes and overheads of the workers are summed by device; all must have told."""
    body = (
        "import os, time\n"
        "uuid = os.environ['CUDA_VISIBLE_DEVICES']\n"
        "tell('torch', vram_peak={uuid: 300 + worker}, vram_held={uuid: 200}, overhead={uuid: 7})\n"
        "time.sleep(1)"
    )
    attempt = as_cell(make(workers=2, devices=["GPU-1"]), body).start()
    beat = attempt.gate.wait_for("heartbeat", lambda b: b["peaks"]["vram_covered"])
    assert beat["report"]["vram_held_bytes"] == {"GPU-1": 400}
    assert beat["report"]["device_overhead_bytes"] == {"GPU-1": 14}
    peaks = attempt.end()["peaks"]
    assert (peaks["vram_bytes"], peaks["vram_covered"]) == ({"GPU-1": 601}, True)


@pytest.mark.behaviour(154)
def test_a_workers_own_evidence_makes_it_oom(make: Make) -> None:
    """What the worker found out about its failure stands in the end; a survived one does not."""
    found = "tell('oom', resource='vram', evidence='own_cap')\n"
    end = as_cell(make(), found + "raise SystemExit(1)").start().end()
    assert (end["outcome"], end["oom_resource"]) == ("oom", "vram")
    assert end["oom_evidence"] == "own_cap"
    assert as_cell(make(), found).start().end()["outcome"] == "completed"


@pytest.mark.behaviour(154)
def test_a_kill_by_the_kernel_is_told_from_any_other(make: Make) -> None:
    """The same SIGKILL is an OOM when the kernel counted it in the run's cgroup."""
    limits = {"memory.limit_in_bytes": 100 * MB, "memory.memsw.limit_in_bytes": 100 * MB}
    with limited_cgroup("memory", limits, {"memory.max": 100 * MB, "memory.swap.max": 0}) as into:
        end = make(argv=python(TOUCH % 300)).start(before=into).end()
        killed = make(argv=python("import os; os.kill(os.getpid(), 9)")).start(before=into).end()
    assert (end["outcome"], end["oom_resource"]) == ("oom", "ram")
    assert (end["reason"], end["oom_evidence"]) == ("signal SIGKILL", "host_oom_killer")
    assert (killed["outcome"], killed["oom_evidence"]) == ("failed", "")


@pytest.mark.parametrize("controller", ["memory", ""])
def test_a_run_lives_in_the_cgroup_of_its_notebook(make: Make, controller: str) -> None:
    """The supervisor joins it with all of the run, in the tree of version 2 and in those of 1."""
    cgroup = f"/gpugate-joined-{os.getpid()}"
    names = [n for n in memberships("self") if controller in n.split(",")]
    folder = cgroup_directory(controller, cgroup)
    needs(bool(names and folder), "such a hierarchy")
    try:
        Path(str(folder)).mkdir()
    except OSError as error:
        pytest.skip(f"needs a cgroup that can be made: {error}")
    try:
        attempt = make(argv=["cat", "/proc/self/cgroup"], cgroups={names[0]: cgroup}).start()
        assert attempt.end()["outcome"] == "completed"
        assert cgroup in attempt.output()
    finally:
        until(lambda: removed(Path(str(folder))), "the cgroup is empty")


def removed(cgroup: Path) -> bool:
    """Remove a cgroup, which is possible once its last process has ended."""
    try:
        cgroup.rmdir()
    except OSError:
        return False
    return True


def test_a_run_that_cannot_join_a_cgroup_runs_and_says_so(make: Make) -> None:
    """One that was removed since the submit is no reason to fail."""
    gone = {"": "/gone", "memory": "/gone-too"}
    attempt = make(argv=["true"], cgroups=gone).start()
    assert attempt.end()["outcome"] == "completed"
    (warning,) = attempt.lines("messages.jsonl")
    assert warning["event"] == "warning"
    assert "could not join cgroup /gone: its limits do not bind" in warning["text"]


@pytest.mark.behaviour(154)
def test_a_bus_error_at_a_full_shared_memory_is_oom(make: Make) -> None:
    """SIGBUS while /dev/shm is full names that resource; SIGBUS alone is a failure."""
    hidden = ("unshare", "--mount", "sh", "-c")
    small = (*hidden, 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "-")
    possible = subprocess.run([*small, "true"], check=False, capture_output=True).returncode == 0
    needs(possible, "a mount namespace")
    fills = (
        "import mmap\nfile = open('/dev/shm/full', 'w+b'); file.truncate(8 << 20)\n"
        "seen = mmap.mmap(file.fileno(), 0)\n"
        "for at in range(0, len(seen), 4096): seen[at] = 1\n"
    )
    end = make(argv=python(fills)).start(before=small).end()
    assert (end["outcome"], end["oom_resource"]) == ("oom", "shm")
    assert (end["reason"], end["oom_evidence"]) == ("signal SIGBUS", "shm_full")
    raises = "import os, signal; os.kill(os.getpid(), signal.SIGBUS)"
    end = make(argv=python(raises)).start(before=small).end()
    assert (end["outcome"], end["reason"]) == ("failed", "signal SIGBUS")
