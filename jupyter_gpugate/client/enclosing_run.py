"""The run that this process belongs to, if any, and starting a gate outside of it.

Everything that a run starts is charged to it and ends with it.  So if a program in a run needs a
gate, the run's supervisor starts it beside itself, not below.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Optional

from jupyter_gpugate.proc import stat_of

#: A supervisor checks several times a second, but not when it is about to end.
TAKEN_S: Final = 15.0
_PROGRAM: Final = b"/gpugate_programs/supervisor/__main__.py"
#: Of runs that an earlier version has started: a copy in the attempt's directory.
_EARLIER: Final = b"/supervisor.py"


def attempt_above() -> Optional[Path]:
    """Return the directory of the attempt whose supervisor is above this process; None without."""
    pid = os.getppid()
    while pid > 1:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            above = stat_of(pid).parent_pid
        except OSError:
            return None
        if len(command) > 1 and _is_supervisor(*command[-2:]):
            return Path(os.fsdecode(command[-1]))
        pid = above
    return None


def _is_supervisor(program: bytes, attempt: bytes) -> bool:
    return program.endswith(_PROGRAM) or program == attempt + _EARLIER


def ask_for_gate(
    attempt: Path, environ: Mapping[str, str], give_up: Callable[[], bool], **how: str
) -> bool:
    """Ask the supervisor of an attempt to start a gate; return whether it accepted."""
    wanted = attempt / "gate.json"
    draft = wanted.with_name(f".gate.json.{os.getpid()}")
    content: dict[str, Any] = {"environ": dict(environ), **how}
    try:
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="ascii") as file:
            json.dump(content, file)
        draft.replace(wanted)
    except OSError:
        return False
    deadline = time.monotonic() + TAKEN_S
    while time.monotonic() < deadline and not give_up():
        if not wanted.exists():
            return True
        time.sleep(0.05)
    with contextlib.suppress(OSError):
        wanted.unlink()
    return False
