"""Reads a Python command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_TAKES_VALUE = frozenset("WX")


class PythonCommand(NamedTuple):
    """The target of a Python command line: a ``-m`` module, ``-c`` code, or a file; one is set."""

    module: str = ""
    code: str = ""
    file: str = ""


def parse_python(arguments: Sequence[str]) -> PythonCommand:
    """Read the options of a Python command line up to what it runs."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            return PythonCommand(file="" if word == "-" else word)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                del rest[:1]
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter in "cm" or letter in _TAKES_VALUE:
                value = word[place:] or (rest.pop(0) if rest else "")
                if letter == "c":
                    return PythonCommand(code=value)
                if letter == "m":
                    return PythonCommand(module=value)
                break
    return PythonCommand()
