"""Which module may import which, and what the kernel's side may rest on, read off the code."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.kit.module_imports import (
    GUESTS,
    MODULES,
    PACKAGE,
    ROOT,
    SHARED,
    imports_in,
    imports_of,
    own_name,
    part_of,
    path_of,
)

#: The first line of every folder.
LINE = re.compile(
    r"Runs in (?P<process>.+); may import (?P<parts>[^;]+?)(?:, and when used (?P<lazy>.+))?\.$"
)


#: The module that builds a gate; the others of its folder know the port alone.
BUILDER = "server.host"
#: The life cycle of a run, which computes as the core does.
LIFE_CYCLE = ("runs.life", "runs.lifecycle")
#: All that it and `core` may use of the standard library: what neither acts nor asks the machine.
PURE = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "html", "itertools", "json", "math", "numbers", "operator",
    "re", "statistics", "string", "sys", "textwrap", "types", "typing",
}  # fmt: skip


#: Third-party modules that only one part may touch.
RESERVED = {"pynvml": "gate.gpu.child", "sqlalchemy": "gate.journal", "pydantic": "server.http"}
FOLDERS = sorted({m.rpartition(".")[0] for m in MODULES if "." in m})


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


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    """A module imports only what the first line of its folder lists."""
    wrong = [
        i
        for i in imports_of(module)
        if (own := own_name(i.name)) is not None and not may_import(module, own, lazy=i.lazy)
    ]
    assert wrong == []


def test_modules_form_no_circle() -> None:
    """No module imports itself through others, not even when used or for its types alone."""
    owns = {m: {own_name(found.name) for found in imports_of(m)} for m in MODULES}
    graph = {m: sorted(own for own in found if own is not None) for m, found in owns.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_an_import_for_types_alone_counts() -> None:
    """What only type checkers read is an import like one in a function."""
    source = "if TYPE_CHECKING:\n    from jupyter_gpugate.core.resources import RAM\nimport json"
    found = [(i.name, i.lazy) for i in imports_in(ast.parse(source), "gate.loop", lazy=False)]
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
def test_the_documentation_names_every_folder_and_its_process(folder: str) -> None:
    """The table of folders has every folder, and says where it runs, as the folder does."""
    line = line_of(folder)
    assert line is not None
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    name = folder.replace(".", "/") + "/"
    assert f"| `{name}` | {line['process']} | " in page


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
