"""A gate that lives in one cgroup serves notebooks of others, each under its own limit."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml import GB
from tests.kit.real_server import Places, until

V1 = Path("/sys/fs/cgroup/memory")
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@pytest.fixture
def small(places: Places) -> Iterator[Path]:
    """A memory cgroup of 3 GB; this needs root and a tree that may be written."""
    root = V1 if V1.is_dir() else Path("/sys/fs/cgroup")
    limit = "memory.limit_in_bytes" if V1.is_dir() else "memory.max"
    folder = root / f"gpugate-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(3 * GB))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield folder
    until(lambda: is_emptied(folder, places), "nothing is left in the cgroup")


def is_emptied(folder: Path, places: Places) -> bool:
    """Kill what the test left in its cgroup, and remove that; True once it is gone."""
    for pid in map(int, (folder / "cgroup.procs").read_text().split()):
        with suppress(OSError):
            if str(places.runtime).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def gpugate(places: Places, cgroup: Path | None, *words: str) -> Any:
    """What a command of a terminal in a cgroup prints as JSON."""
    command = [sys.executable, "-m", "jupyter_gpugate", *words]
    done = subprocess.run(
        command if cgroup is None else ["sh", "-c", JOIN, cgroup, *command],
        env=places.environ(),
        cwd=places.notebooks,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_a_run_lives_under_its_notebooks_limit_and_is_admitted_by_it(
    places: Places, small: Path
) -> None:
    """The gate is outside: what does not fit the notebook's cgroup waits, and says for whose."""
    gpugate(places, None, "queue", "--json")
    run = ("run", "small", "--gpus", "0", "--json")
    ended = gpugate(places, small, *run, "--", "cat", "/proc/self/cgroup")
    assert ended["end"] == "completed"
    assert small.name in ended["output_tail"]
    waiting = gpugate(places, small, *run, "--hint-ram", "4GB", "--max-wait", "3s", "--", "true")
    assert waiting["end"] == "expired"
    assert (
        f"the limit of cgroup /{small.name}, in which its notebook runs" in waiting["exit_reason"]
    )


def test_the_gates_cgroup_does_not_bind_other_notebooks(places: Places, small: Path) -> None:
    """A gate that somebody started in a small session starts what fits the machine."""
    gpugate(places, small, "queue", "--json")
    run = ("run", "big", "--gpus", "0", "--hint-ram", "4GB", "--json", "--max-wait", "60s")
    ended = gpugate(places, None, *run, "--", "cat", "/proc/self/cgroup")
    assert ended["end"] == "completed"
    assert small.name not in ended["output_tail"]
