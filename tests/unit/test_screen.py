"""Program output as a terminal would show it."""

from __future__ import annotations

import re

import pytest

from jupyter_gpugate.faces import screen


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("loading\r\ndone\r\n", ["loading", "done"]),
        ("long line\rshort", ["shortline"]),
        ("abc\b\bX", ["aXc"]),
        ("10%\r\x1b[K20%", ["20%"]),
        ("outer 1\ninner 1\x1b[A\router 2\n\rinner 2", ["outer 2", "inner 2"]),
        ("abcdef\x1b[3G\x1b[1K", ["   def"]),
        ("old\nolder\x1b[2Jnew", ["new"]),
        ("\x1b[2Bbelow", ["", "", "below"]),
        ("a\tb", ["a\tb"]),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", ["link"]),
        ("\x1b[38;5;9mred\x1b[48;2;1;2;31mback\x1b[0m", ["redback"]),
        ("bell\x07 nul\x00 c1\x9b31m", ["bell nul c131m"]),
        ("cut off\x1b[3", ["cut off3"]),
        ("\n\n", []),
        ("", []),
    ],
)
def test_controls_act_or_vanish(written: str, shown: list[str]) -> None:
    """Moves and erasures act as on a terminal; every other control leaves no trace."""
    assert screen.text_lines(written) == shown


def test_colours_become_spans_around_escaped_text() -> None:
    """Colour and weight show in HTML, and markup in the output is not markup of the page."""
    html = screen.html("\x1b[1;32m<ok>\x1b[0m & done")
    style = "color:color-mix(in srgb,#2a7d2a 60%,currentColor);font-weight:bold;"
    assert html == f'<span style="{style}">&lt;ok&gt;</span> &amp; done'


def test_extended_colours_do_not_leak_into_plain_ones() -> None:
    """The numbers of a 256-colour code are not taken for codes of their own."""
    assert screen.html("\x1b[38;5;31mx") == "x"


def test_only_the_end_of_a_long_output_is_rendered() -> None:
    """Output of any length costs no more than its last 64 KiB."""
    lines = screen.text_lines("x" * 10 * screen.TAIL_CHARS + "\nlast")
    assert lines[-1] == "last"
    assert len(lines[0]) < screen.TAIL_CHARS


#: Escapes that ask for far more than their own length, each repeated to a whole output.
FLOODS = {
    "a column far to the right": "\x1b[30000000Gx",
    "columns of many rows": "\x1b[60000Gx\n",
    "rows far below": "\x1b[1000B",
    "next lines": "\x1b[999999999E.",
    "down from the end of a long row": "x" * 30_000 + "\x1b[Bx" * 7_000,
    "erase to the left of a long row": "x" * 30_000 + "\x1b[1K" * 8_000,
    "more digits than are read": "\x1b[" + "9" * 5000 + "mx",
    "more digits of a column": "\x1b[" + "9" * 5000 + "Gx",
    "many parameters": "\x1b[" + "1;31;" * 12_000 + "mx",
    "a colour for each character": "".join(f"\x1b[3{n % 7 + 1}mx" for n in range(10_000)),
    "marks on one character": "e" + "\u0301\u20dd" * 30_000,
    "marks parted by controls": "e" + "\u0301\x00" * 30_000,
    "marks of many colours": "e" + "\x1b[31m\u0301\x1b[32m\u0301" * 5_000,
    "marks on a wide character": "字" + "\u0e49" * 60_000,
    "an escape without an end": "\x1b[" + "1" * 60_000,
}


@pytest.mark.parametrize("written", FLOODS.values(), ids=FLOODS.keys())
def test_no_output_costs_much_more_than_its_length(written: str) -> None:
    """Whatever the escapes ask for, the page and the memory that it takes stay small."""
    output = written * (screen.TAIL_CHARS // len(written) + 1)
    cells = screen._rendered(output)
    lines, page = screen.text_lines(output), screen.html.__wrapped__(output)
    assert sum(map(len, cells)) + len(cells) < 8 * screen.TAIL_CHARS
    assert len(page) < 16 * screen.TAIL_CHARS
    seen = re.sub("<[^>]*>", "", page)
    assert not any(re.search("[\u0301\u20dd\u0e49]{9}", line) for line in (*lines, seen))


@pytest.mark.parametrize("written", FLOODS.values(), ids=FLOODS.keys())
def test_what_comes_after_a_flood_is_still_shown(written: str) -> None:
    """An output that asked for too much loses its layout, never its last words."""
    assert screen.text_lines(f"{written}\x1b[m\nthe last words")[-1] == "the last words"


def test_marks_that_scripts_need_are_kept() -> None:
    """A character with a few marks is shown with all of them."""
    word = "n\u0303 \u0e01\u0e49\u0e33 o\u0302\u0323"
    assert screen.text_lines(f"\x1b[1m{word}") == [word]
    assert word in screen.html(word)
