"""Which edits of a run's source change its hash, and which keep it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.source_projects import Project, write

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
    "a first-party module before an installed one": lambda p: write(
        p.home, {"yaml_like.py": "x = 1"}
    ),
    "a first-party module before Python's": lambda p: write(p.home, {"statistics.py": "x = 1"}),
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
