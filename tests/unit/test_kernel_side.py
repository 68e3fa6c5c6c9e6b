"""The kernel's side of the package: what it imports, and the oldest Python that it runs on."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.module_imports import (
    GUESTS,
    MODULES,
    PACKAGE,
    ROOT,
    SHARED,
    imports_of,
    part_of,
    path_of,
)

#: Where the oldest Python has to do.
KERNEL_SIDE = {
    *("", "__main__", "_version", "client", "core", "faces", "notebook", "programs", "terminal"),
    *SHARED,
}


HEAVY = {"jupyter_server", "psutil", "pydantic", "pynvml", "sqlalchemy", "torch", "tornado"}


def is_kernel_side(module: str) -> bool:
    """Whether a module must run in a kernel's environment."""
    return part_of(module) in KERNEL_SIDE


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) == "notebook"])
def test_the_notebook_loads_with_ipython_alone(module: str) -> None:
    """The kernel's side loads with the standard library and IPython, and takes more when used."""
    known = sys.stdlib_module_names | {PACKAGE, "IPython", "traitlets"}
    later = GUESTS | {"anywidget", "ipywidgets", "jupyter_core"}
    foreign = [i for i in imports_of(module) if i.top not in known]
    assert [i for i in foreign if not i.lazy or i.top not in later] == []


@pytest.mark.parametrize("module", [m for m in MODULES if is_kernel_side(m)])
def test_kernel_side_is_written_in_old_syntax(module: str) -> None:
    """What runs in a kernel's environment parses as CPython 3.9 would parse it."""
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"), feature_version=(3, 9))
    assert evaluated_unions(tree) == []


def evaluated_unions(tree: ast.Module) -> list[int]:
    """Find the lines where a type union is not an annotation but computed, which 3.9 cannot."""
    hints = [n.annotation for n in ast.walk(tree) if isinstance(n, (ast.arg, ast.AnnAssign))]
    hints += [n.returns for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    unread = {inner for hint in hints if hint is not None for inner in ast.walk(hint)}
    operations = [n for n in ast.walk(tree) if isinstance(n, ast.BinOp) and n not in unread]
    unions = [n for n in operations if isinstance(n.op, ast.BitOr)]
    types = {"None", "bool", "bytes", "dict", "float", "int", "list", "str", "tuple"}
    return [n.lineno for n in unions if types & {ast.unparse(n.left), ast.unparse(n.right)}]


def test_a_computed_union_is_found() -> None:
    """``isinstance(x, int | str)`` is refused on the kernel's side, an annotation is not."""
    source = (
        "def f(x: int | None) -> str | None:\n    y: int | str = 1\n    isinstance(x, int | str)"
    )
    assert evaluated_unions(ast.parse(source)) == [3]


def loaded_after(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter and return the top-level modules it has loaded."""
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_is_cheap() -> None:
    """``import jupyter_gpugate`` loads neither IPython nor anything that the gate needs."""
    loaded = loaded_after(f"import {PACKAGE}") - loaded_after("pass")
    assert loaded & (HEAVY | {"IPython", "ipywidgets", "asyncio"}) == set()


def test_the_kernel_loads_nothing_of_the_gate() -> None:
    """All modules of the kernel's side together load none of the gate's libraries."""
    modules = [m for m in MODULES if is_kernel_side(m) and not m.endswith("__main__")]
    names = [f"{PACKAGE}.{m}".rstrip(".") for m in modules]
    loaded = loaded_after(f"import {', '.join(names)}") - loaded_after("import IPython")
    assert loaded & HEAVY == set()


LOAD = """\
import importlib, json, pathlib, sys

what = json.load(sys.stdin)
sys.path.insert(0, sys.argv[1])
for path in what["files"]:
    compile(pathlib.Path(path).read_bytes(), path, "exec")
for name in what["names"]:
    importlib.import_module(name)
"""


def old_pythons() -> Iterator[str]:
    """Look for a CPython 3.9 on the PATH and among the versions that pyenv keeps."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in [shutil.which("python3.9"), *pyenv.glob("versions/3.9.*/bin/python")]:
        if path is not None:
            command = [str(path), "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 9))"]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                yield str(path)


def test_kernel_side_runs_on_the_oldest_python(tmp_path: Path) -> None:
    """CPython 3.9, without any package, compiles the kernel's side, and loads core and programs."""
    python = next(old_pythons(), None)
    if python is None:
        pytest.skip("no CPython 3.9 on this machine")
    files = [str(path_of(m)) for m in MODULES if is_kernel_side(m)]
    loaded = [m for m in MODULES if part_of(m) in {"core", "programs", *SHARED}]
    names = [f"{PACKAGE}.{m}" for m in loaded if not m.endswith("__main__")]
    script = tmp_path / "load.py"
    script.write_text(LOAD, encoding="utf-8")
    command = [python, "-I", "-S", "-B", "-W", "error", str(script), str(ROOT)]
    what = json.dumps({"files": files, "names": names})
    done = subprocess.run(command, input=what, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
