"""Starts the supervisor of one attempt, and finds it again."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.model import Grant
from jupyter_gpugate.core.protocol import to_json
from jupyter_gpugate.runs import directory
from jupyter_gpugate.runs.folder import Torn, opened
from jupyter_gpugate.runs.processes import ProcessName, boot_id, is_alive, start_ticks, tagged
from jupyter_gpugate.runs.record import Record

HEARTBEAT_S = 2.0
OOM_SCORE = 500

#: What a machine is out of for a while; a run that cannot start for it is none that never can.
PASSING = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
    }
)
#: What a launch says of its grant, for people to read.
GRANTED = ("attempt", "devices", "charges", "basis", "caps", "enforcement", "estimate")


async def begin(record: Record, attempt: int, launch: Mapping[str, Any]) -> ProcessName:
    """Write the attempt down, then start its supervisor; `OSError` where that cannot be done."""
    return await asyncio.to_thread(_begin, record, attempt, launch)


def granted_part(launch: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary shows of the grant behind an attempt."""
    return {field: launch[field] for field in GRANTED if field in launch}


def launch_of(record: Record, grant: Grant, socket: Path, grace_s: float) -> dict[str, Any]:
    """All that a supervisor must know."""
    spec = record.spec
    resume = record.path / "attempts" / str(grant.attempt - 1)
    return {
        "run_id": record.run_id,
        "attempt": grant.attempt,
        "fence": grant.fence,
        "socket": str(socket),
        "kind": spec["kind"],
        "interpreter": spec["interpreter"],
        "flags": spec.get("flags") or [],
        "argv": spec.get("argv") or [],
        "cwd": spec["cwd"],
        "umask": spec.get("umask"),
        "limits": spec.get("limits") or {},
        "path": spec.get("path"),
        "env_file": "../../env.json",
        "workers": spec["workers"],
        "episodes": spec["episodes"],
        "parameters": spec.get("parameters") or {},
        "inputs": spec["inputs"],
        "outputs": spec.get("outputs") or [],
        "devices": list(grant.devices),
        "charges": dict(grant.charges),
        "basis": to_json(grant.basis),
        "estimate": record.summary.get("estimate"),
        "caps": dict(grant.caps),
        "device_totals": dict(grant.device_totals),
        "enforcement": grant.enforcement.value,
        "time_limit_s": spec.get("time_limit_s"),
        "grace_s": grace_s,
        "heartbeat_s": HEARTBEAT_S,
        "oom_score_adj": OOM_SCORE,
        "resume_from": f"attempts/{grant.attempt - 1}" if resume.is_dir() else None,
    }


def _begin(record: Record, attempt: int, launch: Mapping[str, Any]) -> ProcessName:
    path = directory.create_attempt(record.path, attempt, launch, record.spec.get("source"))
    # The boundary between "asked for" and "alive": the fence in launch.json and the mark in the
    # environment find a supervisor again whose starter died right here.
    environ = {**_small_environment(), "GPUGATE_RUN_ID": record.run_id}
    with (path / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(path / "supervisor.py"), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environ,
            start_new_session=True,
        )
    _reap_later(process)
    return ProcessName(process.pid, start_ticks(process.pid) or 0)


def _small_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR")}


def _reap_later(process: subprocess.Popen[bytes]) -> None:
    """Have the child waited for when it ends, so that it does not stay a zombie."""
    threading.Thread(target=process.wait, name="gpugate-reaper", daemon=True).start()


def supervisor_of(record: Record) -> ProcessName | None:
    """The living supervisor of an attempt that another process started, if there is one."""
    recorded = directory.supervisor_of(record.attempt_path)
    if recorded is not None:
        name = ProcessName(*recorded)
        return name if is_alive(name) else None
    mark = os.fsencode(record.attempt_path)
    for process in tagged(record.run_id):
        with suppress(OSError):
            if mark in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"):
                return process
    return None


def is_of_another_boot(record: Record) -> bool:
    """Whether the newest attempt's processes ended with the machine."""
    path = record.attempt_path
    with suppress(OSError, Torn), opened(path.parents[1], path.parent.name, path.name) as folder:
        return bool(folder.read_record("tree.json").get("boot_id") != boot_id())
    return False


def set_aside(record: Record) -> None:
    """Take the newest attempt, of which nothing ever ran, out of the count."""
    path = record.attempt_path
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f".unstarted-{path.name}-{secrets.token_hex(4)}"))
