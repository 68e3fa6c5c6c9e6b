"""The table of behaviours and the marks of the tests agree with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviours import Mark, Row, main, read_marks, read_rows


def test_rows_are_numbered_through() -> None:
    """Every promise has a number, without a gap and without a double."""
    assert [row.number for row in read_rows()] == list(range(1, 196))


def test_every_mark_names_a_row() -> None:
    """A mark names at least one row of the table, as a plain number."""
    numbers = {row.number for row in read_rows()}
    astray = [mark for mark in read_marks() if mark.row not in numbers]
    assert astray == []


def test_a_planned_row_has_no_test() -> None:
    """Whoever proves a planned row takes the word out of the table."""
    planned = {row.number for row in read_rows() if row.planned}
    surprising = [mark for mark in read_marks() if mark.row in planned]
    assert surprising == []


def test_marks_are_found_wherever_they_stand(tmp_path: Path) -> None:
    """A mark counts on a function, on a class, for a module and on a parameter."""
    mark = "pytest.mark." + "behaviour"  # in pieces, so that nothing takes this file for a proof
    lines = [
        "import pytest",
        f"pytestmark = {mark}(1)",
        f"@{mark}(2, 3)",
        "class TestIt:",
        f"    @pytest.mark.parametrize('x', [pytest.param(0, marks={mark}(4))])",
        "    def test_it(self, x): ...",
        f"@{mark}('five')",
        "def test_other(): ...",
    ]
    path = tmp_path / "test_it.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = {(found.line, found.row) for found in read_marks(tmp_path)}
    assert found == {(2, 1), (3, 2), (3, 3), (5, 4), (7, None)}
    assert read_marks(tmp_path)[0] == Mark(path, 2, 1)


def test_the_state_of_a_row_is_read(tmp_path: Path) -> None:
    """A row is due unless its last column says that it is planned."""
    page = tmp_path / "page.md"
    page.write_text("| row | x | |\n| --- | --- | --- |\n| 1 | a | |\n| 2 | b | planned |\n")
    assert read_rows(page) == [Row(1, "a", planned=False), Row(2, "b", planned=True)]


def test_the_list_is_what_is_due_and_not_proven(capsys: pytest.CaptureFixture[str]) -> None:
    """The tool prints each due row that no mark names, and no other row."""
    main()
    *listed, total = capsys.readouterr().out.splitlines()
    proven = {mark.row for mark in read_marks()}
    due = [row.number for row in read_rows() if not row.planned]
    assert [int(line.split()[0]) for line in listed] == [n for n in due if n not in proven]
    assert total.startswith(f"{len(due) - len(listed)} of {len(due)} rows")
