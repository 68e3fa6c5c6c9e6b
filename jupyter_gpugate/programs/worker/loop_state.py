"""Whether a loop over episodes carries anything but kept values from one to the next."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any, Optional

from .syntax import bound_names, called_name, line_of, root_name

_PROGRESS_BARS = frozenset({"tqdm", "tqdm_notebook", "track"})
_CHANGES_ITS_OBJECT = re.compile(
    "(add|append|clear|discard|extend|insert|pop|push|put|remove|reverse|setdefault|sort|step"
    "|update|write)(left|item|lines|row|rows)?"
)
_Names = frozenset  # that are surely bound at a point of the loop's body


def carried(tree: ast.AST) -> str:
    """Describe the state that a loop over ``episodes`` carries on; "" if there is none.

    In doubt there is some: the run then starts anew, which is correct for every cell.
    """
    loops = [
        n
        for n in ast.walk(tree)
        if isinstance(n, (ast.For, ast.AsyncFor)) and _is_over_episodes(n.iter)
    ]
    fine = {id(node) for loop in loops for node in ast.walk(loop.iter)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) or _calls(node, "len"):
            fine |= {id(child) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "episodes" and id(node) not in fine:
            return f"line {node.lineno} uses `episodes` otherwise than in a `for` loop"
        if isinstance(node, ast.Global):
            return f"line {node.lineno} changes the global `{node.names[0]}`"
    if len(loops) > 1:
        return f"line {loops[1].lineno} is a second loop over `episodes`"
    return _Loop(tree, loops[0]).carried() if loops else ""


def _is_over_episodes(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and node.args and called_name(node) in _PROGRESS_BARS:
        node = node.args[0]
    return isinstance(node, ast.Name) and node.id == "episodes"


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


class _Loop:
    """Follows one iteration in the order of evaluation, with the names that are surely bound."""

    def __init__(self, tree: ast.AST, loop: Any) -> None:
        self._loop = loop
        self._own = bound_names(loop.target, *loop.body)
        self._modules = bound_names(*(n for n in ast.walk(tree) if isinstance(n, ast.alias)))
        inside = {id(n) for n in ast.walk(loop)}
        end = max(getattr(node, "lineno", 0) for node in ast.walk(loop))
        self._after = [n for n in ast.walk(tree) if id(n) not in inside and line_of(n) > end]
        self._found: list[tuple[int, str]] = []

    def carried(self) -> str:
        self._block(self._loop.body, bound_names(self._loop.target))
        self._note_after_loop()
        if not self._found:
            return ""
        line, name = min(self._found)
        return f"`{name}` (line {line}) carries something from one episode to the next"

    def _note_after_loop(self) -> None:
        """Note names of the loop that are read after it, before they are bound again."""
        names = [node for node in self._after if isinstance(node, ast.Name)]
        anew: dict[str, int] = {}
        for node in names:
            if not isinstance(node.ctx, ast.Load):
                anew[node.id] = min(node.lineno, anew.get(node.id, node.lineno))
        for node in names:
            first = anew.get(node.id, node.lineno)
            if node.id in self._own and isinstance(node.ctx, ast.Load) and node.lineno <= first:
                self._found.append((node.lineno, node.id))

    def _block(self, body: Sequence[ast.stmt], bound: _Names[str]) -> Optional[_Names[str]]:
        """Return the names bound after ``body``, or None if its end is never reached."""
        after: Optional[_Names[str]] = bound
        for statement in body:
            if after is None:
                return None
            after = self._statement(statement, after)
        return after

    def _statement(self, node: Any, bound: _Names[str]) -> Optional[_Names[str]]:
        if isinstance(node, ast.If):
            self._note(node.test, bound)
            bound |= bound_names(node.test)
            return _both(self._block(node.body, bound), self._block(node.orelse, bound))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._inner_loop(node, bound)
            return bound
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._note(item, bound)
                bound |= bound_names(item)
            return self._block(node.body, bound)
        if isinstance(node, ast.Try):
            return self._try(node, bound)
        self._note(node, bound)
        leaves = isinstance(node, (ast.Continue, ast.Break, ast.Return, ast.Raise))
        return None if leaves else bound | bound_names(node)

    def _inner_loop(self, node: Any, bound: _Names[str]) -> None:
        head = node.test if isinstance(node, ast.While) else node.iter
        self._note(head, bound)
        target = frozenset() if isinstance(node, ast.While) else bound_names(node.target)
        self._block(node.body, bound | target | bound_names(head))
        self._block(node.orelse, bound)

    def _try(self, node: ast.Try, bound: _Names[str]) -> Optional[_Names[str]]:
        after = self._block(node.body, bound)
        if after is not None:
            after = self._block(node.orelse, after)
        for handler in node.handlers:
            caught = bound | ({handler.name} if handler.name else frozenset())
            after = _both(after, self._block(handler.body, caught))
        final = self._block(node.finalbody, bound)
        return None if final is None or after is None else after | final

    def _note(self, node: ast.AST, bound: _Names[str]) -> None:
        """Note names that ``node`` reads from an earlier iteration or changes for a later one."""
        bound |= frozenset(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        for inner in ast.walk(node):
            name = _read(inner)
            if name in self._own and name not in bound:
                self._found.append((line_of(inner), name))
            name = _changed(inner)
            if name and name not in bound | self._modules:
                self._found.append((line_of(inner), name))


def _both(one: Optional[_Names[str]], other: Optional[_Names[str]]) -> Optional[_Names[str]]:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _read(node: ast.AST) -> str:
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _changed(node: ast.AST) -> str:
    """Return the name of the object that ``node`` changes in place, or ""."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return root_name(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return root_name(node.func) if _CHANGES_ITS_OBJECT.fullmatch(node.func.attr) else ""
    return ""
