"""The output of a run on its card, in text and in HTML."""

from __future__ import annotations

from jupyter_gpugate.faces import card
from tests.kit.cards import _Page, both, running

HOSTILE = "\x1b]0;title\x07\x1b[2J<img src=x onerror=alert(1)>"


def test_output_is_shown_as_a_terminal_would() -> None:
    """A progress bar is its last state, colours are colours, and only the end is in the text."""
    lines = "".join(f"line {n}\n" for n in range(30))
    state = running(output_tail=f"{lines}\r 10%|#  |\r 90%|## |\x1b[31mred\x1b[0m")
    text, page = card.text(state), card.html(state)
    assert " 90%|## |red" in text
    assert "10%" not in text
    assert "line 29" in text
    assert "line 3\n" not in text
    assert "line 3\n" in page
    assert '<span style="color:color-mix(in srgb,#c33 60%,currentColor);">red</span>' in page


def test_whatever_a_run_says_stays_text() -> None:
    """Markup and controls in names, outputs, errors and reasons reach neither page nor terminal."""
    plain = _Page(card.html(running(output_tail="x")))
    state = running(
        name=HOSTILE,
        output_tail=HOSTILE,
        reasons=[{"message": HOSTILE}],
        devices=[{"uuid": "GPU-1", "model": HOSTILE, "index": HOSTILE}],
        error={"ename": HOSTILE, "evalue": HOSTILE},
    )
    for status in ("queued", "active", "ended"):
        changed = {**state, "status": status, "end": HOSTILE, "exit_reason": HOSTILE}
        page = _Page(card.html(changed, note=HOSTILE))
        assert page.tags <= plain.tags | {"div", "b"}
        assert page.attributes <= plain.attributes
        assert "<img" in page.text
        text = card.text(changed, note="")
        assert all(char.isprintable() or char == "\n" for char in text)


def test_a_card_stays_small_whatever_its_run_says() -> None:
    """Errors, reasons and warnings of any size and number are cut, and the cut is said."""
    flood = "x" * 5_000_000
    state = running(
        name=flood[:64],
        error={"ename": "E", "evalue": flood},
        warnings=[f"{n} {flood}" for n in range(300)],
        exit_reason=flood,
        reasons=[{"message": flood}],
        output_tail=flood,
    )
    for status in ("queued", "active", "ended"):
        shown = {**state, "status": status, "end": "failed"}
        text, page = both(shown)
        assert len(card.html(shown)) < 500_000
        for said in (text, page):
            assert len(said) < 200_000
            assert "and 250 more" in said
            assert "more characters" in said


def test_the_end_of_a_long_output_names_the_call_that_gives_all_of_it() -> None:
    """A card that shows the last lines says so, and how to get the others."""
    lines = "".join(f"line {n}\n" for n in range(30))
    call = 'jupyter_gpugate.get("20261129-143600-abcde").output()'
    assert f"(the last 20 lines; all of it: {call})" in card.text(running(output_tail=lines))
    assert call not in card.text(running(output_tail="short\n"))
