"""The shell that runs a cell: that of IPython, or a plain one where IPython is missing."""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any, Optional

from .displays import show
from .events import Events
from .execution import execute
from .ipython_shell import ipython_shell
from .wording import error_text


class PlainShell:
    """Runs a cell without IPython: the last expression is shown by its ``repr``."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def run(self, codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> Any:
        sys.displayhook = self._show
        return execute(codes, namespace)

    def traceback(self, error: BaseException, frames: Optional[types.TracebackType]) -> list[str]:
        return traceback.format_exception(type(error), error, frames)

    def _show(self, value: object) -> None:
        if value is not None:
            show(self._events, {"text/plain": repr(value)}, result=True)


def shell_for(module: types.ModuleType, events: Events) -> Any:
    """Return IPython's shell if this interpreter has a working one, otherwise a plain one."""
    try:
        return ipython_shell(module, events)
    except ImportError:
        return PlainShell(events)
    except Exception as error:  # noqa: BLE001 - a broken profile must not end the run
        events.warn(f"IPython does not start, displays are plain text: {error_text(error)}")
        return PlainShell(events)
