"""Run directories for tests: made by the real functions, below a temporary folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.runs import directory, scanning

RUN_ID = "20260102-030405-abcde"
ENVIRONMENT = {"PATH": "/bin", "API_KEY": "secret", "ODD": "\udcff"}
END = to_json(EndReport(AttemptOutcome.COMPLETED, exit_code=0, episodes_done=3))


def spec(run_id: str = RUN_ID, **more: Any) -> dict[str, Any]:
    """Return as much of a spec as a directory looks at."""
    return {"run_id": run_id, "name": "eval", "submitted": 1.0, **more}


def summary(run_id: str = RUN_ID, **more: Any) -> dict[str, Any]:
    """Return a summary as it is at submit."""
    return {"run_id": run_id, "status": "queued", "submitted": 1.0, "attempt": 0, **more}


def make(root: Path, run_id: str = RUN_ID, **more: Any) -> Path:
    """Create a run's directory."""
    return directory.create(
        root, run_id, spec(run_id, **more), ENVIRONMENT, summary(run_id, **more)
    )


def scan(root: Path, read: Callable[[Any], object] | None = None) -> scanning.Scan:
    """Read all runs below a root."""
    return scanning.Scanner(root, read_spec=read).scan()


def staging_folder(tmp_path: Path) -> Path:
    """Make a folder where clients put inputs."""
    staged = tmp_path / "gpugate" / "staging" / "staged"
    staged.mkdir(parents=True)
    return staged


def names(path: Path) -> list[str]:
    """Return what is in a folder, sorted."""
    return sorted(entry.name for entry in path.iterdir())


def modes(path: Path) -> dict[str, str]:
    """Return the permissions of everything below a folder."""
    return {str(p.relative_to(path)): oct(stat.S_IMODE(p.lstat().st_mode)) for p in path.rglob("*")}


def as_plain_user(place: Path, call: Callable[[], str]) -> str:
    """Call something as a user whom permissions bind, to whom all below ``place`` belongs."""
    if os.geteuid() != 0:
        return call()
    for path in (place, *place.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(12345, 12345, 12345)
            os.write(write, call().encode())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        return told.read()
