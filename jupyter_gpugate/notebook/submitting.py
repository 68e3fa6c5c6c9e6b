"""`jupyter_gpugate.submit`: runs that Python code submits, without a cell and without waiting."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Optional, Union

from jupyter_gpugate.client import keywords, options, submission, sweeps, values
from jupyter_gpugate.client.errors import RunDetached, SubmissionError
from jupyter_gpugate.client.groups import Sweep
from jupyter_gpugate.client.submission import Body
from jupyter_gpugate.client.sweeps import Point
from jupyter_gpugate.client.waiting import Interrupts, Patience, connected, submitted
from jupyter_gpugate.notebook.group import Group
from jupyter_gpugate.notebook.run import Run
from jupyter_gpugate.notebook.sweeping import SweptCell, submit_sweep

#: The source of a cell, the words of a command, or neither to repeat the newest run of the name.
Work = Union[str, Sequence[str], None]

_OF_CELLS: Final = (*options.RUN_OPTIONS, *options.CELL_OPTIONS)
_OF_PROGRAMS: Final = (*options.RUN_OPTIONS, *options.PROGRAM_OPTIONS)
_COUNTS: Final = ("workers", "episodes")


def submit(
    work: Work, name: str, inputs: Optional[Mapping[str, object]], given: Mapping[str, Any]
) -> Union[Run, Group]:
    """Queue a run, or a group of runs, and return a handle; see `jupyter_gpugate.submit`."""
    body, points = _described(work, _checked_name(name), given)
    staged = _stage(work, inputs)
    if points:
        return _queued_group(SweptCell(Sweep(body, points), list(inputs or ()), staged))
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


def _queued_group(cell: SweptCell) -> Group:
    interrupts = Interrupts()
    with interrupts.taken():
        group, submitted_group = submit_sweep(cell, interrupts, Patience(interactive=False))
    if interrupts.count:
        queued = f"{len(submitted_group.run_ids)} of {submitted_group.size} runs were queued"
        raise RunDetached(f"{queued} before the interrupt", {"group": group.group_id})
    return group


def _described(work: Work, name: str, given: Mapping[str, Any]) -> tuple[Body, list[Point]]:
    """Return the body of a submit, and the points of its sweep, if it has one."""
    if work is None:
        return _repetition(name, given)
    if isinstance(work, str):
        found = _named(name, _OF_CELLS, given)
        return submission.cell(found, work), sweeps.points(found)
    argv = [str(word) for word in work]
    if not argv:
        raise SubmissionError("the command is empty: give its words, such as ['python', 'eval.py']")
    found = _named(name, _OF_PROGRAMS, given)
    return submission.program(found, argv), sweeps.points(found)


def _repetition(name: str, given: Mapping[str, Any]) -> tuple[Body, list[Point]]:
    counts = [o for o in options.CELL_OPTIONS if keywords.word_of(o) in _COUNTS]
    found = _named(name, (*_OF_PROGRAMS, *counts), given)
    # A number that was not given is the earlier run's, not the default.
    numbers = {n: getattr(found, n) for n in _COUNTS if n in given}
    return {**submission.again(found), **numbers}, sweeps.points(found)


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
