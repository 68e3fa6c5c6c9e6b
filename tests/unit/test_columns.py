"""Tables and lines that fit into the width of a terminal."""

from __future__ import annotations

import pytest

from jupyter_gpugate.faces import columns

ID = "20261201-105904-abcde"
TEXT = "needs 22,528 MB of RAM; only 20,934 MB would be usable after every run has ended"
ROWS = [
    ["run", "name and parameters", "waits because"],
    [ID, "eval batch=8", TEXT],
    [ID, "n" * 64, "no room"],
]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Every id stays in one piece and every word is there, in lines of at most that width."""
    lines = list(columns.aligned(ROWS, width))
    assert max(map(columns.columns, lines)) <= width
    joined = "".join(lines).replace(" ", "")
    assert joined.count(ID) == 2
    assert joined.count("n") == sum("".join(row).count("n") for row in ROWS)
    for word in TEXT.split():
        assert word in joined


def test_without_a_width_a_row_is_a_line() -> None:
    """What another program reads is not broken."""
    lines = list(columns.aligned(ROWS))
    assert [len(lines), lines[1].endswith(TEXT)] == [3, True]
    assert list(columns.aligned([])) == []


def test_a_last_column_that_does_not_fit_goes_below_its_row() -> None:
    """A long reason beside long names would be a column of single words."""
    lines = list(columns.aligned([["run", "why"], [ID, TEXT]], 40))
    assert lines[0] == "  run"
    assert lines[1] == f"  {ID}"
    assert lines[2].startswith("      needs 22,528 MB")


@pytest.mark.parametrize(
    ("text", "width"), [("日本語", 6), ("e\u0301", 1), ("a\u200bb", 2), ("größe", 5), ("", 0)]
)
def test_a_text_takes_the_columns_that_a_terminal_gives_it(text: str, width: int) -> None:
    """Wide characters take two, marks none."""
    assert columns.columns(text) == width
    assert columns.columns(columns.padded(text, 8)) == 8


@pytest.mark.parametrize("text", ["日本語テスト " * 9, "x" * 99, "a b " * 30, "größe" * 20])
def test_texts_are_cut_and_broken_by_columns(text: str) -> None:
    """Never in the middle of a wide character, and nothing of a broken text is lost."""
    for width in (2, 7, 20):
        assert columns.columns(columns.cut(text, width)) <= width
        assert columns.columns(columns.middle_cut(text, width)) <= width
        lines = columns.wrapped(text, width)
        assert max(map(columns.columns, lines)) <= width
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert columns.middle_cut("python eval.py --seed 1", 13) == "pyth…--seed 1"


def test_a_number_keeps_its_unit() -> None:
    """No line ends between the two."""
    text = "needs 24,320 MB of GPU 0 for 5 min and 3 s"
    for width in range(9, 40):
        lines = columns.wrapped(text, width)
        assert not any(line.split(" ")[0] in {"MB", "min", "s"} for line in lines)
        assert " ".join(lines) == text


def test_a_long_text_is_broken_beside_its_label() -> None:
    """The label stands alone on its left."""
    lines = columns.labelled("waits", "one two three four", 8, 24)
    assert lines == ["  waits   one two three", "          four"]
    assert columns.labelled("", "x", 8) == ["          x"]
