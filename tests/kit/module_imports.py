"""The imports of the package's modules, read from their text."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "jupyter_gpugate"
#: Modules on top, used by every folder whose first line lists them; they need nothing of ours.
SHARED = {"places", "proc"}
#: A run's or a notebook's own libraries, used where its environment happens to have them.
GUESTS = {"cloudpickle", "comm", "jax", "numpy", "pandas", "tensorflow", "torch"}


class Import(NamedTuple):
    """One imported module; ``lazy`` when importing the importer does not import it."""

    name: str
    lazy: bool
    line: int
    relative: bool = False

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def module_names() -> list[str]:
    """Name every module without the package's own name: "" is the package, "core" its folder."""
    paths = (ROOT / PACKAGE).rglob("*.py")
    parts = [p.relative_to(ROOT / PACKAGE).with_suffix("").parts for p in paths]
    return sorted(".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts)


MODULES = module_names()


def path_of(module: str) -> Path:
    """Return the file of a module named as in `module_names`."""
    stem = ROOT.joinpath(PACKAGE, *module.split(".")) if module else ROOT / PACKAGE
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


@functools.cache
def imports_of(module: str) -> tuple[Import, ...]:
    """All that a module imports by a name in its text, for type checkers alone as well."""
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    return tuple(imports_in(tree, module, lazy=False))


def imports_in(node: ast.AST, module: str, *, lazy: bool) -> Iterator[Import]:
    """Yield the imports below a node of a module's syntax tree."""
    """Yield the imports below a node of a module's syntax tree."""
    lazy = lazy or (isinstance(node, ast.If) and _is_for_types(node))
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, lazy, node.lineno) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        relative = node.level > 0
        yield from (Import(name, lazy, node.lineno, relative) for name in _sources(node, module))
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        literals = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        yield from (Import(str(name), lazy, node.lineno) for name in literals)
    lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for child in ast.iter_child_nodes(node):
        yield from imports_in(child, module, lazy=lazy)


def _is_for_types(node: ast.If) -> bool:
    """Whether only type checkers read a block."""
    return ast.unparse(node.test).endswith("TYPE_CHECKING")


def _sources(node: ast.ImportFrom, module: str) -> list[str]:
    """``from a import b`` imports a.b where that is a module, else a."""
    source = node.module or ""
    if node.level:
        here = [PACKAGE, *filter(None, module.split("."))]
        if path_of(module).name != "__init__.py":
            here.pop()
        base = here[: len(here) - node.level + 1]
        source = ".".join([*base, source]) if source else ".".join(base)
    inner = [f"{source}.{alias.name}" for alias in node.names]
    return [name if own_name(name) in MODULES else source for name in inner]


def own_name(name: str) -> str | None:
    """Return a module's name within the package; None for everybody else's."""
    top, _, rest = name.partition(".")
    return rest if top == PACKAGE else None


def part_of(module: str) -> str:
    """Return the folder, or the module itself when it lies on top."""
    return module.partition(".")[0]
