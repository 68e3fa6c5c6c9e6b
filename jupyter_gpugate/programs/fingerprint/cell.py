"""Describes a cell: its imports, its notebook commands and its first syntax error."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any, Optional

from .import_graph import NewGraph
from .modules import absolute
from .summaries import UNREADABLE, parse

_MAGIC = re.compile(r"\s*([%!?]|[^=]+=\s*[%!])|.*\?\s*$")


def describe_cell(
    source: str, cwd: str, path: Sequence[str], new_graph: NewGraph
) -> dict[str, Any]:
    """Describe the source of a cell, by its bytes where it is not plain Python."""
    graph = new_graph(absolute(path, cwd))
    magic, error = find_problems(source)
    if error is None and not magic:
        graph.add_tree("<cell>", parse(source), package="")
    else:
        graph.add_bytes("<cell>", source.encode("utf-8", "surrogatepass"))
    return {**graph.answer(), "magic_lines": magic, "syntax_error": error}


def find_problems(source: str) -> tuple[list[dict[str, Any]], Optional[dict[str, Any]]]:
    """Return the lines that are notebook commands, and the first syntax error besides them."""
    magic: list[dict[str, Any]] = []
    lines = source.split("\n")
    if "\0" in source:
        number = source.partition("\0")[0].count("\n") + 1
        return magic, _problem(number, lines, "there is a NUL character")
    while True:
        try:
            _compile("\n".join(lines))
        except SyntaxError as error:
            number = min(error.lineno or 1, len(lines))
            text = lines[number - 1]
            if not _MAGIC.match(text):
                return magic, _problem(number, lines, error.msg, error.offset)
            magic.append({"line": number, "text": text.strip()})
            lines[number - 1] = text[: len(text) - len(text.lstrip())] + "pass"
        except UNREADABLE as error:
            return magic, _problem(1, lines, f"{type(error).__name__}: {error}")
        else:
            return magic, None


def _problem(
    number: int, lines: Sequence[str], message: str, column: Optional[int] = None
) -> dict[str, Any]:
    return {"line": number, "column": column, "message": message, "text": lines[number - 1]}


def _compile(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(source, "<cell>", "exec", flags, dont_inherit=True)
