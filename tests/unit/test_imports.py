"""Which module may import which, and what the kernel's side may rest on, read off the code."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "jupyter_gpugate"
#: The first line of every folder.
LINE = re.compile(
    r"Runs in (?P<process>.+); may import (?P<parts>[^;]+?)(?:, and when used (?P<lazy>.+))?\.$"
)
#: Modules on top, used by every folder whose first line lists them; they need nothing of ours.
SHARED = {"places", "proc"}
#: The module that builds a gate; the others of its folder know the port alone.
BUILDER = "server.host"
#: Where the oldest Python has to do.
KERNEL_SIDE = {
    *("", "__main__", "_version", "client", "core", "faces", "notebook", "programs", "terminal"),
    *SHARED,
}
#: The life cycle of a run, which computes as the core does.
LIFE_CYCLE = ("runs.life", "runs.lifecycle")
#: All that it and `core` may use of the standard library: what neither acts nor asks the machine.
PURE = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "html", "itertools", "json", "math", "numbers", "operator",
    "re", "statistics", "string", "sys", "textwrap", "types", "typing",
}  # fmt: skip
HEAVY = {"jupyter_server", "psutil", "pydantic", "pynvml", "sqlalchemy", "torch", "tornado"}
#: A run's or a notebook's own libraries, used where its environment happens to have them.
GUESTS = {"cloudpickle", "comm", "jax", "numpy", "pandas", "tensorflow", "torch"}
#: Third-party modules that only one part may touch.
RESERVED = {"pynvml": "gate.gpu.child", "sqlalchemy": "gate.journal", "pydantic": "server.http"}


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
FOLDERS = sorted({m.rpartition(".")[0] for m in MODULES if "." in m})


def path_of(module: str) -> Path:
    """Return the file of a module named as in `module_names`."""
    stem = ROOT.joinpath(PACKAGE, *module.split(".")) if module else ROOT / PACKAGE
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


@functools.cache
def imports_of(module: str) -> tuple[Import, ...]:
    """All that a module imports by a name in its text, for type checkers alone as well."""
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    return tuple(_walk(tree, module, lazy=False))


def _walk(node: ast.AST, module: str, *, lazy: bool) -> Iterator[Import]:
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
        yield from _walk(child, module, lazy=lazy)


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
    return [name if _own(name) in MODULES else source for name in inner]


def _own(name: str) -> str | None:
    """Return a module's name within the package; None for everybody else's."""
    top, _, rest = name.partition(".")
    return rest if top == PACKAGE else None


def part_of(module: str) -> str:
    """Return the folder, or the module itself when it lies on top."""
    return module.partition(".")[0]


def folder_of(module: str) -> str:
    """Return the folder that a module lies in; a folder's own docstring counts as within it."""
    return module if path_of(module).name == "__init__.py" else module.rpartition(".")[0]


@functools.cache
def line_of(folder: str) -> re.Match[str] | None:
    """Read the first sentence of a folder, which says what runs it and what it may import."""
    doc = ast.get_docstring(ast.parse(path_of(folder).read_text(encoding="utf-8"))) or ""
    return LINE.match(doc.partition("\n\n")[0].replace("\n", " "))


def names_in(parts: str | None) -> list[str]:
    """The parts of the package that a line lists."""
    return [] if parts in {None, "nothing"} else str(parts).split(", ")


def may_import(importer: str, imported: str, *, lazy: bool) -> bool:
    """Tell whether the one may import the other; both are modules of the package."""
    if imported == "_version":
        return part_of(importer) != "programs"
    if importer == "":
        return lazy
    if importer == "__main__":
        return imported == "terminal.cli"
    if importer in SHARED:
        return imported in SHARED
    folder = folder_of(importer)
    if folder == "core" or importer in LIFE_CYCLE:  # they import only the nouns
        return folder_of(imported) == "core" or {importer, imported} <= {*LIFE_CYCLE}
    line = line_of(folder)
    assert line is not None, f"the first line of {folder} does not say what it may import"
    allowed = [folder, *names_in(line["parts"]), *(names_in(line["lazy"]) if lazy else [])]
    allowed += ["gate"] if importer == BUILDER else []
    return any(_covers(part, imported, folder) for part in allowed)


def _covers(part: str, imported: str, folder: str) -> bool:
    """Tell whether a part that a folder's line lists includes a module.

    A folder that contains the importing one counts without its other folders: ``core`` in the line
    of ``core.memory`` means what lies directly in ``core``.
    """
    if f"{folder}.".startswith(f"{part}."):
        return folder_of(imported) == part
    return f"{imported}.".startswith(f"{part}.")


def is_kernel_side(module: str) -> bool:
    """Whether a module must run in a kernel's environment."""
    return part_of(module) in KERNEL_SIDE


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    """A module imports only what the first line of its folder lists."""
    wrong = [
        i
        for i in imports_of(module)
        if (own := _own(i.name)) is not None and not may_import(module, own, lazy=i.lazy)
    ]
    assert wrong == []


def test_modules_form_no_circle() -> None:
    """No module imports itself through others, not even when used or for its types alone."""
    owns = {m: {_own(found.name) for found in imports_of(m)} for m in MODULES}
    graph = {m: sorted(own for own in found if own is not None) for m, found in owns.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_an_import_for_types_alone_counts() -> None:
    """What only type checkers read is an import like one in a function."""
    source = "if TYPE_CHECKING:\n    from jupyter_gpugate.core.resources import RAM\nimport json"
    found = [(i.name, i.lazy) for i in _walk(ast.parse(source), "gate.loop", lazy=False)]
    assert found == [(f"{PACKAGE}.core.resources", True), ("json", False)]


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("core.events", "core.requests", True),
        ("core.state", "core.learning.calibration", False),
        ("core.codec", "core.admission.decide", False),
        ("core.admission.decide", "core.state", True),
        ("core.memory.holding", "core.samples", True),
        ("core.memory.holding", "core.learning.needs", False),
        ("core.admission.decide", "gate.loop", False),
        ("gate.loop", "core.admission.decide", True),
        ("gate.loop", "runs.launcher", False),
        ("gate.gpu.reader", "gate.loop", False),
        ("runs.launcher", "gate.loop", False),
        ("runs.launcher", "runs.directory", True),
        ("programs.supervisor.main", "core.codec", False),
        ("programs.supervisor.main", "_version", False),
        ("programs.supervisor.main", "programs.fingerprint.describe", False),
        ("programs.fingerprint.describe", "programs.fingerprint.cache", True),
        ("runs.lifecycle", "core.codec", True),
        ("runs.lifecycle", "runs.directory", False),
        ("server.host", "gate.loop", True),
        ("server.feed", "gate.port", True),
        ("server.feed", "gate.local", False),
        ("server.http.handlers", "gate.loop", False),
        ("server.http.handlers", "gate.gpu.reader", False),
        ("server.http.answers", "core.admission.decide", False),
        ("server.http.pages", "faces.card", True),
        ("server.extension", "client.connection", False),
        ("faces.card", "core.codec", False),
        ("client.connection", "places", True),
        ("runs.launcher", "proc", True),
        ("core.codec", "proc", False),
        ("core.admission.decide", "places", False),
        ("faces.card", "places", False),
        ("places", "proc", True),
        ("proc", "core.codec", False),
        ("client.connection", "core.requests", False),
        ("client.connection", "notebook.run", False),
        ("notebook.magics", "client.connection", True),
        ("terminal.cli", "server.service", False),
    ],
)
def test_the_direction_is_what_the_documentation_says(
    importer: str, imported: str, *, allowed: bool
) -> None:
    """The rule itself refuses each import that the architecture page excludes."""
    assert may_import(importer, imported, lazy=False) is allowed


def test_the_folders_of_core_form_an_order() -> None:
    """No two folders of core depend on each other, directly or through others."""
    within = [folder for folder in FOLDERS if part_of(folder) == "core"]
    lines = {folder: line_of(folder) for folder in within}
    parts = {folder: names_in(line["parts"]) for folder, line in lines.items() if line}
    order = [*graphlib.TopologicalSorter(parts).static_order()]
    assert set(order) == set(within)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_documentation_repeats_the_first_line_of_every_folder(folder: str) -> None:
    """The table of folders says where each runs and what it may import, as the folder does."""
    line = line_of(folder)
    assert line is not None
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    name = folder.replace(".", "/") + "/"
    parts = f"{line['parts']}; when used: {line['lazy']}" if line["lazy"] else line["parts"]
    assert f"| `{name}` | {line['process']} | {parts} |" in page


@pytest.mark.parametrize("module", [*(m for m in MODULES if part_of(m) == "core"), *LIFE_CYCLE])
def test_core_only_computes(module: str) -> None:
    """Core and life cycle neither import what acts on the world nor await, open or print."""
    impure = [i for i in imports_of(module) if i.top not in PURE | {PACKAGE}]
    assert impure == []
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    acts = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    assert [n for n in ast.walk(tree) if isinstance(n, acts)] == []
    calls = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assert {"open", "print", "input", "exec", "eval"} & set(calls) == set()


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) == "programs"])
def test_programs_stand_alone(module: str) -> None:
    """A program needs the standard library, and its own modules by relative imports; a worker uses
    more where it is there.
    """
    is_worker = module.startswith("programs.worker")
    guests = GUESTS | {"IPython", "traitlets"} if is_worker else set()
    others = [i for i in imports_of(module) if not i.relative]
    foreign = [i for i in others if i.top not in sys.stdlib_module_names]
    assert [i for i in foreign if not i.lazy or i.top not in guests] == []


@pytest.mark.parametrize("module", sorted(SHARED))
def test_shared_modules_need_the_standard_library_alone(module: str) -> None:
    """A module that every process loads imports no package, but for Jupyter's where it is there."""
    foreign = [i for i in imports_of(module) if i.top not in {*sys.stdlib_module_names, PACKAGE}]
    assert [i for i in foreign if not i.lazy or i.top != "jupyter_core"] == []


def test_no_program_hides_a_module_of_the_standard_library() -> None:
    """Python looks in the folder that it starts before it looks in its library."""
    own = {m.rpartition(".")[2] for m in MODULES if m.startswith("programs.")}
    assert own & sys.stdlib_module_names <= {"__main__"}


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) == "notebook"])
def test_the_notebook_loads_with_ipython_alone(module: str) -> None:
    """The kernel's side loads with the standard library and IPython, and takes more when used."""
    known = sys.stdlib_module_names | {PACKAGE, "IPython", "traitlets"}
    later = GUESTS | {"anywidget", "ipywidgets", "jupyter_core"}
    foreign = [i for i in imports_of(module) if i.top not in known]
    assert [i for i in foreign if not i.lazy or i.top not in later] == []


@pytest.mark.parametrize("module", MODULES)
def test_what_belongs_to_one_part_is_used_there(module: str) -> None:
    """The driver's bindings, SQL and the request models each have one place; torch has none."""
    for found in imports_of(module):
        home = RESERVED.get(found.top)
        assert home is None or f"{module}.".startswith(f"{home}."), found
        assert found.lazy or found.top not in GUESTS, found


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) in {"gate", "server"}])
def test_nothing_is_unpickled_across_users(module: str) -> None:
    """Whoever serves several users speaks JSON: unpickling would run a stranger's code."""
    assert [i for i in imports_of(module) if i.top in {"pickle", "cloudpickle", "shelve"}] == []


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
