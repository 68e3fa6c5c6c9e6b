"""Finds the names that a cell uses, binds and imports, from its compiled code.

The compiler's own view is used because it knows evaluation order and scopes: ``x = x + 1`` reads
an outer ``x``, ``for x in xs: print(x)`` does not.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import re
import types
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Top-level await works in a cell.
_FLAGS: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_MAGIC_LINE: Final = re.compile(r"\s*([%!?]|[^=]+=\s*[%!])|.*\?\s*$")
_READS: Final = frozenset(
    {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"}
)
_COMPREHENSIONS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
#: By these a cell may bind names that the compiler does not know.
_BINDS_ANY_NAME: Final = frozenset({"exec", "globals", "locals", "vars"})
#: Names that the run itself provides.
PROVIDED: Final = frozenset({"episodes", "worker", "workers", "params"})
#: Names that IPython gives to every notebook, and to a run as well.
_EVERYWHERE: Final = frozenset({"exit", "get_ipython", "open", "quit"})


class CellError(ValueError):
    """The cell cannot become a run; the message names the line and what to do."""


@dataclass(frozen=True)
class Scope:
    """Names of a cell: read before it binds them, bound by it, and whether it imports ``*``."""

    used: frozenset[str]
    bound: frozenset[str]
    star_import: bool


def read(source: str) -> Scope:
    """Compile ``source`` and return its names; raise `CellError` with the wrong line."""
    code = _compiled(source)
    walk = _Walk()
    walk.module_level(code)
    # A function's body runs when everything at module level may be bound already.
    for body in walk.functions:
        walk.used |= _globals_of(body) - walk.bound
    return Scope(frozenset(walk.used), frozenset(walk.bound), "*" in _imported(source))


def defined(notebook: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of a notebook: from its cells, its start-up files and its history.

    ``hidden`` are the names of IPython itself and of start-up files.
    """
    everywhere = {name for name in _EVERYWHERE if notebook.get(name) is hidden.get(name)}
    return {name: value for name, value in notebook.items() if name not in everywhere}


def missing(scope: Scope, notebook: Mapping[str, Any], given: frozenset[str]) -> list[str]:
    """Return the names that the cell uses and only the notebook defines, sorted.

    After ``from module import *`` the origin of a name is unknown: then none is missing.
    """
    if scope.star_import:
        return []
    known = given | PROVIDED
    return sorted(n for n in scope.used - known if n in notebook and not n.startswith("__"))


def parameters_by_name(
    scope: Scope, notebook: Mapping[str, Any], parameters: Collection[str]
) -> list[str]:
    """Name the parameters of the run that the cell uses as if they were variables, sorted.

    A builtin is none, nor is a name that the cell may bind in a way that the compiler cannot see,
    unless the notebook has it too.
    """
    used = scope.used & frozenset(parameters) - PROVIDED
    if scope.star_import:
        return []
    own = used if scope.used & _BINDS_ANY_NAME else scope.bound | vars(builtins).keys()
    return sorted(name for name in used if name in notebook or name not in own)


def parameter_remedy(name: str, notebook: Mapping[str, Any]) -> str:
    """Say in one sentence how the cell reads a parameter."""
    other = f", or add --input {name} for the notebook's own" if name in notebook else ""
    return f'`{name}` is a parameter of the run: write `params["{name}"]` in the cell{other}'


def is_same_for_all(scope: Scope) -> bool:
    """Return whether a cell reads no parameter, so that a sweep would repeat it unchanged."""
    return not scope.star_import and not scope.used & {"params", *_BINDS_ANY_NAME}


def remedy(names: Sequence[str], notebook: Mapping[str, Any]) -> str:
    """Say in one sentence how these names of the notebook, one at least, get into the run."""
    modules = [name for name in names if isinstance(notebook[name], types.ModuleType)]
    if modules:
        name, where = modules[0], notebook[modules[0]].__name__
        line = f"import {where}" if where == name else f"import {where} as {name}"
        return f"`{name}` is imported in this notebook but not in the cell: add `{line}` to it"
    listed = ", ".join(f"`{name}`" for name in names)
    verb = "is" if len(names) == 1 else "are"
    add = f"add --input {','.join(names)}"
    return f"{listed} {verb} defined in this notebook but not given to the run: {add}"


def _compiled(source: str) -> types.CodeType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code: types.CodeType = compile(source, "<cell>", "exec", _FLAGS, dont_inherit=True)
            return code
    except SyntaxError as error:
        raise CellError(_what_is_wrong(source, error)) from None
    except ValueError as error:  # a NUL character
        raise CellError(f"the cell is not Python source: {error}") from None


def _what_is_wrong(source: str, error: SyntaxError) -> str:
    number = error.lineno or 1
    lines = source.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    if re.match(r"%matplotlib\s+inline\b", line):
        return f"line {number} `{line}`: remove it; a run shows figures without it"
    if _MAGIC_LINE.match(line):
        return (
            f"line {number} `{line}`: %, ! and ? lines belong to the notebook and do not work in "
            "a run; move it to a cell of its own, or use subprocess"
        )
    return f"line {number} `{line}`: {error.msg}"


class _Walk:
    """Collects names in evaluation order; bodies of functions are put aside."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.used: set[str] = set()
        self.functions: list[types.CodeType] = []

    def module_level(self, code: types.CodeType) -> None:
        self._walk(code, self.bound)

    def _walk(self, code: types.CodeType, own: set[str]) -> None:
        for step in dis.get_instructions(code):
            name = step.argval
            if isinstance(name, types.CodeType):
                self._enter(name)
            elif step.opname == "STORE_NAME":
                own.add(name)
            elif step.opname == "STORE_GLOBAL":  # by `global`, or by := in a comprehension
                self.bound.add(name)
            elif step.opname in _READS and name not in own | self.bound:
                self.used.add(name)

    def _enter(self, code: types.CodeType) -> None:
        # Class bodies and comprehensions run where they stand.
        if code.co_flags & inspect.CO_NEWLOCALS and code.co_name not in _COMPREHENSIONS:
            self.functions.append(code)
            self.bound |= _made_global(code)
        else:
            self._walk(code, set())


def _globals_of(code: types.CodeType) -> set[str]:
    """Every global that ``code`` or anything inside it reads and did not bind itself."""
    read: set[str] = set()
    own: set[str] = set()
    for step in dis.get_instructions(code):
        if isinstance(step.argval, types.CodeType):
            read |= _globals_of(step.argval)
        elif step.opname == "STORE_NAME":
            own.add(step.argval)
        elif step.opname in _READS and step.argval not in own:
            read.add(step.argval)
    return read


def _made_global(code: types.CodeType) -> set[str]:
    """Every name that ``code`` or a function inside it binds by a ``global`` statement."""
    made: set[str] = set()
    for step in dis.get_instructions(code):
        if isinstance(step.argval, types.CodeType):
            made |= _made_global(step.argval)
        elif step.opname == "STORE_GLOBAL":
            made.add(step.argval)
    return made


def _imported(source: str) -> set[str]:
    tree = compile(source, "<cell>", "exec", flags=_FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in nodes for alias in node.names}
