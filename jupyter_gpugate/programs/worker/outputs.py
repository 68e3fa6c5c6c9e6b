"""The outputs of a run, written when the cell ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .attempt import Attempt
from .events import Events
from .pickling import pickling_hint
from .values import write_output
from .wording import error_text


def write_outputs(attempt: Attempt, namespace: Mapping[str, Any], events: Events) -> None:
    """Write each output to ``result.NAME.WORKER.pickle`` and report them.

    If some cannot be written, the others are, and the error names both.
    """
    names = list(attempt.launch["outputs"])
    problems: dict[str, Exception] = {}
    for name in names:
        try:
            _store_output(attempt, name, namespace)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - raised after all have been tried
            problems[name] = error
    if problems:
        first = next(iter(problems.values()))
        stored = ", ".join(name for name in names if name not in problems)
        remedy = f"; `.values()` of this run has {stored}" if stored else ""
        raise type(first)(f"{first}{remedy}") from first.__cause__
    events.send("result", outputs=names)


def _store_output(attempt: Attempt, name: str, namespace: Mapping[str, Any]) -> None:
    """Write one output; an error contains its name."""
    if name not in namespace:
        raise NameError(f"output `{name}` is not defined when the cell ends")
    value = namespace[name]
    try:
        write_output(attempt.directory / f"result.{name}.{attempt.worker}.pickle", value)
    except MemoryError:
        raise
    except OSError as error:
        raise OSError(f"output `{name}` cannot be written: {error.strerror or error}") from error
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"output `{name}` ({kind}) cannot be stored: {error_text(error)}{pickling_hint(error)}"
        ) from error
