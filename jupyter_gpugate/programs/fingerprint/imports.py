"""Finds the imports in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

#: Functions that import the module that their first argument names.
_IMPORTING_FUNCTIONS = frozenset({"import_module", "__import__"})
#: The classes of nodes that may be an import.
IMPORTING_NODES = (ast.Import, ast.ImportFrom, ast.Call, ast.Assign)


class Import(NamedTuple):
    """One import as it is written; ``__all__`` of a package has the level -1."""

    level: int
    module: str
    names: tuple[str, ...]

    def modules(self, package: str) -> Iterator[str]:
        """Yield the absolute name of every module that it imports, or may import."""
        if self.level < 0:
            if package:
                yield from (f"{package}.{name}" for name in self.names)
            return
        base = _absolute_name(self.module, self.level, package)
        yield base
        # A name imported from a package may be one of its modules; so may one in __all__.
        yield from (f"{base}.{name}" for name in self.names)


def is_import(node: Any) -> bool:
    """Tell whether a node imports modules, or names those that ``*`` imports."""
    if isinstance(node, ast.Call):
        return _function_name(node) in _IMPORTING_FUNCTIONS
    return isinstance(node, (ast.Import, ast.ImportFrom)) or (
        isinstance(node, ast.Assign) and _assigns_all(node)
    )


def imports_of(node: Any) -> Iterator[Import]:
    """Yield the imports of a node for which `is_import` is true."""
    if isinstance(node, ast.Import):
        yield from (Import(0, alias.name, ()) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        names = tuple(alias.name for alias in node.names if alias.name != "*")
        yield Import(node.level, node.module or "", names)
    elif isinstance(node, ast.Call):
        name = node.args[0] if node.args else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            bare = name.value.lstrip(".")
            yield Import(len(name.value) - len(bare), bare, ())
    else:
        found = (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))
        yield Import(-1, "", tuple(name for name in found if isinstance(name, str)))


def _absolute_name(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name}" if name and base else name or base


def _function_name(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _assigns_all(node: ast.Assign) -> bool:
    return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
