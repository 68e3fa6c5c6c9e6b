"""Printed output and requests for input, as a notebook's cell expects them."""

from __future__ import annotations

import builtins
import contextlib
import os
import sys

from .after_import import AfterImport


def print_utf8() -> None:
    """Make printed output UTF-8 in every locale, as in a notebook."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def refuse_input() -> None:
    """Make requests for input fail with an explanation."""
    ask, stdin = input, sys.stdin

    def no_keyboard(prompt: object = "", *_: object, **__: object) -> str:
        if sys.stdin is not stdin:  # the cell has replaced it
            return ask(prompt)
        asked = f" to answer `{str(prompt).strip()[:80]}`" if str(prompt).strip() else ""
        raise EOFError(f"runs have no keyboard{asked}: give the value by --input or --set")

    def no_password(*_: object, **__: object) -> str:
        raise EOFError("runs have no keyboard: set the secret in the notebook's `os.environ`")

    def no_debugger(*_: object, **__: object) -> None:
        raise RuntimeError("runs have no keyboard for a debugger: remove `breakpoint()`")

    builtins.input = no_keyboard
    AfterImport({"getpass": lambda module: setattr(module, "getpass", no_password)})
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = no_debugger
