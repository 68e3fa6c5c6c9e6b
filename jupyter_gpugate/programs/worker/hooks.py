"""Changes to modules that the cell imports: torch, and those that start processes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .after_import import AfterImport
from .attempt import Attempt
from .pools import end_broken_pools
from .torch_memory import cap_torch

#: The standard library's module, and copies of it that start processes in the same way.
PROCESS_MODULES = (
    "multiprocessing",
    "multiprocess",
    "joblib.externals.loky.backend",
    "loky.backend",
)
#: The file that a started process executes instead of the cell's.
ENTRY = str(Path(__file__).absolute().with_name("__main__.py"))


def follow_imports(attempt: Attempt, warn: Callable[[str], None]) -> None:
    """Act when the cell imports torch or starts to use processes, never before."""
    point_here = functools.partial(_point_children_here, attempt)
    AfterImport(
        {
            **{f"{name}.spawn": point_here for name in PROCESS_MODULES},
            **{f"{name}.pool": end_broken_pools for name in PROCESS_MODULES[:2]},
            "torch.cuda": lambda cuda: cap_torch(cuda, attempt, warn),
        }
    )


def _point_children_here(attempt: Attempt, spawn: Any) -> None:
    """Let a started process execute ``ENTRY`` instead of the cell's file."""
    original = spawn.get_preparation_data

    def get_preparation_data(*args: Any, **options: Any) -> Any:
        data = original(*args, **options)
        if data.get("init_main_from_path") == attempt.cell:
            data["init_main_from_path"] = ENTRY
        return data

    spawn.get_preparation_data = get_preparation_data
