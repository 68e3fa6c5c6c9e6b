"""The environment, limits and folder of this process that a run or a gate inherits."""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Optional

from jupyter_gpugate.proc import boot_id, is_token, start_ticks

#: Variables of one run or one notebook that a gate started from there must not inherit.
_OF_A_RUN: Final = re.compile(r"GPUGATE_(RUN_ID|ATTEMPT|WORKERS?|CAPS|DEVICES)$|JPY_SESSION_NAME$")
_REPLACED: Final = "GPUGATE_REPLACED"
_OF_A_PROCESS: Final = frozenset({"JPY_PARENT_PID", "GPUGATE_ATTEMPT_DIR", "GPUGATE_EVENTS"})


def for_a_run(environ: Mapping[str, str], dropped: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment of a run: everything but tokens and the names in ``dropped``."""
    unwanted = _OF_A_PROCESS.union(dropped)
    return {
        name: value
        for name, value in _restored(environ).items()
        if name not in unwanted and not is_token(name)
    }


def _restored(environ: Mapping[str, str]) -> dict[str, str]:
    """Take back the variables that a supervisor has set for the run that this process is part of.

    Its devices are this run's; the runs that it submits may have others of its notebook's.
    """
    restored = dict(environ)
    try:
        replaced = json.loads(restored.pop(_REPLACED, "{}"))
        for name, (here, before) in replaced.items():
            if restored.get(name) == here:  # else it was changed since, on purpose
                restored.pop(name)
                restored.update({} if before is None else {name: str(before)})
    except (AttributeError, TypeError, ValueError):  # a value that no supervisor wrote
        return restored
    return restored


def for_a_gate(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a gate: no tokens, no mark of a run or a notebook."""
    return {k: v for k, v in for_a_run(environ).items() if not _OF_A_RUN.match(k)}


def umask() -> Optional[int]:
    """Read the file mode mask without changing it; None on kernels that do not report it."""
    text = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^Umask:\s*([0-7]+)", text, re.MULTILINE)
    return int(found[1], 8) if found else None


def limits() -> dict[str, tuple[int, int]]:
    """Return the soft and the hard limit of this process for each resource; -1 is none."""
    known = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name[len("RLIMIT_") :]: resource.getrlimit(getattr(resource, name)) for name in known}


def this_process(notebook: str = "") -> dict[str, object]:
    """Name this process for good: pid, start ticks and boot id, with its notebook's path."""
    return {
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "boot_id": boot_id(),
        "notebook": notebook,
    }
