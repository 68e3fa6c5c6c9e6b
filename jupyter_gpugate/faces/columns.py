"""Aligned text for terminals: tables and labelled lines that fit into a width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Optional

#: A cell this short is a number with its unit, an id or a name, and is not broken into two lines.
SHORT: Final = 24
#: Columns up to this width, such as ids, are never broken; others are not made narrower than this.
_UNBROKEN: Final = 21
_LEAST: Final = 14
_GAP: Final = 2
#: A number and its unit stay together.
_BETWEEN_WORDS: Final = re.compile(r"(?<!\d) | (?!(?:MB|s|min|h)\b)")
_INDENT: Final = 2
_INDENT_BELOW: Final = 6

Rows = Sequence[Sequence[str]]


@lru_cache(maxsize=4096)
def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def columns(text: str) -> int:
    """Return the number of columns of a terminal that a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def padded(text: str, width: int) -> str:
    """Fill a text with spaces up to a width."""
    return text + " " * max(0, width - columns(text))


def cut(text: str, width: int) -> str:
    """Cut a text to a width, with a mark at the end."""
    return text if columns(text) <= width else _beginning(text, max(0, width - 1)) + "…"


def middle_cut(text: str, width: int) -> str:
    """Cut a text to a width in its middle: of a command line, both ends say the most."""
    if columns(text) <= width:
        return text
    first = (width - 1) // 3
    rest = _beginning(text[::-1], width - 1 - first)[::-1]
    return f"{_beginning(text, first)}…{rest}"


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most a width, between words where possible."""
    lines = [""]
    for word in _BETWEEN_WORDS.split(text):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if columns(joined) <= width:
            lines[-1] = joined
        else:
            lines += _pieces(word, width)
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def _pieces(word: str, width: int) -> Iterator[str]:
    """Break a word that may be longer than a line."""
    rest = word
    while columns(rest) > width:
        piece = _beginning(rest, width) or rest[:1]
        yield piece
        rest = rest[len(piece) :]
    yield rest


def aligned(rows: Rows, width: Optional[int] = None) -> Iterator[str]:
    """Align the cells of a table, whose first row names its columns; without a width, unbroken."""
    if not rows:
        return
    widths = [max(map(columns, column)) for column in zip(*rows)]
    if width is None or _total(widths) <= width:
        yield from _lines(rows, widths)
        return
    beside = list(_lines(rows, narrowed := _narrowed(widths, width)))
    if len(widths) == 1:
        yield from beside
        return
    below = list(_with_last_below(rows, _narrowed(widths[:-1], width), width))
    yield from beside if len(beside) <= len(below) and _total(narrowed) <= width else below


def labelled(label: str, text: str, label_width: int, width: Optional[int] = None) -> list[str]:
    """Return a label and its text, which is broken beside the label."""
    indent = _INDENT + label_width
    lines = [text] if width is None else wrapped(text, max(_LEAST, width - indent))
    labels = [label, *[""] * (len(lines) - 1)]
    return [f"{' ' * _INDENT}{padded(a, label_width)}{b}".rstrip() for a, b in zip(labels, lines)]


def _total(widths: Sequence[int]) -> int:
    return _INDENT + sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(widths: Sequence[int], width: int) -> list[int]:
    """Take from the widest columns until the table fits, or nothing more can be taken."""
    found = list(widths)
    while _total(found) > width:
        spare = [
            found[n] if w > _UNBROKEN and found[n] > _LEAST else 0 for n, w in enumerate(widths)
        ]
        if not any(spare):
            break
        found[spare.index(max(spare))] -= 1
    return found


def _lines(rows: Rows, widths: Sequence[int]) -> Iterator[str]:
    for row in rows:
        broken = [wrapped(cell, width) for cell, width in zip(row, widths)]
        for number in range(max(map(len, broken))):
            parts = [cell[number] if number < len(cell) else "" for cell in broken]
            yield _joined(parts, widths)


def _with_last_below(rows: Rows, widths: Sequence[int], width: int) -> Iterator[str]:
    for row in rows:
        *cells, last = row
        yield from _lines([cells], widths)
        if row is not rows[0]:
            for line in wrapped(last, max(_LEAST, width - _INDENT_BELOW)) if last else ():
                yield f"{' ' * _INDENT_BELOW}{line}"


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    gap = " " * _GAP
    return " " * _INDENT + gap.join(map(padded, cells, widths)).rstrip()


def _beginning(text: str, width: int) -> str:
    taken = 0
    for at, char in enumerate(text):
        taken += _cells(char)
        if taken > width:
            return text[:at]
    return text
