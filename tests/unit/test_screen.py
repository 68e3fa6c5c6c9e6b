"""Program output as a terminal would show it."""

from __future__ import annotations

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


def test_a_cursor_far_below_does_not_cost_a_screen_of_that_height() -> None:
    """One escape sequence cannot make a page of a billion lines."""
    assert len(screen.text_lines("\x1b[999999999Bx")) <= 1001
