"""The exit codes of `jupyter gpugate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

OK: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
UNAVAILABLE: Final = 69
NOT_OVER: Final = 75
CANCELLED: Final = 130

EXIT_CODES: Final = """\
exit codes of `run`: that of the command itself (128 + N for signal N); 1 if the run failed in
another way; 2 for a mistake in the command line; 69 if no gate is available; 75 if the run goes on
without this terminal, as it does after SIGTERM, SIGHUP, or a single interrupt at a terminal; 130 if
it was cancelled."""

EXIT_CODES_OF_WAIT: Final = """\
exit codes of `wait`: 0 if all runs have completed or, with --ready, are ready; otherwise that of
the worst: the highest code among those that failed, else 130 for a cancelled one; 75 if the time is
over; 130 after Ctrl-C, which leaves the runs alone."""


def exit_code(state: Mapping[str, Any]) -> int:
    """Return the command's own exit code if it is known, else one for its kind of end."""
    end, code = state.get("end"), state.get("exit_code")
    if state.get("status") == "active":  # a service that is ready
        return OK
    if end == "failed" and code:
        return int(code) if code > 0 else 128 - int(code)
    return {"completed": OK, "cancelled": CANCELLED}.get(str(end), FAILED)


def worst(states: Iterable[Mapping[str, Any]]) -> int:
    """Return the exit code for several ended runs: a failure outweighs a cancel."""
    codes = [(state.get("end") != "cancelled", exit_code(state)) for state in states]
    return max((code for code in codes if code[1] != OK), default=(True, OK))[1]
