"""The tutorials, executed in a kernel of a real Jupyter server, and how their saved forms read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter

from notebooks.demo_server import PATIENCE_S, Places, ServedKernel, Server

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FIRST = NOTEBOOKS / "01-first-run.ipynb"
_read: Any = nbformat.read


@pytest.fixture(scope="module")
def executed() -> Iterator[Any]:
    """Execute the first tutorial once, as a person who opens it and runs all cells."""
    places = Places()
    try:
        shutil.copy(FIRST, places.notebooks)
        server = Server(places, {})
        notebook = _read(FIRST, as_version=4)
        kernel: Any = ServedKernel(server, FIRST.name)
        client = NotebookClient(notebook, km=kernel, timeout=int(PATIENCE_S))
        client.execute(cleanup_kc=True)
        yield notebook
        server.stop()
    finally:
        places.remove()


def outputs(notebook: Any, cell_id: str) -> list[Any]:
    """Return what one cell of a notebook has shown."""
    (cell,) = [cell for cell in notebook.cells if cell.id == cell_id]
    return list(cell.outputs)


def text(notebook: Any, cell_id: str) -> str:
    """Return the only thing that a cell has shown, as text."""
    (output,) = outputs(notebook, cell_id)
    return str(output["text"] if "text" in output else output["data"]["text/plain"])


class Words(HTMLParser):
    """The words of a page, as one reads them; and whatever could act instead of being read."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.tags.update(name for name, _ in attrs if name.startswith("on"))

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def test_the_tutorial_finds_what_it_says(executed: Any) -> None:
    """One worker's values come back to the notebook, and two workers find the same ones."""
    assert re.fullmatch(r"accuracy 0\.9\d\d ± 0\.\d{3} over 6 splits\n", text(executed, "result"))
    assert text(executed, "same-result") == "[True, True]"


@pytest.mark.behaviour(17, 58, 59)
def test_the_tutorial_shows_how_the_gate_learns(executed: Any) -> None:
    """After each run the estimate rests on one more: measured first, then on a line through two."""
    lines = text(executed, "estimate").splitlines()
    assert lines[0] == "digits"
    assert re.fullmatch(r"  RAM \d+ MB measured, n = 1, \+ \d+ MB margin", lines[1])
    assert re.fullmatch(r"in all: RAM \d+ MB", lines[2])
    assert re.fullmatch(r"(up to )?\d+ workers?.* fits? now", lines[3])
    fitted = text(executed, "estimate-four").splitlines()[1]
    assert re.fullmatch(r"  RAM \d+ MB fitted over workers 1, 2, n = 2, \+ \d+ MB margin", fitted)


@pytest.mark.parametrize("cell_id", ["one-worker", "again"])
def test_each_gated_cell_leaves_one_card_that_any_page_can_show(
    executed: Any, cell_id: str
) -> None:
    """The saved card is text and HTML, says the same in both, and needs no script or widget."""
    (card,) = outputs(executed, cell_id)
    assert set(card["data"]) == {"text/plain", "text/html"}
    lines = card["data"]["text/plain"].splitlines()
    assert re.fullmatch(r"digits · completed · \d{8}-\d{6}-[a-z]{5}", lines[0])
    assert "  episodes  6 of 6" in lines
    assert any(re.fullmatch(r"  peak +RAM \d+ MB of [\d,]+ MB charged", line) for line in lines)
    page = Words(card["data"]["text/html"])
    assert page.tags.isdisjoint({"script", "iframe", "link", "img", "onclick"})
    assert set(" ".join(lines).split()) <= set(page.words)


def test_the_queue_stays_readable_in_a_saved_notebook(executed: Any) -> None:
    """The saved queue names the memory and says that nothing is left to run."""
    (shown,) = outputs(executed, "queue")
    assert set(shown["data"]) == {"text/plain", "text/html"}
    assert re.search(r"^  RAM +[\d,]+ MB", shown["data"]["text/plain"], re.MULTILINE)
    for words in ("no run is live and none is waiting", "to be had", "others"):
        assert words in shown["data"]["text/plain"]
        assert words in shown["data"]["text/html"]


@pytest.mark.parametrize("exporter", [HTMLExporter, MarkdownExporter])
def test_a_converted_notebook_still_tells_the_story(executed: Any, exporter: Any) -> None:
    """What nbconvert makes of the executed tutorial says what the cards and the estimates say."""
    page, _ = exporter().from_notebook_node(executed)
    words = " ".join(Words(page).words)
    for told in ("6 of 6", "completed", "charged", "measured, n = 1", "fitted over workers 1, 2"):
        assert told in words


def test_the_places_of_the_tutorials_are_for_them_alone() -> None:
    """While nbval runs a notebook with a gate of its own, the tests beside it keep their places."""
    assert "gpugate-demo-" not in os.environ.get("XDG_RUNTIME_DIR", "")


def test_tutorials_are_kept_without_what_they_showed() -> None:
    """Outputs belong to whoever runs a tutorial: the kept ones have none, and valid cells."""
    found = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert FIRST in found
    for path in found:
        notebook = _read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [c.id for c in code if c.outputs or c.execution_count is not None] == []
