"""Names in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def called_name(node: ast.Call) -> str:
    """Return the last part of a called function's name, or ""."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def bound_names(*nodes: ast.AST) -> frozenset[str]:
    """Return every name that is bound somewhere in ``nodes``, except those of comprehensions."""
    names: set[str] = set()
    every = [inner for outer in nodes for inner in ast.walk(outer)]
    own = {id(n) for c in every if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
    for node in every:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names |= set() if id(node) in own else {node.id}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return frozenset(names)


def line_of(node: ast.AST) -> int:
    """Return the line of a node; 0 if it has none."""
    return getattr(node, "lineno", 0)


def root_name(node: ast.AST) -> str:
    """Return the name that a chain of attributes and items begins with, or ""."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_store(node: ast.AST) -> bool:
    """Return whether a node is an attribute or item that is assigned or deleted."""
    is_place = isinstance(node, (ast.Attribute, ast.Subscript))
    return is_place and not isinstance(getattr(node, "ctx", None), ast.Load)


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement's nodes except the bodies of functions, which only a call executes."""
    todo = [node]
    while todo:
        inner = todo.pop()
        yield inner
        if isinstance(inner, _FUNCTIONS):
            todo += [*getattr(inner, "decorator_list", ()), *inner.args.defaults]
            todo += [default for default in inner.args.kw_defaults if default is not None]
        else:
            todo += ast.iter_child_nodes(inner)


def origin_name(node: ast.AST) -> str:
    """Return the name that a chain of attributes, items and calls begins with, or ""."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
