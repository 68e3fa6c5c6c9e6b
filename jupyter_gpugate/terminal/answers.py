"""Prints the answers of `jupyter gpugate`, as text or as JSON, and asks for confirmation."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Optional

from jupyter_gpugate.client.errors import Interrupted, SubmissionError
from jupyter_gpugate.terminal.follow import say, write


def show(options: argparse.Namespace, answer: Any, text: str) -> None:
    """Print an answer as JSON if that was asked for, else its text."""
    write(f"{json.dumps(answer, indent=2) if options.json else text}\n")


def width() -> Optional[int]:
    """Return the columns of the terminal that shows the output; None where none does."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def error(message: str, code: str, detail: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an error as the API has it."""
    return {"error": code, "message": message, "detail": dict(detail or {})}


def complain(message: str) -> None:
    """Print a problem on stderr."""
    say(f"jupyter gpugate: {message}")


def confirmed(options: argparse.Namespace, question: str, doing: str) -> bool:
    """Ask once at a terminal; elsewhere the option `--yes` must have been given."""
    if options.yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise SubmissionError(f"without a terminal nobody can confirm: add --yes to {doing}")
    say(f"{question} [y/N]")
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        raise Interrupted("nothing was changed") from None
