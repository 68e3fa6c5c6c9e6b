"""Notebook commands and syntax errors in a cell, and code that is hard to parse."""

from __future__ import annotations

import pytest

from jupyter_gpugate.programs.fingerprint.describe import describe
from tests.kit.source_projects import Project, write


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
def test_notebook_commands_and_the_first_syntax_error_are_reported(
    cell: str, magic: list[tuple[int, str]], wrong: tuple[int, object] | None
) -> None:
    """Each notebook command is listed with its line, and so is the first error besides them."""
    answer = describe({"kind": "cell", "source": cell, "cwd": "/", "path": []})
    assert [(line["line"], line["text"]) for line in answer["magic_lines"]] == magic
    error = answer["syntax_error"]
    found = None if error is None else (error["line"], error["text"])
    assert found == wrong or (found and wrong and (found[0], ...) == wrong and error["message"])
    assert len(answer["source_hash"]) == 64


def test_a_warning_of_the_compiler_is_no_error(project: Project) -> None:
    """Code with an invalid escape is parsed, also where warnings are errors, as in these tests."""
    odd, commented = 'x = "\\d"\n', 'x = "\\d"  # a comment\n'
    write(project.home, {"odd.py": odd})
    first = project.describe(f"import odd\n{odd}")
    assert first["syntax_error"] is None
    write(project.home, {"odd.py": commented})
    assert project.describe(f"import odd\n{odd}")["source_hash"] == first["source_hash"]


def test_a_long_chain_of_operators_is_parsed(project: Project) -> None:
    """Generated code that is as deep as Python can compile has a hash and no error."""
    answer = project.describe("x = " + " + ".join(["1"] * 500) + "\n")
    assert (len(answer["source_hash"]), answer["syntax_error"]) == (64, None)
