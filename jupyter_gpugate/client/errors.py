"""Exceptions for users; a notebook shows each without frames of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Optional

#: Fields of a submit whose messages a person understands without the field's name.
_CLEAR_WITHOUT_FIELD: Final = (
    "argv",
    "chosen.ram_bytes",
    "chosen.vram_bytes",
    "cwd",
    "device",
    "device_model",
    "gpus",
    "hints.ram_bytes",
    "hints.vram_bytes",
    "inputs",
    "interpreter",
    "kernel.boot_id",
    "name",
    "outputs",
    "resource",
    "source",
    "workers",
)


class SubmissionError(ValueError):
    """A submit with a mistake; the message names the option and the remedy."""


class GateError(Exception):
    """The gate refused a request, or could not be asked.

    ``message`` is the gate's sentence, ``code`` its word for the kind of error ("bad_input",
    "not_found", ...), ``status`` the HTTP status (0 without an answer), ``detail`` the numbers.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "gate",
        status: int = 0,
        detail: Optional[Mapping[str, Any]] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.detail = dict(detail or {})

    def __str__(self) -> str:
        """Return the message without the name of a field, where it is clear without it."""
        field = str(self.detail.get("field"))
        is_clear = field in _CLEAR_WITHOUT_FIELD and self.message.startswith(f"{field}: ")
        return self.message[len(field) + 2 :] if is_clear else self.message

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class GateUnreachable(GateError):
    """No gate answered: the request may be repeated, and runs go on meanwhile."""

    def __init__(self, message: str, *, code: str = "unreachable", status: int = 0) -> None:
        super().__init__(message, code=code, status=status)


class Interrupted(KeyboardInterrupt):
    """An interrupt came before anything was queued."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class RunEnded(Exception):
    """A wait for a run ended without a result; ``state`` is the last that was known of it."""

    def __init__(self, message: str, state: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.state = dict(state)
        self.run_id = str(state.get("run_id", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.state), self.__dict__

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class RunFailed(RunEnded):
    """The run ended without completing; its own traceback is shown in place of the notebook's.

    ``end`` is "failed", "oom", "lost", "expired" or "rejected"; ``ename`` and ``evalue`` are the
    exception that the run raised, empty where it raised none.
    """

    def __init__(self, message: str, state: Mapping[str, Any]) -> None:
        super().__init__(message, state)
        error = state.get("error") or {}
        self.end = str(state.get("end") or "failed")
        self.ename = str(error.get("ename", ""))
        self.evalue = str(error.get("evalue", ""))
        self.traceback = [str(line) for line in error.get("traceback") or ()]

    def _render_traceback_(self) -> list[str]:
        return [*self.traceback, f"RunFailed: {self}"]


class RunCancelled(RunEnded):
    """The run was cancelled and none of its processes is left."""


class RunDetached(RunEnded):
    """The wait was interrupted and given up; the run itself goes on."""
