"""The ids of runs, which are also the names of their directories."""

from __future__ import annotations

import re
import secrets
import string
import time
from typing import Final

from jupyter_gpugate.core.run_spec import RUN_ID as PATTERN

RUN_ID: Final = re.compile(PATTERN)


def new_run_id() -> str:
    """Return an id for a run that is submitted now: the time in UTC and five random letters.

    Local time repeats an hour each autumn, and ids must sort in the order of their runs.
    """
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(5))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{letters}"


def checked(run_id: str) -> str:
    """Return an id as it is; raise `ValueError` for anything else."""
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(f"{run_id!r} is not a run id")
    return run_id
