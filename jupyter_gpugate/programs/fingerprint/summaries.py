"""Summarizes one file: a digest of its syntax tree or of its bytes, and its imports."""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from typing import Any, NamedTuple, Optional

from .files import FileSystem, digest
from .imports import Import, imports_of, is_import
from .tree_text import plain_text_of, text_of

#: What the compiler raises, besides a SyntaxError, for odd characters and for too deep a nesting.
UNREADABLE = (ValueError, RecursionError, MemoryError)
_DIGEST = re.compile("[0-9a-f]{64}")


class Summary(NamedTuple):
    """The contribution of one file to a fingerprint."""

    digest: str
    imports: tuple[Import, ...]


def parse(source: str | bytes) -> ast.Module:
    """Parse Python without warnings about what it contains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def summary_of(tree: ast.AST) -> Summary:
    """Summarize a syntax tree, alike in all versions of Python."""
    nodes: list[Any] = []
    try:
        text = text_of(tree, nodes)
    except RecursionError:
        text, nodes = plain_text_of(tree), [node for node in ast.walk(tree) if is_import(node)]
    imports = dict.fromkeys(one for node in nodes for one in imports_of(node))
    return Summary(digest(text.encode("utf-8", "surrogatepass")), tuple(imports))


def summary_of_file(files: FileSystem, file: str, *, python: bool) -> Summary:
    """Summarize a file: by its tree if it is ``python`` and can be parsed, else by its bytes."""
    data = files.content(file) if python else b""
    if python:
        with contextlib.suppress(SyntaxError, *UNREADABLE):
            return summary_of(parse(data))
    return Summary(files.digest_of(file), ())


def summary_from_json(data: Any) -> Optional[Summary]:
    """Read a summary from JSON; None where the data are no summary."""
    try:
        digest_, imports = data
        read = Summary(digest_, tuple(Import(n, m, tuple(names)) for n, m, names in imports))
    except (TypeError, ValueError):
        return None
    texts = [text for one in read.imports for text in (one.module, *one.names)]
    sound = isinstance(digest_, str) and _DIGEST.fullmatch(digest_) is not None
    sound = sound and all(isinstance(one.level, int) for one in read.imports)
    return read if sound and all(isinstance(text, str) for text in texts) else None
