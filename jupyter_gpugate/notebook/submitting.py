"""`jupyter_gpugate.submit`: runs that Python code submits, without a cell and without waiting."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Optional, Union

from jupyter_gpugate.client import keywords, options, submission, values
from jupyter_gpugate.client.errors import RunDetached
from jupyter_gpugate.client.submission import Body, SubmissionError
from jupyter_gpugate.client.waiting import Interrupts, Patience, connected, submitted
from jupyter_gpugate.notebook.run import Run

#: The source of a cell, the words of a command, or neither to repeat the newest run of the name.
Work = Union[str, Sequence[str], None]

_OF_CELLS: Final = (*options.RUN_OPTIONS, *options.CELL_OPTIONS)
_OF_PROGRAMS: Final = (*options.RUN_OPTIONS, *options.PROGRAM_OPTIONS)
_COUNTS: Final = ("workers", "episodes")


def submit(
    work: Work, name: str, inputs: Optional[Mapping[str, object]], given: Mapping[str, Any]
) -> Run:
    """Queue a run and return a handle on it; see `jupyter_gpugate.submit`."""
    body = _body(work, _checked_name(name), given)
    staged = _stage(work, inputs)
    if staged is not None:
        body["inputs"] = {"names": list(inputs or ()), "staged": str(staged)}
    try:
        return _queued(body)
    except BaseException:
        if staged is not None:
            values.discard(staged)
        raise


def _queued(body: Body) -> Run:
    interrupts = Interrupts()
    with interrupts.taken():
        client = connected(interrupts)
        answer = submitted(client, body, interrupts, Patience(interactive=False))
    run = Run(str(answer["run_id"]), client)
    if interrupts.count:
        raise RunDetached("it was queued before the interrupt", {"run_id": run.run_id})
    return run


def _body(work: Work, name: str, given: Mapping[str, Any]) -> Body:
    if work is None:
        return _repetition(name, given)
    if isinstance(work, str):
        return submission.cell(_named(name, _OF_CELLS, given), work)
    argv = [str(word) for word in work]
    if not argv:
        raise SubmissionError("the command is empty: give its words, such as ['python', 'eval.py']")
    return submission.program(_named(name, _OF_PROGRAMS, given), argv)


def _repetition(name: str, given: Mapping[str, Any]) -> Body:
    counts = [o for o in options.CELL_OPTIONS if keywords.word_of(o) in _COUNTS]
    found = _named(name, (*_OF_PROGRAMS, *counts), given)
    # A number that was not given is the earlier run's, not the default.
    return {**submission.again(found), **{n: getattr(found, n) for n in _COUNTS if n in given}}


def _named(name: str, table: Sequence[options.Option], given: Mapping[str, Any]) -> Any:
    found = keywords.namespace(table, given)
    found.name = name
    return found


def _checked_name(name: str) -> str:
    try:
        return options.run_name(name)
    except ArgumentTypeError as error:
        raise SubmissionError(str(error)) from None


def _stage(work: Work, inputs: Optional[Mapping[str, object]]) -> Optional[Path]:
    if not inputs:
        return None
    if work is not None and not isinstance(work, str):
        raise SubmissionError("inputs: only the source of a cell can have inputs, not a command")
    return values.stage(inputs)
