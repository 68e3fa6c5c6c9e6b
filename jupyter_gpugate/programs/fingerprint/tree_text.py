"""Writes a syntax tree as text: without positions and empty fields, alike in all Pythons.

There are two ways to the same text.  `plain_text_of` defines it and has no limit of depth.
`text_of` takes a third of the time: one writer for each class of nodes, found by its class, which
also collects the imports on the way.
"""

from __future__ import annotations

import ast
from typing import Any, Callable

from .imports import IMPORTING_NODES, is_import

Writer = Callable[[Any, list[Any]], str]


def plain_text_of(tree: ast.AST) -> str:
    """Return the text of a tree of any depth."""
    out: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.Constant):
            out.append(f"{type(item.value).__name__} {item.value!r}")
        elif isinstance(item, ast.AST):
            out.append(f"({type(item).__name__}")
            waiting.append(")")
            for name in reversed(item._fields):
                value = getattr(item, name, None)
                if isinstance(item, ast.JoinedStr):
                    value = _join_literals(value)
                if value is not None and value != []:
                    waiting += [value, f".{name}"]
        elif isinstance(item, list):
            waiting += ["]", *reversed(item), "["]
        else:
            out.append(item if isinstance(item, str) else repr(item))
    return "\n".join(out)


def _join_literals(values: Any) -> list[Any]:
    """Join the literal pieces of an f-string, which versions of Python cut differently."""
    joined: list[Any] = []
    for value in values:
        last = joined[-1] if joined else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            joined[-1] = ast.Constant(str(last.value) + str(value.value))
        elif not isinstance(value, ast.Constant) or value.value:
            joined.append(value)
    return joined


def text_of(item: Any, imports: list[Any]) -> str:
    """Return the text of a tree and add its imports to a list; may raise a RecursionError."""
    return (_WRITERS.get(item.__class__) or _writer_of(item.__class__))(item, imports)


def _write_list(items: list[Any], imports: list[Any]) -> str:
    return "[\n" + "\n".join([text_of(item, imports) for item in items]) + "\n]"


def _write_constant(node: ast.Constant, _imports: list[Any]) -> str:
    return f"{type(node.value).__name__} {node.value!r}"


def _write_name(node: ast.Name, _imports: list[Any]) -> str:
    return f"(Name\n.id\n{node.id}\n.ctx\n({type(node.ctx).__name__}\n)\n)"


def _write_attribute(node: ast.Attribute, imports: list[Any]) -> str:
    value = text_of(node.value, imports)
    context = type(node.ctx).__name__
    return f"(Attribute\n.value\n{value}\n.attr\n{node.attr}\n.ctx\n({context}\n)\n)"


def _write_string(node: ast.JoinedStr, imports: list[Any]) -> str:
    values = _join_literals(node.values)
    if not values:
        return "(JoinedStr\n)"
    return f"(JoinedStr\n.values\n{_write_list(values, imports)}\n)"


_WRITERS: dict[type, Writer] = {
    str: lambda text, _imports: str(text),
    list: _write_list,
    ast.Constant: _write_constant,
    ast.Name: _write_name,
    ast.Attribute: _write_attribute,
    ast.JoinedStr: _write_string,
}


def _writer_of(kind: type) -> Writer:
    """Make the writer of a class of nodes, or of plain values, and keep it."""
    if issubclass(kind, ast.AST):
        writer = _writer_of_nodes(kind)
    else:
        writer = lambda value, _imports: repr(value)  # noqa: E731 - one of two
    _WRITERS[kind] = writer
    return writer


def _writer_of_nodes(kind: type[ast.AST]) -> Writer:
    begin = f"({kind.__name__}"
    fields = [(name, f"\n.{name}\n") for name in kind._fields]
    may_import = issubclass(kind, IMPORTING_NODES)

    def write(node: Any, imports: list[Any]) -> str:
        if may_import and is_import(node):
            imports.append(node)
        text = begin
        for name, label in fields:
            value = getattr(node, name, None)
            if value is not None and value != []:
                text += label + text_of(value, imports)
        return text + "\n)"

    return write
