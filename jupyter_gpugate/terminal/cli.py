"""``jupyter gpugate VERB``: the entry, and the form of its errors."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from jupyter_gpugate.terminal.exits import CANCELLED, FAILED, MISUSED, UNAVAILABLE

if TYPE_CHECKING:
    from jupyter_gpugate.client.errors import GateError


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one verb and return the process's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a run prints more than some locales can say
        sys.stdout.reconfigure(errors="backslashreplace")
    if words[:1] == ["serve"]:
        from jupyter_gpugate.terminal.serving import serve

        return serve(words[1:])
    return _carried_out(_parsed(words))


def _parsed(words: list[str]) -> argparse.Namespace:
    from jupyter_gpugate.terminal.parser import parser

    own, command = _split(words)
    whole = parser()
    options, unknown = whole.parse_known_args(own)
    if unknown:
        _refuse(unknown, getattr(options, "parser", whole), words, command)
    options.command = command
    return options


def _carried_out(options: argparse.Namespace) -> int:
    from jupyter_gpugate.client.errors import GateError, SubmissionError

    try:
        code: int = options.verb.carry_out(options)
    except SubmissionError as error:
        return _complain(options, str(error), "bad_input", MISUSED)
    except GateError as error:
        message = error.message if options.json else str(error)
        return _complain(options, message, error.code, _code_of(error), error.detail)
    except KeyboardInterrupt as error:
        return _complain(options, f"interrupted: {error}".rstrip(": "), "interrupted", CANCELLED)
    return code


def _refuse(
    unknown: list[str],
    parser: argparse.ArgumentParser,
    words: list[str],
    command: Optional[list[str]],
) -> None:
    from jupyter_gpugate.client.options import unrecognized

    hint = "; put -- before the command" if words[:1] == ["run"] and not command else ""
    parser.error(unrecognized(unknown, parser) + hint)


def _split(words: list[str]) -> tuple[list[str], Optional[list[str]]]:
    """Everything behind the first ``--`` is the command of a run and none of our business."""
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _complain(
    options: argparse.Namespace,
    message: str,
    code: str,
    exit_with: int,
    detail: Optional[Mapping[str, Any]] = None,
) -> int:
    from jupyter_gpugate.terminal import answers

    if options.json:
        print(json.dumps(answers.error(message, code, detail)))
    else:
        answers.complain(message)
    return exit_with


def _code_of(error: GateError) -> int:
    from jupyter_gpugate.client.errors import GateUnreachable

    if isinstance(error, GateUnreachable):
        return UNAVAILABLE
    return MISUSED if error.status in (400, 413) else FAILED
