"""What a cell takes from the notebook that it does not see."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jupyter_gpugate.notebook import scope


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("print(x)", {"print", "x"}),
        ("x = 1\nprint(x)", {"print"}),
        ("x = x + 1", {"x"}),
        ("x += 1", {"x"}),
        ("for x in xs: x", {"xs"}),
        ("[y for y in ys if y in zs]", {"ys", "zs"}),
        ("import os\nos.getcwd()", set()),
        ("def f(a): return a + b", {"b"}),
        ("def f(): return later\nlater = 1\nf()", set()),
        ("f = lambda a: a * scale", {"scale"}),
        ("class A(Base):\n    k = y\n    def m(self): B()\nclass B: pass", {"Base", "y"}),
        ("class A:\n    k = 1\n    def m(self): return k", {"k"}),
        ("def f():\n    global made\n    made = 1\nf()\nmade", set()),
        ("def f():\n    def g(): return deep\n    return g", {"deep"}),
        ("await go()", {"go"}),
        ("async for u in us: u", {"us"}),
        ("print(f'{x!r:>{width}}')", {"print", "x", "width"}),
        ("try:\n    pass\nexcept E as e:\n    e", {"E"}),
        ("with open(p) as h: h", {"open", "p"}),
        ("def f(a: T = d) -> R: ...", {"T", "d", "R"}),
        ("del x", {"x"}),
        ("x = 1\ndel x", set()),
        ("any((hit := n) > 3 for n in ns)\nhit", {"any", "ns"}),
        ("[last := n for n in ns]\nlast", {"ns"}),
        ("class A:\n    global made\n    made = 1\nmade", set()),
        ("from a import b as c\nc", set()),
        ("if (n := m) > 1: n", {"m"}),
    ],
)
def test_a_name_counts_as_used_when_it_is_read_before_the_cell_binds_it(
    source: str, used: set[str]
) -> None:
    """Evaluation order and scopes decide, as they will in the run."""
    assert {n for n in scope.read(source).used if not n.startswith("__")} == used


def missing(source: str, notebook: dict[str, Any], *given: str) -> list[str]:
    """Name what the source would miss in the run."""
    return scope.missing(scope.read(source), notebook, frozenset(given))


def test_only_what_the_notebook_defines_and_did_not_give_is_missing() -> None:
    """Builtins, inputs and what the run provides are not missing; the notebook's own names are."""
    notebook = {"x": 1, "y": 2, "params": {}, "episodes": []}
    source = "for e in episodes: print(x, y, params, nowhere)"
    assert missing(source, notebook) == ["x", "y"]
    assert missing(source, notebook, "x") == ["y"]


def test_after_a_star_import_nothing_is_refused() -> None:
    """Where nobody can tell whose a name is, the cell gets the benefit of the doubt."""
    assert missing("from math import *\npi", {"pi": 3}) == []


def test_the_remedy_fits_the_value() -> None:
    """A value becomes an input, a module becomes an import under the name that the cell uses."""
    assert scope.remedy(["x"], {"x": 1}).endswith("not given to the run: add --input x")
    assert scope.remedy(["x", "y"], {"x": 1, "y": 2}).endswith("add --input x,y")
    assert "add `import math` to it" in scope.remedy(["math"], {"math": math})
    assert "add `import math as m` to it" in scope.remedy(["m"], {"m": math})


@pytest.mark.parametrize(
    ("source", "notebook", "named"),
    [
        ("print(lr)", {}, ["lr"]),
        ("print(lr)", {"lr": 1}, ["lr"]),
        ("def f(): return lr, seed", {}, ["lr", "seed"]),
        ("print(params['lr'])", {}, []),
        ("lr = params['lr']\nprint(lr)", {"lr": 1}, []),
        ("lr = lr * 2", {}, []),
        ("lr = lr * 2", {"lr": 1}, ["lr"]),
        ("max(1, 2)", {}, []),
        ("globals().update(params)\nlr", {}, []),
        ("globals().update(params)\nlr", {"lr": 1}, ["lr"]),
        ("exec('lr = 1')\nlr", {}, []),
        ("from settings import *\nlr", {"lr": 1}, []),
        ("print(worker)", {}, []),
    ],
)
def test_a_parameter_is_taken_for_a_variable_where_nothing_else_can_be_meant(
    source: str, notebook: dict[str, Any], named: list[str]
) -> None:
    """A cell that binds the name itself, or may do so, is left alone unless the notebook has it."""
    parameters = {"lr", "seed", "max", "worker"}
    assert scope.parameters_by_name(scope.read(source), notebook, parameters) == named


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("# c\nx = 1\n!ls -l", "line 3 `!ls -l`"),
        ("# c\n%time x = 1", "line 2 `%time x = 1`"),
        ("# c\nfiles = !ls", "line 2 `files = !ls`"),
        ("# c\n%%bash\nls", "line 2 `%%bash`"),
        ("# c\nif 1:\n    !ls", "line 3 `!ls`"),
        ("# c\nx?", "line 2 `x?`"),
    ],
)
def test_a_line_for_the_notebook_is_refused_by_its_number(source: str, line: str) -> None:
    """`%`, `!` and `?` lines are named, with what to do instead of them."""
    with pytest.raises(scope.CellError) as refusal:
        scope.read(source)
    assert str(refusal.value).startswith(line)
    assert "cell of its own" in str(refusal.value)


def test_the_magic_of_figures_need_only_be_left_out() -> None:
    """`%matplotlib inline` needs no cell of its own: a run shows figures without it."""
    with pytest.raises(scope.CellError) as refusal:
        scope.read("# c\n%matplotlib inline\nimport matplotlib")
    assert str(refusal.value) == (
        "line 2 `%matplotlib inline`: remove it; a run shows figures without it"
    )


@pytest.mark.parametrize("source", ["# c\nx = (1 %\n  3)", "# c\ns = '''\n!ls\n%time\n'''"])
def test_python_that_only_looks_like_a_magic_is_python(source: str) -> None:
    """A line of a longer expression or text may begin with any character."""
    scope.read(source)


@pytest.mark.parametrize(
    ("source", "line"),
    [("# c\nx = 5 5", "line 2 `x = 5 5`: "), ("# c\nreturn 1", "line 2 `return 1`: ")],
)
def test_a_syntax_error_names_its_line(source: str, line: str) -> None:
    """What is not Python is refused at submit, not after hours in the queue."""
    with pytest.raises(scope.CellError) as refusal:
        scope.read(source)
    assert str(refusal.value).startswith(line)
    assert "cell of its own" not in str(refusal.value)
