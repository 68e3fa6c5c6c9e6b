"""What counts as an edit of a run's source, and what a cell is said to use."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import source

CELL = """\
import statistics

import torch
import yaml_like
from project import models
from project.inner import deep

LIMIT = 3


def f(x):
    import lazy
    return lazy.go(x) + LIMIT


for e in episodes:
    e.keep(f(e.index))
"""
MODULES = {
    "project/__init__.py": "from .names import NAME\n",
    "project/names.py": "NAME = 'a'\n",
    "project/models.py": "from . import layers\nfrom .. import nothing\ndef model(): pass\n",
    "project/layers.py": "def layer():\n    return 1\n",
    "project/unused.py": "x = 1\n",
    "project/inner/__init__.py": "",
    "project/inner/deep.py": "from ..plugins.one import plug\n",
    "project/plugins/one.py": "plug = 1\n",
    "lazy.py": "import importlib\n\n\ndef go(x):\n    return importlib.import_module('late').x\n",
    "late.py": "x = 1\nimport lazy\n",
    "star.py": "from project.stars import *\n",
    "project/stars/__init__.py": "__all__ = ['sun']\n",
    "project/stars/sun.py": "hot = 1\n",
    "statistics_user.py": "import statistics\n",
}
INSTALLED = {
    "yaml_like/__init__.py": "import hidden_requirement\n",
    "YAML_Like-6.0.1.dist-info/RECORD": "yaml_like/__init__.py,,\n",
    "torch/__init__.py": "",
    "torch-2.13.0+cpu.dist-info/top_level.txt": "functorch\ntorch\n",
    "jax/__init__.py": "",
    "jax-0.9.0.dist-info/RECORD": "jax/__init__.py,sha256=abc,0\n",
    "sklearn_like/__init__.py": "",
    "scikit_like-1.4.dist-info/RECORD": "../../../bin/sk,,\nsklearn_like/__init__.py,,\n",
    "old_style.py": "",
    "old_style-0.1-py3.9.egg-info/PKG-INFO": "Version: 0.1\n",
    "bare.py": "x = 1\n",
    "shared/a/__init__.py": "",
    "shared/b/__init__.py": "",
    "shared_a-1.0.dist-info/RECORD": "shared/a/__init__.py,,\n",
    "shared_b-2.0.dist-info/RECORD": "shared/b/__init__.py,,\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    """Write files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Project:
    """A user's folder beside an environment with some packages installed."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.site = root / "env" / "lib" / "python3.11" / "site-packages"
        write(self.home, MODULES)
        write(self.site, INSTALLED)
        self.cell = CELL

    def describe(self, cell: str | None = None, *, own_first: bool = True) -> dict[str, Any]:
        """Describe the cell as a kernel in this folder and environment would."""
        path = ["", *(p for p in sys.path if p and "-packages" not in p), str(self.site)]
        path = path if own_first else path[::-1]
        request = {"source": self.cell if cell is None else cell, "path": path}
        return source.describe({"kind": "cell", "cwd": str(self.home), **request})

    def hash(self) -> str:
        value: str = self.describe()["source_hash"]
        return value

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a piece of a file of the project, of the environment, or of the cell."""
        if name == "cell":
            assert old in self.cell
            self.cell = self.cell.replace(old, new)
            return
        path = self.home / name if (self.home / name).exists() else self.site / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def rename(self, old: str, new: str) -> None:
        (self.site / old).rename(self.site / new)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Lay out the project."""
    return Project(tmp_path)


Edit = Callable[[Project], None]


def edit(name: str, old: str, new: str) -> Edit:
    """Return an edit of one file."""
    return lambda project: project.edit(name, old, new)


SAME: dict[str, Edit] = {
    "nothing": lambda _: None,
    "a comment in the cell": edit("cell", "LIMIT = 3", "LIMIT = 3  # three"),
    "a comment line": edit("cell", "LIMIT = 3", "# the limit\nLIMIT = 3"),
    "the magic's own line": edit(
        "cell", "import stat", "# %%gated_eval x --workers 4\nimport stat"
    ),
    "blank lines": edit("cell", "\n\n\n", "\n"),
    "indentation": edit("cell", "\n    ", "\n        "),
    "parentheses": edit("cell", "lazy.go(x) + LIMIT", "(lazy.go((x)) + LIMIT)"),
    "a line break": edit("cell", "lazy.go(x) +", "lazy.go(\n        x,\n    ) +"),
    "a string's prefix": edit("project/names.py", "'a'", "u'a'"),
    "quotes": edit("project/names.py", "'a'", '"a"'),
    "a number's form": edit("cell", "LIMIT = 3", "LIMIT = 0x3"),
    "a comment in a module": edit("project/layers.py", "return 1", "return 1  # one"),
    "a module that is not imported": edit("project/unused.py", "1", "2"),
    "the inside of an installed package": edit("yaml_like/__init__.py", "hidden", "other"),
    "torch's version": lambda p: p.rename(
        "torch-2.13.0+cpu.dist-info", "torch-2.14.0+cpu.dist-info"
    ),
    "a folder's name": lambda p: setattr(p, "home", p.home.rename(p.home.with_name("moved"))),
}
DIFFERENT: dict[str, Edit] = {
    "a number": edit("cell", "LIMIT = 3", "LIMIT = 4"),
    "a number's type": edit("cell", "LIMIT = 3", "LIMIT = 3.0"),
    "a bool for a number": edit("cell", "LIMIT = 3", "LIMIT = True"),
    "a name": edit("cell", "def f(x):", "def f(y):"),
    "an operator": edit("cell", "+ LIMIT", "- LIMIT"),
    "the order of statements": edit(
        "cell", "import statistics\n\nimport torch", "import torch\nimport statistics"
    ),
    "a statement into a block": edit("cell", "\n    return", "\n    if x:\n        return"),
    "an added line": edit("cell", "LIMIT = 3", "LIMIT = 3\nprint(LIMIT)"),
    "a string": edit("project/names.py", "'a'", "'b'"),
    "bytes for a string": edit("project/names.py", "'a'", "b'a'"),
    "a directly imported module": edit("project/models.py", "pass", "return 1"),
    "a relatively imported module": edit("project/layers.py", "1", "2"),
    "a package's __init__": edit("project/__init__.py", "NAME", "NAME as N"),
    "an __init__ on the way": edit("project/inner/__init__.py", "", "x = 1"),
    "what an __init__ imports": edit("project/names.py", "NAME", "NAME: str"),
    "a package without an __init__": edit("project/plugins/one.py", "1", "2"),
    "a module imported in a function": edit("lazy.py", "(x)", "(y)"),
    "a module imported by a literal": edit("late.py", "x = 1", "x = 2"),
    "an installed package's version": lambda p: p.rename(
        "YAML_Like-6.0.1.dist-info", "YAML_Like-6.0.2.dist-info"
    ),
    "a module of one's own before an installed one": lambda p: write(
        p.home, {"yaml_like.py": "x = 1"}
    ),
    "a module of one's own before Python's": lambda p: write(p.home, {"statistics.py": "x = 1"}),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_an_edit_of_form_keeps_the_hash(project: Project, change: Edit) -> None:
    """Comments, layout, places, and what the run does not use leave the source the same."""
    before = project.hash()
    change(project)
    assert project.hash() == before


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_an_edit_of_content_changes_the_hash(project: Project, change: Edit) -> None:
    """Any change of what the run executes is another source, wherever it is."""
    before = project.hash()
    change(project)
    assert project.hash() != before


def test_the_files_behind_a_hash_are_named(project: Project) -> None:
    """The answer lists the first-party files, and installed packages by version."""
    answer = project.describe()
    names = [str(Path(name).relative_to(project.home)) for name in answer["files"]]
    unused = {"project/unused.py", "star.py", "statistics_user.py"}
    expected = {name for name in MODULES if name not in unused and "stars" not in name}
    assert names == sorted(expected)
    assert answer["packages"] == {"torch": "2.13.0+cpu", "yaml_like": "6.0.1"}
    assert answer["runtime"] == "torch 2.13.0+cpu"
    assert (answer["error"], answer["syntax_error"]) == (None, None)
    assert answer["python"] == ".".join(map(str, sys.version_info[:3]))


def test_nothing_that_is_looked_at_is_executed(project: Project) -> None:
    """Describing a cell runs neither it nor any module, installed or not."""
    for name in ("project/__init__.py", "lazy.py", "project/inner/__init__.py"):
        project.edit(name, (project.home / name).read_text(), "raise SystemExit('executed')\n")
    write(project.site, {"yaml_like/__init__.py": "raise SystemExit('executed')\n"})
    modules = set(sys.modules)
    project.describe()
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    ("cell", "packages", "runtime"),
    [
        ("import torch", {"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu"),
        ("def f():\n    from torch.nn import Linear", {"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu"),
        ("import jax.numpy as jnp", {"jax": "0.9.0"}, "jax 0.9.0"),
        (
            "import jax, torch",
            {"jax": "0.9.0", "torch": "2.13.0+cpu"},
            "torch 2.13.0+cpu, jax 0.9.0",
        ),
        ("import sklearn_like.linear", {"sklearn_like": "1.4"}, ""),
        ("import old_style", {"old_style": "0.1"}, ""),
        ("import shared.a", {"shared": "shared_a 1.0, shared_b 2.0"}, ""),
        ("import os, sys, time, xml.dom", {}, ""),
        ("from . import near\nfrom .. import nearer\nfrom ...a import b", {}, ""),
        ("import not_there, not_there.either", {}, ""),
        ("torch = 1", {}, ""),
    ],
)
def test_installed_packages_are_found_by_their_metadata(
    project: Project, cell: str, packages: dict[str, str], runtime: str
) -> None:
    """Name and version come from whichever distribution installed a package."""
    answer = project.describe(cell)
    assert (answer["packages"], answer["runtime"]) == (packages, runtime)
    assert answer["files"] == []


def test_a_module_that_nobody_installed_counts_by_its_content(project: Project) -> None:
    """A file put among installed packages by hand is source like one's own."""
    answer = project.describe("import bare")
    assert answer["files"] == [str(project.site / "bare.py")]
    project.edit("bare.py", "1", "2")
    assert project.describe("import bare")["source_hash"] != answer["source_hash"]


def test_pythons_built_in_modules_come_before_ones_own(project: Project) -> None:
    """A file named like a module that is built into Python is never what is imported."""
    write(project.home, {"time.py": "x = 1"})
    assert project.describe("import time")["files"] == []


def test_a_star_import_brings_the_modules_that_it_names(project: Project) -> None:
    """``__all__`` of a package names modules that ``*`` imports."""
    files = project.describe("import star")["files"]
    assert str(project.home / "project/stars/sun.py") in files


def test_a_namespace_may_be_partly_installed_and_partly_own(project: Project) -> None:
    """One's own part of a shared namespace is source, the installed parts are versions."""
    write(project.home, {"shared/mine.py": "x = 1"})
    for own_first in (True, False):
        answer = project.describe("import shared.mine, shared.a", own_first=own_first)
        assert answer["files"] == [str(project.home / "shared/mine.py")]
        assert answer["packages"] == {"shared": "shared_a 1.0, shared_b 2.0"}


def test_an_own_module_that_is_no_source_counts_by_its_bytes(project: Project) -> None:
    """Compiled modules and files that are not of this Python are compared byte by byte."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in (f"fast{suffix}", "broken.py"):
        (project.home / name).write_bytes(b"\x7fELF\0 (")
        before = project.describe("import fast, broken")["source_hash"]
        (project.home / name).write_bytes(b"\x7fELF\0 ((")
        assert project.describe("import fast, broken")["source_hash"] != before


def test_an_editable_install_is_source(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that an editable install maps to its folder is hashed where it lies."""
    elsewhere = project.home.parent / "elsewhere"
    write(elsewhere, {"edited/__init__.py": "from . import part", "edited/part.py": "x = 1"})

    class Finder:
        @staticmethod
        def find_spec(name: str, _: object = None) -> Any:
            if name != "edited":
                return None
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.origin = str(elsewhere / "edited/__init__.py")
            spec.submodule_search_locations = [str(elsewhere / "edited")]
            return spec

    Finder.__module__ = "__editable___edited_1_0_finder"
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    files = project.describe("import edited")["files"]
    assert files == [str(elsewhere / "edited" / n) for n in ("__init__.py", "part.py")]


# -- what a cell uses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "used"),
    [
        ("print(x)", ["x"]),
        ("x = 1\nprint(x)", []),
        ("import a.b, c as d\na.b, d, c", ["c"]),
        ("from a import b as c\nb, c", ["b"]),
        ("def f(a, *b, **c):\n    d = 1\n    return a, b, c, d, e", ["e"]),
        ("def f():\n    global g\n    g = 1\ng", []),
        ("class A(B):\n    c = d\n    def m(self): return c, self", ["B", "c", "d"]),
        ("[x + y for x in xs if (z := x)]\nz", ["xs", "y"]),
        ("lambda a: a + b", ["b"]),
        ("for i in range(n): print(i)", ["n"]),
        ("with open(p) as f: f.read()", ["p"]),
        ("try: 1\nexcept E as e: e", ["E"]),
        ("await g(x)\nasync for y in z: y", ["g", "x", "z"]),
        ("for e in episodes: e.keep(params['a'] + worker / workers)", []),
        ("display(__name__, __file__, get_ipython(), In, Out, _)", []),
        ("f'{x!r:>{w}}'", ["w", "x"]),
        ("x: T = 1\n@deco\ndef f(a: U = v): pass", ["T", "U", "deco", "v"]),
        ("x = = 1", []),
    ],
)
def test_the_names_that_a_cell_uses_and_does_not_define(cell: str, used: list[str]) -> None:
    """Names are read by scope: own, imported, local, given and Python's names are not used ones."""
    assert source.used_names(cell) == used
    assert source.names_defined_by(cell, {"x", "zz"}) == [name for name in used if name == "x"]


@pytest.mark.parametrize(
    ("cell", "magic", "wrong"),
    [
        ("x = 1\n%matplotlib inline\ny", [(2, "%matplotlib inline")], None),
        ("!ls -l\nif x:\n    %time f()\n", [(1, "!ls -l"), (3, "%time f()")], None),
        ("files = !ls\n", [(1, "files = !ls")], None),
        ("a, b = %sql x\n", [(1, "a, b = %sql x")], None),
        ("?print\nprint?\n", [(1, "?print"), (2, "print?")], None),
        ("s = '''\n%not one\n!nor this\n'''\nx = 5 %\\\n  3\n", [], None),
        ("x = 1\ny = = 2\n", [], (2, "y = = 2")),
        ("%time x\ny = = 2\n", [(1, "%time x")], (2, "y = = 2")),
        ("def f(:\n", [], (1, "def f(:")),
        ("x = 1\nreturn x\n", [], (2, "return x")),
        ("await x\n", [], None),
        ("y = 1\nx = 1\0", [], (2, ...)),
        ("(" * 5000, [], (1, ...)),
        ("x = " + "-" * 100_000 + "1", [], (1, ...)),
        ("", [], None),
    ],
)
def test_lines_of_the_notebook_and_lines_that_are_wrong_are_named(
    cell: str, magic: list[tuple[int, str]], wrong: tuple[int, object] | None
) -> None:
    """Notebook commands are listed with their lines, and the first error of Python beside them."""
    answer = source.describe({"kind": "cell", "source": cell, "cwd": "/", "path": []})
    assert [(line["line"], line["text"]) for line in answer["magic_lines"]] == magic
    error = answer["syntax_error"]
    told = None if error is None else (error["line"], error["text"])
    assert told == wrong or (told and wrong and (told[0], ...) == wrong and error["message"])
    assert len(answer["source_hash"]) == 64


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["eval.py", "-m", "x"], source.Command(file="eval.py")),
        (["-u", "-X", "dev", "-Wignore", "eval.py"], source.Command(file="eval.py")),
        (["-W", "ignore", "-m", "pkg.mod", "-c"], source.Command(module="pkg.mod")),
        (["-Im", "pkg"], source.Command(module="pkg")),
        (["-mpkg"], source.Command(module="pkg")),
        (["-Xdev", "-OOc", "print()"], source.Command(code="print()")),
        (["--check-hash-based-pycs", "always", "x.py"], source.Command(file="x.py")),
        (["-"], source.Command()),
        (["-X"], source.Command()),
        ([], source.Command()),
    ],
)
def test_a_python_command_line_is_read_as_python_reads_it(
    words: list[str], command: source.Command
) -> None:
    """Options with and without values stand before the script, module or code."""
    assert source.parse_python(words) == command


def describe_program(project: Project, *argv: str) -> dict[str, Any]:
    """Describe a command in the project's folder."""
    request = {"argv": list(argv), "cwd": str(project.home), "path": [str(project.site)]}
    return source.describe({"kind": "program", **request})


def test_a_script_is_its_tree_and_its_own_modules(project: Project) -> None:
    """``python FILE`` counts the script and its own folder's modules; arguments do not."""
    write(
        project.home, {"tools/eval.py": "import near\nimport yaml_like\n", "tools/near.py": "x = 1"}
    )
    first = describe_program(project, sys.executable, "-u", "tools/eval.py", "--batch", "64")
    tools = project.home / "tools"
    assert first["files"] == [str(tools / "eval.py"), str(tools / "near.py")]
    assert (first["packages"], first["error"]) == ({"yaml_like": "6.0.1"}, None)
    project.edit("tools/eval.py", "import near", "import near  # beside")
    same = describe_program(project, sys.executable, "tools/eval.py", "--batch", "32")
    assert same["source_hash"] == first["source_hash"]
    project.edit("tools/near.py", "1", "2")
    other = describe_program(project, sys.executable, "-u", "tools/eval.py")
    assert other["source_hash"] != first["source_hash"]


def test_a_script_needs_no_ending_to_be_python(project: Project) -> None:
    """What a Python is told to run is read as Python."""
    write(project.home, {"evaluate": "x = 1\n"})
    first = describe_program(project, sys.executable, "evaluate")
    project.edit("evaluate", "x = 1", "x = 1  # one")
    assert (
        describe_program(project, sys.executable, "evaluate")["source_hash"] == first["source_hash"]
    )


def test_a_module_of_one_s_own_is_its_tree(project: Project) -> None:
    """``python -m`` counts the module, or a package's ``__main__``, and what they import."""
    write(project.home, {"project/__main__.py": "from project import layers\n"})
    answer = describe_program(project, sys.executable, "-m", "project")
    names = {str(Path(name).relative_to(project.home)) for name in answer["files"]}
    assert names == {
        "project/__init__.py",
        "project/__main__.py",
        "project/layers.py",
        "project/names.py",
    }
    assert describe_program(project, sys.executable, "-m", "late")["files"] == [
        str(project.home / "late.py"),
        str(project.home / "lazy.py"),
    ]


def test_an_installed_module_is_its_version(project: Project) -> None:
    """``python -m`` of an installed package counts by name and version."""
    answer = describe_program(project, sys.executable, "-m", "sklearn_like")
    assert (answer["packages"], answer["files"]) == ({"sklearn_like": "1.4"}, [])


def test_code_on_the_command_line_is_its_tree(project: Project) -> None:
    """``python -c`` counts the code's tree and imports."""
    first = describe_program(project, sys.executable, "-c", "import late; x=1")
    assert str(project.home / "late.py") in first["files"]
    same = describe_program(project, sys.executable, "-c", "import late\nx = 1")
    assert same["source_hash"] == first["source_hash"]


def executable(path: Path, text: str = "#!/bin/sh\n") -> str:
    """Write a program and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_program_belongs_to_the_distribution_that_installed_it(
    project: Project, tmp_path: Path
) -> None:
    """An executable counts by its distribution's version, found by record or by entry point."""
    by_record = executable(project.site.parents[2] / "bin" / "sk")
    by_entry = executable(project.site.parents[2] / "bin" / "yl")
    entries = "[console_scripts]\nyl = yaml_like:main\n"
    write(project.site, {"YAML_Like-6.0.1.dist-info/entry_points.txt": entries})
    linked = tmp_path / "local-bin" / "sk"
    linked.parent.mkdir()
    linked.symlink_to(by_record)
    first = describe_program(project, by_record, "--fast")
    assert (first["packages"], first["files"]) == ({"scikit_like": "1.4"}, [])
    assert describe_program(project, by_entry)["packages"] == {"YAML_Like": "6.0.1"}
    assert describe_program(project, str(linked))["source_hash"] == first["source_hash"]
    executable(Path(by_record), "#!/bin/sh\n# another content\n")
    assert describe_program(project, by_record)["source_hash"] == first["source_hash"]
    project.rename("scikit_like-1.4.dist-info", "scikit_like-1.5.dist-info")
    assert describe_program(project, by_record)["source_hash"] != first["source_hash"]


def test_any_other_program_is_its_content(project: Project) -> None:
    """A program that nobody installed counts by its bytes, its arguments do not."""
    program = executable(project.home / "run-eval")
    first = describe_program(project, "./run-eval", "a")
    assert (first["packages"], first["files"]) == ({}, [program])
    assert describe_program(project, program, "b")["source_hash"] == first["source_hash"]
    executable(project.home / "run-eval", "#!/bin/sh\n#\n")
    assert describe_program(project, "./run-eval", "a")["source_hash"] != first["source_hash"]


@pytest.mark.parametrize("command", [["./starter", "--n", "2", "late.py"], ["sh", "script"]])
def test_a_script_behind_another_program_counts_too(project: Project, command: list[str]) -> None:
    """A ``.py`` after a launcher, and the script of a shell, are part of the source."""
    executable(project.home / "starter")
    write(project.home, {"script": "echo 1\n"})
    first = describe_program(project, *command)
    project.edit("late.py", "x = 1", "x = 2")
    project.edit("script", "1", "2")
    assert describe_program(project, *command)["source_hash"] != first["source_hash"]


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["no-such-program-here"], "no-such-program-here: no such program"),
        (["./nothing"], "./nothing: no such program"),
        ([sys.executable, "nothing.py"], "nothing.py: no such file"),
        ([sys.executable, "-m", "nothing"], "-m nothing: no such module"),
    ],
)
def test_a_command_that_cannot_run_is_told(project: Project, argv: list[str], error: str) -> None:
    """A program, script or module that is not there is an error in plain words."""
    assert describe_program(project, *argv)["error"] == error


def test_what_python_only_warns_of_is_no_mistake(project: Project) -> None:
    """Where warnings are errors, as in these tests, a cell and a module that earn one are read."""
    odd, commented = 'x = "\\d"\n', 'x = "\\d"  # a comment\n'
    write(project.home, {"odd.py": odd})
    told = project.describe(f"import odd\n{odd}")
    assert told["syntax_error"] is None
    write(project.home, {"odd.py": commented})
    assert project.describe(f"import odd\n{odd}")["source_hash"] == told["source_hash"]


def test_a_long_chain_of_operators_is_no_trouble(project: Project) -> None:
    """Generated code as deep as Python itself can read is read."""
    cell = "x = " + " + ".join(["1"] * 500) + "\n"
    assert len(project.describe(textwrap.dedent(cell))["source_hash"]) == 64
    assert os.sep in str(project.home)
