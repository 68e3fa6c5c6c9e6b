"""Shows program output as a terminal would: carriage returns, erasing, cursor moves, colours.

What comes out is text or escaped HTML: links, titles and every other control are dropped.
"""

from __future__ import annotations

import re
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


class _Style(NamedTuple):
    colour: str = ""
    bold: bool = False


_PLAIN: Final = _Style()
_Row = list[tuple[str, _Style]]


def text_lines(output: str) -> list[str]:
    """Return the lines that a terminal would show, without colours."""
    if not _CONTROL.search(output):
        text = output[-TAIL_CHARS:].rstrip("\n")
        return [line.rstrip() for line in text.split("\n")] if text else []
    return ["".join(char for char, _ in row).rstrip() for row in _rendered(output)]


def html(output: str) -> str:
    """Return the same lines as escaped HTML, coloured by spans."""
    if not _CONTROL.search(output):
        return escape(output[-TAIL_CHARS:].rstrip("\n"))
    return "\n".join(_row_html(row) for row in _rendered(output))


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

    def write(self, text: str) -> None:
        row = self.rows[self._line]
        row.extend((" ", _PLAIN) for _ in range(self._column - len(row)))
        row[self._column : self._column + len(text)] = [(char, self._style) for char in text]
        self._column += len(text)

    def move(self, char: str) -> None:
        if char == "\b":
            self._column = max(0, self._column - 1)
            return
        self._column = 0
        if char == "\n":
            self._down(1)

    def control(self, letter: str, params: str) -> None:
        numbers = [int(part) if part.isdigit() else 0 for part in params.split(";")]
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
        self._line += min(count, 1000)
        self.rows.extend([] for _ in range(self._line + 1 - len(self.rows)))

    def _erase_in_line(self, how: int) -> None:
        row = self.rows[self._line]
        if how == 0:
            del row[self._column :]
        elif how == 1:
            row[: self._column + 1] = [(" ", _PLAIN)] * min(len(row), self._column + 1)
        else:
            row.clear()


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


def _row_html(row: _Row) -> str:
    parts = []
    for style, cells in groupby(row, key=lambda cell: cell[1]):
        text = escape("".join(char for char, _ in cells))
        mixed = f"color:color-mix(in srgb,{style.colour} 60%,currentColor);"
        css = (mixed if style.colour else "") + ("font-weight:bold;" if style.bold else "")
        parts.append(f'<span style="{css}">{text}</span>' if css else text)
    return "".join(parts).rstrip()
