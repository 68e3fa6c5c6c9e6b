"""The statements of a cell, and the names that each of them reads, binds and changes."""

from __future__ import annotations

import ast
import dis
import inspect
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

from .syntax import called_name, is_store, origin_name, outside_functions, root_name

_READS = frozenset(
    {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"}
)
_RUN_IN_PLACE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
#: Calls that change nothing in the process that makes them.
_ONLY_REPORTS = frozenset(
    {"print", "display", "debug", "info", "warning", "error", "critical", "log"}
)
#: Functions of modules that change only the state of this process.  The start method is excluded: a
#: started process has it already, and setting it twice is an error.
_SETTING = re.compile(
    r"(?!set_start_method)(set|use|enable|disable|register|configure|setup|install|seed|filter)(_\w+)?"
    r"|\w*seed(_all|_everything)?|basicConfig|dictConfig|fileConfig|\w+_logging|config|simplefilter"
    r"|filterwarnings|captureWarnings|setLevel|addHandler|load_dotenv|chdir|umask|addsitedir"
    r"|insert|append|extend|update|setdefault"
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_TRIES: tuple[type, ...] = tuple(getattr(ast, n) for n in ("Try", "TryStar") if hasattr(ast, n))


class Statement:
    """One statement of a cell, with the names of the cell that it reads, binds and changes."""

    def __init__(self, node: ast.stmt, around: Sequence[ast.expr], code: types.CodeType) -> None:
        self.node = node
        self.binds: set[str] = set()
        self.makes: set[str] = set()  # by `global`, once the function is called
        self.now: set[str] = set()  # read when the statement is executed
        self.later: set[str] = set()  # read by functions in it
        self._take(code, in_function=False, in_class=False)
        self.now |= {n.id for test in around for n in ast.walk(test) if isinstance(n, ast.Name)}
        self.later |= _annotated(node)
        self.stores = {root_name(n) for n in outside_functions(node) if is_store(n)} - {""}
        calls = [n for n in outside_functions(node) if isinstance(n, ast.Call)]
        self.calls = [call for call in calls if called_name(call) not in _ONLY_REPORTS]
        self.passes = {name for call in self.calls for name in _passed(call)}
        self.is_import = isinstance(node, _IMPORTS)
        self.is_definition = isinstance(node, _DEFINITIONS)

    def _take(self, code: types.CodeType, *, in_function: bool, in_class: bool) -> None:
        for step in dis.get_instructions(code):
            inner = step.argval
            if isinstance(inner, types.CodeType):
                is_function = bool(inner.co_flags & inspect.CO_NEWLOCALS)
                is_function = is_function and inner.co_name not in _RUN_IN_PLACE
                self._take(inner, in_function=in_function or is_function, in_class=not is_function)
            elif step.opname in _READS:
                (self.later if in_function else self.now).add(inner)
            elif step.opname == "STORE_GLOBAL":
                (self.makes if in_function else self.binds).add(inner)
            elif step.opname == "STORE_NAME" and not in_class:
                self.binds.add(inner)

    def sets(self, modules: set[str]) -> bool:
        """Return whether it changes a setting of this process in a module that the cell imports."""
        simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Expr)
        if not isinstance(self.node, simple):
            return False
        if self.stores and self.stores <= modules:
            return True
        value = getattr(self.node, "value", None)
        if not isinstance(value, ast.Call) or not self.binds <= {"_"}:
            return False
        return bool(_SETTING.fullmatch(called_name(value))) and origin_name(value) in modules


def _passed(call: ast.Call) -> set[str]:
    """Return the names of the objects that a call may change: its own one and its arguments."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    own = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return {origin_name(node) for node in (*own, *arguments)} - {""}


def _annotated(node: ast.AST) -> set[str]:
    """Return the names in annotations, which are not in the compiled code if they are text."""
    found: set[str] = set()
    for inner in ast.walk(node):
        for written in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            for name in ast.walk(written) if written is not None else ():
                if isinstance(name, ast.Name):
                    found.add(name.id)
                elif isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found |= set(re.findall(r"[^\W\d]\w*", name.value))
    return found


def _names_a_value(test: ast.expr) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(test))


def single_statements(
    body: Sequence[ast.stmt], around: tuple[ast.expr, ...] = ()
) -> Iterator[tuple[ast.stmt, tuple[ast.expr, ...]]]:
    """Yield the statements of a cell, those under `if` and `try` one by one, with their tests."""
    for node in body:
        if isinstance(node, ast.If) and not _names_a_value(node.test):
            yield from single_statements([*node.body, *node.orelse], (*around, node.test))
        elif isinstance(node, _TRIES):
            tried: Any = node
            kinds = tuple(handler.type for handler in tried.handlers if handler.type is not None)
            caught = [statement for handler in tried.handlers for statement in handler.body]
            every = [*tried.body, *caught, *tried.orelse, *tried.finalbody]
            yield from single_statements(every, (*around, *kinds))
        else:
            yield node, around


def thinned_block(body: Sequence[ast.stmt], chosen: set[ast.stmt]) -> list[ast.stmt]:
    """Return a block reduced to the chosen statements and the `if` and `try` around them."""
    kept: list[ast.stmt] = []
    for node in body:
        if node in chosen or not isinstance(node, (ast.If, *_TRIES)):
            kept += [node] if node in chosen else []
        elif any(leaf in chosen for leaf, _ in single_statements([node])):
            kept.append(_thinned_statement(node, chosen))
    return kept


def _thinned_statement(node: Any, chosen: set[ast.stmt]) -> ast.stmt:
    fields = {name: getattr(node, name) for name in node._fields}
    nothing = ast.copy_location(ast.Pass(), node)
    fields["body"] = thinned_block(node.body, chosen) or [nothing]
    fields["orelse"] = thinned_block(node.orelse, chosen)
    if not isinstance(node, ast.If):
        fields["finalbody"] = thinned_block(node.finalbody, chosen)
        fields["handlers"] = [_thinned_handler(each, chosen, nothing) for each in node.handlers]
    made: ast.stmt = ast.copy_location(type(node)(**fields), node)
    return made


def _thinned_handler(node: ast.ExceptHandler, chosen: set[ast.stmt], nothing: ast.Pass) -> ast.AST:
    body = thinned_block(node.body, chosen) or [nothing]
    return ast.copy_location(ast.ExceptHandler(node.type, node.name, body), node)
