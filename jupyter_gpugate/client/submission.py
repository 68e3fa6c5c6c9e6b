"""Makes the body of a submit from the options and from the process that submits.

A run is to see what this process sees at this moment: interpreter and flags, working folder,
module path, environment, file mode mask and limits of resources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jupyter_gpugate.client import environment, sweeps
from jupyter_gpugate.client.errors import SubmissionError
from jupyter_gpugate.client.options import CELL_OPTIONS, RUN_OPTIONS, Option

Body = dict[str, Any]

_ENVIRONMENT_LIMIT: Final = 1 << 20
#: What a repeated run takes from the earlier one, not from this process.
_OF_THE_EARLIER: Final = ("cwd", "umask", "limits")


def cell(options: Namespace, source: str) -> Body:
    """Describe a cell; the lines of ``source`` are the cell's own."""
    _refuse_ready_alone(options)
    if options.service and (options.output or options.episodes != 1):
        option = "--output" if options.output else "--episodes"
        raise SubmissionError(f"a service ends by being stopped: it cannot have {option}")
    return {
        **_of_any_run(options),
        "source": source,
        "interpreter": sys.executable,
        # The same function that multiprocessing uses to start its own children.
        "flags": subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined] # noqa: SLF001
        "path": module_path(),
        **_values(options, CELL_OPTIONS),
        "outputs": flat(options.output),
    }


def program(options: Namespace, argv: Sequence[str]) -> Body:
    """Describe a command: one episode, complete when it exits with 0."""
    _refuse_ready_alone(options)
    body = {**_of_any_run(options), "argv": list(argv), "interpreter": sys.executable}
    body["episodes"] = 1
    body["memory_irrelevant"] += flat(options.memory_irrelevant)
    sweeps.refuse_without_placeholders(argv, sweeps.points(options))
    return body


def again(options: Namespace) -> Body:
    """Describe a run that repeats the newest one of its name, except for the given options.

    It sees the environment of this process: the earlier one is not kept.
    """
    body = _of_any_run(options)
    body["memory_irrelevant"] += flat(options.memory_irrelevant)
    return {
        name: value
        for name, value in body.items()
        if name not in _OF_THE_EARLIER and value is not False and value not in ({}, [])
    }


def module_path() -> list[str]:
    """Return the entries of `sys.path` that an import uses; it ignores those that are not text.

    An empty entry means the working folder.
    """
    entries: Sequence[object] = sys.path
    kept = [entry for entry in entries if isinstance(entry, str) and "\0" not in entry]
    return [str(entry) or str(Path.cwd()) for entry in kept]


def flat(lists: Sequence[Sequence[str]]) -> list[str]:
    """Join the values of a repeated option, each name once, in order."""
    return list(dict.fromkeys(name for part in lists for name in part))


def _refuse_ready_alone(options: Namespace) -> None:
    if options.ready_url and not options.service:
        raise SubmissionError("--ready says when a service is ready: add --service")
    _refuse_wrong_sweep(options)


def _of_any_run(options: Namespace) -> Body:
    if options.gpus == 0 and options.vram is not None:
        raise SubmissionError("--vram chooses GPU memory, but --gpus 0 asks for no GPU: omit one")
    body = {
        "name": options.name,
        **_values(options, RUN_OPTIONS),
        "parameters": dict([*options.set, *options.set_free]),
        "memory_irrelevant": [name for name, _ in [*options.set_free, *options.sweep_free]],
        "hints": _without_gaps({"vram_bytes": options.hint_vram, "ram_bytes": options.hint_ram}),
        # A gate of an older version does not know the field.
        "chosen": _without_gaps({"vram_bytes": options.vram, "ram_bytes": options.ram}) or None,
        "cwd": _folder(),
        "environment": _environment(options.drop_env),
        "umask": environment.umask(),
        "limits": environment.limits(),
        "kernel": environment.this_process(os.environ.get("JPY_SESSION_NAME", "")),
        "idempotency_key": str(uuid.uuid4()),
    }
    return _without_gaps(body)


def _values(options: Namespace, table: Sequence[Option]) -> Body:
    """Return the fields of a body whose values are those of options."""
    values = {option.field: getattr(options, option.field) for option in table if option.field}
    # A gate of an older version does not know them.
    return {k: value for k, value in values.items() if value or k not in ("service", "after")}


def _refuse_wrong_sweep(options: Namespace) -> None:
    """Refuse options that contradict a sweep, or that need one."""
    if not sweeps.points(options):
        if options.at_most is not None:
            raise SubmissionError("--at-most limits the runs of a sweep: add --sweep NAME=VALUES")
    elif options.service:
        raise SubmissionError("a service ends by being stopped: it cannot have --sweep")


def _without_gaps(body: Mapping[str, Any]) -> Body:
    return {name: value for name, value in body.items() if value is not None}


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise SubmissionError("the working folder was removed: change to one that exists") from None


def _environment(dropped: Sequence[str]) -> dict[str, str]:
    kept = environment.for_a_run(os.environ, dropped)
    sizes = {name: len(name) + len(value.encode(errors="replace")) for name, value in kept.items()}
    if sum(sizes.values()) > _ENVIRONMENT_LIMIT:
        largest = max(sizes, key=sizes.__getitem__)
        raise SubmissionError(
            f"the environment is larger than 1 MB, most of it {largest}: add --drop-env {largest}"
        )
    return kept
