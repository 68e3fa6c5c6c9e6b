"""Starts the supervisor of one attempt, and finds it again."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.messages import HEARTBEAT_S
from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.core.run_spec import FIELDS, Field
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import RUN_MODULE, boot_id, is_token, isolation, start_ticks
from jupyter_gpugate.runs import directory
from jupyter_gpugate.runs.folder import Torn, opened
from jupyter_gpugate.runs.lifecycle import granted_facts
from jupyter_gpugate.runs.outcome import KILLED, REMOVED, Lost
from jupyter_gpugate.runs.placeholders import filled
from jupyter_gpugate.runs.processes import is_alive, tagged
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Record

OOM_SCORE = 500

#: Temporary shortages of a machine; a run that cannot start for one may start later.
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
_PYTHONS_LIBRARY = frozenset({"PYTHONHOME", "PYTHONPLATLIBDIR"})
_LAST_BYTES = 4096
#: The loader's word on a library of LD_PRELOAD that it cannot find, which ends nothing.
_IGNORED = re.compile(rb"ERROR: ld\.so: .*: ignored\.$")
#: Fields of the grant in a launch record, for people to read.
GRANTED = ("attempt", "devices", "charges", "basis", "caps", "enforcement", "estimate", "retry")
#: Fields of a spec that have no default.
NEEDED = ("interpreter", "cwd")


async def begin(
    record: Record, attempt: int, launch: Mapping[str, Any], programs: Programs
) -> ProcessKey:
    """Write the attempt down, then start its supervisor; `OSError` where that cannot be done."""
    return await asyncio.to_thread(_begin, record, attempt, launch, programs)


def granted_part(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a grant that a summary shows."""
    return {field: launch[field] for field in GRANTED if field in launch}


def launch_of(
    record: Record, grant: Grant, addresses: Sequence[str], grace_s: float, programs: str
) -> dict[str, Any]:
    """Return the instructions for a supervisor; ``programs`` names the version of it.

    Raises `Torn` where the spec, which others may have changed, lacks a field, and
    `UnknownTotalError` where a chosen amount cannot be put into the command.
    """
    for name in NEEDED:
        if record.spec.get(name) is None:
            raise Torn(f"{record.path / 'spec.json'} has no {name}: submit the run again")
    resume = record.path / "attempts" / str(grant.attempt - 1)
    return {
        "run_id": record.run_id,
        **_of_spec(record.spec),
        "argv": _argv_of(record.spec, grant),
        **granted_facts(grant, record.summary.get("estimate")),
        "fence": grant.fence,
        "programs": programs,
        "socket": addresses[0],
        "sockets": list(addresses),
        "env_file": "../../env.json",
        "device_totals": dict(grant.device_totals),
        "grace_s": grace_s,
        "heartbeat_s": HEARTBEAT_S,
        "gate": [sys.executable, "-c", RUN_MODULE, "jupyter_gpugate", "serve", "--user"],
        "oom_score_adj": OOM_SCORE,
        "resume_from": f"attempts/{grant.attempt - 1}" if resume.is_dir() else None,
    }


def _argv_of(spec: Mapping[str, Any], grant: Grant) -> list[str]:
    parameters = spec.get("parameters") or {}
    return filled(spec.get("argv") or [], spec.get("chosen"), grant, parameters)


def _of_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a supervisor needs of a run's spec."""
    return {
        **{f.name: _value(spec, f) for f in FIELDS if f.in_launch},
        "submitted": spec["submitted"],
        "machine": spec.get("machine"),
        "kind": spec["kind"],
        "keeps_mask": bool(spec.get("keeps_mask")),
        "cgroups": spec.get("cgroups") or {},
    }


def _value(spec: Mapping[str, Any], field: Field) -> Any:
    """Return a field of a spec, or its default if the spec of an earlier version lacks it."""
    value = spec.get(field.name)
    return field.default if value is None else value


def _begin(
    record: Record, attempt: int, launch: Mapping[str, Any], programs: Programs
) -> ProcessKey:
    programs.ready()  # where that fails, as on a full disk, nothing else is begun
    path = directory.create_attempt(record.path, attempt, launch, record.spec.get("source"))
    # Once more, now that launch.json says that they are used: nobody removes them any more.
    supervisor = programs.ready() / "supervisor" / "__main__.py"
    # The boundary between "asked for" and "alive": the fence in launch.json and the mark in the
    # environment find a supervisor again whose starter died right here.
    environ = {**_own_environment(os.environ), "GPUGATE_RUN_ID": record.run_id}
    with (path / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *isolation(environ), str(supervisor), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environ,
            start_new_session=True,
        )
    _reap_later(process)
    return ProcessKey(process.pid, start_ticks(process.pid) or 0)


def _own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that this interpreter was started with, without tokens.

    The loader reads LD_LIBRARY_PATH and more, and no list of such variables is complete.  Of
    Python's own only those stay that say where its library is; the others change what it does.
    """
    kept = {name: value for name, value in environ.items() if not is_token(name)}
    return {k: v for k, v in kept.items() if not k.startswith("PYTHON") or k in _PYTHONS_LIBRARY}


def _reap_later(process: subprocess.Popen[bytes]) -> None:
    """Have the child waited for when it ends, so that it does not stay a zombie."""
    threading.Thread(target=process.wait, name="gpugate-reaper", daemon=True).start()


def supervisor_of(record: Record) -> ProcessKey | None:
    """The living supervisor of an attempt that another process started, if there is one."""
    recorded = directory.supervisor_of(record.attempt_path)
    if recorded is not None:
        return recorded if is_alive(recorded) else None
    mark = os.fsencode(record.attempt_path)
    for process in tagged(record.run_id):
        with suppress(OSError):
            if mark in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"):
                return process
    return None


def lost(record: Record) -> Lost:
    """Return the end of an attempt whose supervisor died without recording one.

    An attempt that never began has run no user code, so it failed and was not lost.
    """
    path = record.attempt_path
    if directory.is_gone(path):
        return Lost(AttemptOutcome.LOST, REMOVED, Stop.of(StopKind.REMOVED))
    if is_of_another_boot(record):
        return Lost(AttemptOutcome.LOST, "reboot")
    words = _last_words(path / "supervisor.log")
    if not words:
        return Lost(AttemptOutcome.LOST, KILLED, Stop.of(StopKind.KILLED))
    if (path / "tree.json").exists():
        return Lost(AttemptOutcome.LOST, f"its supervisor ended: {words}")
    return Lost(AttemptOutcome.FAILED, f"its supervisor did not start: {words}")


def _last_words(log: Path) -> str:
    """Return the last line of a log that may explain the end of its writer, or ""."""
    with suppress(OSError), log.open("rb") as written:
        written.seek(max(0, os.fstat(written.fileno()).st_size - _LAST_BYTES))
        lines = (line.strip() for line in reversed(written.read().splitlines()))
        return next((x.decode(errors="replace") for x in lines if x and not _IGNORED.match(x)), "")
    return ""


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
