"""Errors that end a cell: their frames, and the report of them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any, Optional

from .attempt import Attempt
from .events import Events
from .out_of_memory import out_of_memory
from .wording import error_text, shortened

#: Parts of the paths of files that do not belong to the cell; the first is this folder.
_HIDDEN = (f"{Path(__file__).parent}{os.sep}", f"{os.sep}cloudpickle{os.sep}")


def show_own_frames(error: BaseException, cell: str) -> None:
    """Remove from an error, and from its causes, every frame that is not the user's.

    Those are all frames before the cell's first one, and those of the worker; a cause that only
    these frames raised adds nothing to the error and is removed as well.
    """
    seen: set[int] = set()
    waiting: list[Optional[BaseException]] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _own_frames(one.__traceback__, cell)
        cause = one.__cause__
        if cause is not None and cause.__traceback__ and not _own_frames(cause.__traceback__, cell):
            one.__cause__ = None  # which also hides what was raised before it
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _own_frames(frames: Optional[types.TracebackType], cell: str) -> Optional[types.TracebackType]:
    every = []
    while frames is not None:
        every.append(frames)
        frames = frames.tb_next
    files = [each.tb_frame.f_code.co_filename for each in every]
    first = files.index(cell) if cell in files else 0
    kept = None
    for each, file in reversed(list(zip(every, files))[first:]):
        if not any(name in file for name in _HIDDEN):
            kept = types.TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def advise(error: BaseException, attempt: Attempt) -> None:
    """Add advice to an error that a difference between notebook and run has caused."""
    text = ""
    if isinstance(error, NameError):
        name = re.search(r"'(\w+)'", str(error))
        if name is not None and name[1] in attempt.launch["parameters"]:
            text = f'{error}; the values of `--set` are in `params`: `params["{name[1]}"]`'
    elif type(error).__name__ == "BdbQuit" and not str(error):
        text = "runs have no keyboard for a debugger"
    if text:
        error.args = (text,)


def report_error(error: BaseException, shell: Any, attempt: Attempt, events: Events) -> None:
    """Send the error that ended the cell, with the cell's lines, and print it on stderr."""
    found = out_of_memory(error, attempt)
    if found is not None:
        events.send("oom", **found)
    advise(error, attempt)
    text = error_text(error)
    lines = [text]
    with contextlib.suppress(Exception):  # there may be no memory left to read the source with
        show_own_frames(error, attempt.cell)
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    print("".join(map(shortened, lines)).rstrip("\n"), file=sys.stderr, flush=True)  # noqa: T201
    # IPython's printer knows neither a group of exceptions nor an error without frames.
    if error.__traceback__ is not None and not hasattr(error, "exceptions"):
        with contextlib.suppress(Exception):
            lines = shell.traceback(error, error.__traceback__)
    evalue = shortened(text.partition(": ")[2])
    lines = [shortened(line.rstrip("\n")) for line in lines]
    events.send("error", ename=type(error).__name__, evalue=evalue, traceback=lines)
