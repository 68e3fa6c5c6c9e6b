"""The parts of a cell that a function or a class of it needs."""

from __future__ import annotations
import __future__

import ast
import functools
import operator
import types
from collections.abc import Iterable, Iterator
from typing import Any

from .statements import Statement, single_statements
from .syntax import bound_names, called_name, origin_name, outside_functions

#: With one of these a function may read any name.
READS_ANY_NAME = frozenset({"globals", "locals", "vars", "eval", "exec"})
#: Calls that are repeated without a warning: they compute a small value from their arguments.
_COMPUTES = frozenset(
    {"Counter", "Enum", "Fraction", "Decimal", "IntEnum", "Lock", "NewType", "Path", "PurePath"}
    | {"Random", "RLock", "SimpleNamespace", "TypeVar", "array", "arange", "compile", "count"}
    | {"defaultdict", "default_rng", "deque", "device", "dict", "environ", "field", "float"}
    | {"format", "frozenset", "get", "getLogger", "getcwd", "getenv", "int", "is_available", "join"}
    | {"len", "linspace", "list", "lower", "max", "min", "namedtuple", "ones", "partial", "range"}
    | {"set", "sorted", "split", "str", "strip", "sum", "tensor", "time", "timedelta", "tuple"}
    | {"uname", "upper", "zeros", "zip", "cpu_count", "device_count", "get_context", "local"}
)
#: Nodes of values that no call can change.
_PLAIN: tuple[type, ...] = (
    *(ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.operator, ast.unaryop, ast.boolop),
    *(ast.cmpop, ast.expr_context),
)
_MAKES_AN_INSTANCE = frozenset({"__init__", "__new__", "__post_init__"})


def _light_classes(definitions: Iterable[Any]) -> set[str]:
    """Return the classes that take no work to instantiate: their own `__init__` loads nothing."""
    light: set[str] = set()
    heavy: set[str] = set()
    for node in definitions:
        if not isinstance(node, ast.ClassDef):
            continue
        made = [f for f in node.body if getattr(f, "name", "") in _MAKES_AN_INSTANCE]
        calls = [n for function in made for n in ast.walk(function) if isinstance(n, ast.Call)]
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        known = _COMPUTES | light | _MAKES_AN_INSTANCE | {"super"}
        is_light = not bases & heavy and all(called_name(call) in known for call in calls)
        (light if is_light else heavy).add(node.name)
    return light


class Outline:
    """A cell's statements, and those among them that a function or a class of the cell needs.

    Imports, settings and definitions are always included: they are cheap, and other modules may
    rely on them.  Any other statement is included for a name that is read.  A statement that may
    change an object counts as one that makes it.
    """

    def __init__(self, source: str, path: str) -> None:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.tree: Any = compile(source, path, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        self._path, self._flags = path, flags | _future_flags(self.tree)
        leaves = list(single_statements(self.tree.body))
        self.parts = [Statement(leaf, around, self.code([leaf])) for leaf, around in leaves]
        self.modules = {name for part in self.parts if part.is_import for name in part.binds}
        definitions = [part for part in self.parts if part.is_definition]
        self.defined = {name for part in definitions for name in part.binds}
        self._classes = _light_classes(part.node for part in definitions)
        self._aliases = self._all_aliases()
        self.steady = self._unchangeable()
        for part in self.parts:
            for name in self._made_by_calls(part):
                part.binds |= name
        self.settings = {part for part in self.parts if part.sets(self.modules)}
        self.always = self._always()

    def code(self, body: list[ast.stmt]) -> types.CodeType:
        """Compile some statements with the cell's own `from __future__`."""
        tree = ast.Module(body, type_ignores=[])
        made: types.CodeType = compile(tree, self._path, "exec", self._flags, dont_inherit=True)
        return made

    def needed(self, name: str) -> tuple[set[Statement], set[str]]:
        """Return the statements that ``name`` needs, and all names that they read."""
        chosen = set(self.always)
        todo = [name, *(read for part in chosen for read in part.now)]
        # A definition that is only made, not called, reads nothing in its body yet.
        seen: set[str] = set()
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            for part in self.parts:
                if self._makes(part, one):
                    chosen.add(part)
                    # What it binds by `global` has its first value before it is called.
                    todo += part.now | part.later | part.makes
        if seen & READS_ANY_NAME:
            return set(self.parts), seen
        return chosen, seen

    def is_quiet(self, part: Statement) -> bool:
        """Return whether it may be repeated without a warning."""
        if part.is_import or part.is_definition or part in self.settings:
            return True
        if isinstance(part.node, (ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)):
            return False
        return all(called_name(call) in _COMPUTES | self._classes for call in part.calls)

    def _makes(self, part: Statement, name: str) -> bool:
        if name in part.binds:
            return True
        changed = part.stores if name in self.steady else part.stores | part.passes
        return name in changed or any(self._aliases.get(one, "") == name for one in changed)

    def _unchangeable(self) -> set[str]:
        """Return names of modules, functions, classes, and of values that no call can change."""
        plain = {"params", "worker", "workers"}
        other: set[str] = set()
        for part in self.parts:
            value = getattr(part.node, "value", None)
            nodes = list(ast.walk(value)) if isinstance(value, ast.expr) else [part.node]
            is_plain = all(
                node.id in plain - other if isinstance(node, ast.Name) else isinstance(node, _PLAIN)
                for node in nodes
            )
            (plain if is_plain else other).update(part.binds)
        return plain - other | self.modules | self.defined

    def _all_aliases(self) -> dict[str, str]:
        """Map a name to the object that it is a part of: `layer = model.fc`, `for x in xs`."""
        found: dict[str, str] = {}
        for part in self.parts:
            for node in outside_functions(part.node):
                if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
                    pairs = [(target, node.value) for target in node.targets]
                elif isinstance(node, (ast.For, ast.AsyncFor)):
                    pairs = [(node.target, node.iter)]
                else:
                    continue
                for target, value in pairs:
                    for name in bound_names(target):
                        found.setdefault(name, origin_name(value))
        return found

    def _made_by_calls(self, part: Statement) -> Iterator[set[str]]:
        """Yield the names bound by `global` in functions of the cell that this statement calls."""
        for other in self.parts:
            if other.is_definition and other.makes and other.binds & part.now and part.calls:
                yield other.makes

    def _always(self) -> set[Statement]:
        cheap = self.modules | self.steady
        for part in self.parts:
            if self.is_quiet(part):
                cheap |= part.binds
        every = set(self.settings)
        for part in self.parts:
            own = {name for other in self.parts for name in other.binds} & part.now
            if part.is_import or (part.is_definition and own <= cheap):
                every.add(part)
        return every


def _future_flags(tree: ast.Module) -> int:
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    names = [alias.name for node in imports for alias in node.names]
    flags: list[int] = [getattr(__future__, n).compiler_flag for n in names if n in dir(__future__)]
    return functools.reduce(operator.or_, flags, 0)
