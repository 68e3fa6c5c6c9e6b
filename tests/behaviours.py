"""Which rows of docs/behaviours.md have a test: compares the table with the marks in the tests.

Run as a script it prints the rows that lack one.  Standard library only, so that it needs no
environment.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "behaviours.md"
TESTS = ROOT / "tests"
ROW = re.compile(r"\| (?P<number>\d+) \| (?P<text>.+?) \| ?(?P<state>planned)? ?\|")


class Row(NamedTuple):
    """One promised behaviour."""

    number: int
    text: str
    planned: bool


class Mark(NamedTuple):
    """One ``pytest.mark.behaviour`` in a test file; a row of None is no literal number."""

    path: Path
    line: int
    row: int | None


def read_rows(page: Path = ROWS) -> list[Row]:
    """Every row of the table, in the order of the page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = filter(None, map(ROW.fullmatch, lines))
    return [Row(int(m["number"]), m["text"], m["state"] is not None) for m in found]


def read_marks(tests: Path = TESTS) -> list[Mark]:
    """Every mark in every Python file below ``tests``, found without importing it."""
    marks: list[Mark] = []
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.behaviour"):
                marks += [Mark(path, node.lineno, _number(value)) for value in node.args]
    return marks


def _number(value: ast.expr) -> int | None:
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return value.value
    return None


def main() -> None:
    """Print the rows without a test, and how many have one."""
    rows = read_rows()
    proven = {mark.row for mark in read_marks()}
    due = [row for row in rows if not row.planned]
    for row in due:
        if row.number not in proven:
            print(f"{row.number:4}  {row.text}")
    count = sum(row.number in proven for row in due)
    print(f"{count} of {len(due)} rows have a test; {len(rows) - len(due)} more are planned")


if __name__ == "__main__":
    main()
