"""One picture of `jupyter gpugate top`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jupyter_gpugate.faces import columns
from jupyter_gpugate.terminal.top import picture

SNAPSHOT: dict[str, Any] = {
    "running": [
        {"run_id": f"20261201-1059{n:02d}-abcde", "name": "eval", "phase": "running"}
        for n in range(40)
    ]
}


def lines_of(drawn: str) -> list[str]:
    """The lines of a picture, without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).split("\r\n")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (20, 5), (200, 100)])
def test_a_picture_fits_the_terminal(width: int, height: int) -> None:
    """No line is broken or scrolled by the terminal; a last one counts those left out."""
    lines = lines_of(picture(SNAPSHOT, "", width, height))
    assert len(lines) <= height
    assert max(map(columns.columns, lines)) <= width
    assert any("more lines" in line for line in lines) is (height < 50)
    assert "Ctrl-C" in lines[0] or width == 20


def test_a_picture_that_is_old_says_why() -> None:
    """The last snapshot stays while the gate does not answer."""
    lines = lines_of(picture(SNAPSHOT, "no gate answers\x1b", 80, 24))
    assert lines[1].rstrip() == "no gate answers"
    assert any("20261201-105900-abcde" in line for line in lines)
    assert lines_of(picture({}, "no gate", 80, 24))[1] == "no gate"
