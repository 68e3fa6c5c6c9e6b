"""Shows program output as a terminal would: carriage returns, erasing, cursor moves, colours.

The result is text or escaped HTML: links, titles and every other control are dropped.  The output
is not trusted: with any escapes, a drawing costs a bounded time and a bounded size.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from html import escape
from itertools import groupby
from typing import Final, NamedTuple

#: How much of the end of an output is rendered.
TAIL_CHARS: Final = 64 * 1024

_TOKEN: Final = re.compile(
    r"\x1b\[(?P<params>[0-9;?]*)[ -/]*(?P<control>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b."
    r"|(?P<move>[\r\n\b])"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|(?P<text>[^\x00-\x08\x0a-\x1f\x7f-\x9f]+)",
    re.DOTALL,
)
#: Output without any of these is shown as it is: most is, and the screen is slow.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Mixed with the colour of a page's text, each can be read in its light and in its dark theme.
_COLOURS: Final = ("#555", "#c33", "#2a7d2a", "#96700a", "#2a5db0", "#a03a9a", "#0a8080", "#888")

#: Cells that escapes of one output may fill or erase beyond those that its text fills.
_SPARE_CELLS: Final = 4 * TAIL_CHARS
#: The weight of an empty row below the text among them, and the most rows of one move.
_ROW_CELLS: Final = 64
_MOST_ROWS: Final = 1000
#: Digits of a number that are read: no screen has as many columns.
_DIGITS: Final = 6
#: Changes of style in one output; what follows them is shown without any.
_MOST_SPANS: Final = 4000
#: Marks on top of one character; browsers take seconds to draw thousands of them.
_MOST_MARKS: Final = 8


class _Style(NamedTuple):
    colour: str = ""
    bold: bool = False


_PLAIN: Final = _Style()
_Row = list[tuple[str, _Style]]


def text_lines(output: str) -> list[str]:
    """Return the lines that a terminal would show, without colours."""
    if not _CONTROL.search(output):
        text = _few_marks(output[-TAIL_CHARS:].rstrip("\n"))
        return [line.rstrip() for line in text.split("\n")] if text else []
    rows = ("".join(char for char, _ in row) for row in _rendered(output))
    return [_few_marks(row).rstrip() for row in rows]


@lru_cache(maxsize=8)  # several pages ask for the same output
def html(output: str) -> str:
    """Return the same lines as escaped HTML, coloured by spans."""
    if not _CONTROL.search(output):
        return escape(_few_marks(output[-TAIL_CHARS:].rstrip("\n")))
    return "\n".join(_rows_html(_rendered(output)))


def _rendered(output: str) -> list[_Row]:
    screen = _Screen()
    for token in _TOKEN.finditer(output[-TAIL_CHARS:]):
        if token["text"]:
            screen.write(token["text"])
        elif token["move"]:
            screen.move(token["move"])
        elif token["control"]:
            screen.control(token["control"], token["params"])
    rows = screen.rows
    while rows and not rows[-1]:
        rows.pop()
    return rows


class _Screen:
    """Rows of styled characters and a cursor; it grows downwards and never scrolls."""

    def __init__(self) -> None:
        self.rows: list[_Row] = [[]]
        self._line = 0
        self._column = 0
        self._style = _PLAIN
        self._spare = _SPARE_CELLS

    def write(self, text: str) -> None:
        row = self.rows[self._line]
        if self._column > len(row):
            row.extend([(" ", _PLAIN)] * self._spend(self._column - len(row)))
            self._column = min(self._column, len(row))
        row[self._column : self._column + len(text)] = [(char, self._style) for char in text]
        self._column += len(text)

    def move(self, char: str) -> None:
        if char == "\b":
            self._column = max(0, self._column - 1)
            return
        self._column = 0
        if char == "\n":
            self._line += 1
            if self._line == len(self.rows):
                self.rows.append([])

    def control(self, letter: str, params: str) -> None:
        numbers = [_number(part) for part in params.split(";")]
        count = max(1, numbers[0])
        if letter == "m":
            self._style = _restyled(self._style, numbers)
        elif letter == "K":
            self._erase_in_line(numbers[0])
        elif letter == "J" and numbers[0] == 2:  # noqa: PLR2004 - the whole screen
            self.rows, self._line, self._column = [[]], 0, 0
        elif letter in "AF":
            self._line = max(0, self._line - count)
        elif letter in "BE":
            self._down(count)
        elif letter == "G":
            self._column = count - 1
        if letter in "EF":
            self._column = 0

    def _down(self, count: int) -> None:
        """Move down; below the last row only within the limit of cells."""
        below = self._line + min(count, _MOST_ROWS)
        missing = below + 1 - len(self.rows)
        if missing > 0:
            self.rows.extend([] for _ in range(self._spend(missing * _ROW_CELLS) // _ROW_CELLS))
        self._line = min(below, len(self.rows) - 1)

    def _erase_in_line(self, how: int) -> None:
        row = self.rows[self._line]
        if how == 0:
            del row[self._column :]
        elif how == 1:
            count = self._spend(min(len(row), self._column + 1))
            row[:count] = [(" ", _PLAIN)] * count
        else:
            row.clear()

    def _spend(self, cells: int) -> int:
        """Take cells from the limit; return how many were left."""
        granted = min(cells, self._spare)
        self._spare -= granted
        return granted


def _number(digits: str) -> int:
    """Read a parameter; numbers too large for a screen are cut to one limit."""
    return int(digits.lstrip("0")[:_DIGITS] or 0) if digits.isdigit() else 0


def _restyled(style: _Style, codes: list[int]) -> _Style:
    rest = iter(codes)
    for code in rest:
        if code in (0, 39):
            style = _PLAIN if code == 0 else style._replace(colour="")
        elif code in (1, 22):
            style = style._replace(bold=code == 1)
        elif 30 <= code <= 37 or 90 <= code <= 97:  # noqa: PLR2004 - the SGR colours
            style = style._replace(colour=_COLOURS[code % 10])
        elif code in (38, 48):
            # An extended colour: its numbers must not be taken for codes of their own.
            kind = next(rest, 0)
            for _ in range({5: 1, 2: 3}.get(kind, 0)):
                next(rest, 0)
    return style


def _rows_html(rows: Iterable[_Row]) -> Iterator[str]:
    spans = 0
    for row in rows:
        parts = []
        for style, cells in groupby(_few_marks_in(row), key=lambda cell: cell[1]):
            text = escape("".join(char for char, _ in cells))
            mixed = f"color:color-mix(in srgb,{style.colour} 60%,currentColor);"
            css = (mixed if style.colour else "") + ("font-weight:bold;" if style.bold else "")
            spans += bool(css)
            shown = css and spans <= _MOST_SPANS
            parts.append(f'<span style="{css}">{text}</span>' if shown else text)
        yield "".join(parts).rstrip()


def _few_marks(text: str) -> str:
    """Drop combining marks beyond the number that any script needs."""
    return text if text.isascii() else "".join(text[at] for at in _kept(text))


def _few_marks_in(row: _Row) -> _Row:
    text = "".join(char for char, _ in row)
    return row if text.isascii() else [row[at] for at in _kept(text)]


def _kept(text: str) -> Iterator[int]:
    marks = 0
    for at, char in enumerate(text):
        marks = marks + 1 if unicodedata.category(char).startswith("M") else 0
        if marks <= _MOST_MARKS:
            yield at
