"""What every test of this project keeps to, read off the tests themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test function of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.name.startswith("test_"):
            yield node


def settles(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the test itself sleeps for a fixed time.

    A random moment is a fault that is injected, and a function inside a test may be what stalls.
    """
    inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef)][1:]
    nested = {id(node) for one in inner for node in ast.walk(one)}
    return any(
        isinstance(node, ast.Call)
        and id(node) not in nested
        and ast.unparse(node.func) == "time.sleep"
        and isinstance(node.args[0], ast.Constant)
        for node in ast.walk(function)
    )


@pytest.mark.behaviour(148)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_tests_say_what_they_prove_and_wait_for_events(path: Path) -> None:
    """A test has a docstring that is a rule, and never sleeps to let things settle."""
    for function in functions_of(path):
        where = f"{path.name}:{function.lineno} {function.name}"
        assert ast.get_docstring(function), f"{where} has no docstring"
        assert not settles(function), f"{where} sleeps: wait for an event"
