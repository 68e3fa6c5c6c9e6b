"""What a run prints and displays, in a real browser: in the order and the form of a notebook."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.notebook_page import LOAD, Notebook
from tests.kit.real_server import Served

Opened = Callable[..., Notebook]

#: Prints and displays in turn, and goes on until it is told to end.
TURNS = """\
%%gated_eval turns
import pathlib, time
from tqdm.notebook import tqdm
print("printed first")
for epoch in tqdm(range(3), desc="epochs"):
    display({{"text/html": f"<b>figure {{epoch}}</b>", "text/plain": ""}}, raw=True)
    print(f"printed after turn {{epoch}}")
while not pathlib.Path({go!r}).exists():
    print("\\rstill at it", time.monotonic(), end="")
    time.sleep(0.1)
print("\\rdone          ")
"""
ORDER = [
    "printed first",
    "epochs: 100%",
    "figure 0",
    "printed after turn 0",
    "figure 1",
    "printed after turn 1",
    "figure 2",
    "printed after turn 2",
]


def in_order(text: str, words: list[str]) -> bool:
    """Tell whether all of these are in a text, each once and one after another."""
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places) and all(text.count(w) == 1 for w in words)


def test_prints_and_displays_are_in_order_while_the_cell_runs(
    notebook: Opened, lab: Served
) -> None:
    """A busy cell shows prints, figures and bars where a notebook has them, live, and keeps its
    buttons; after a reload the page shows the same and goes on.
    """
    go = lab.places.notebooks / "go-on"
    page = notebook("turns.ipynb", [LOAD, TURNS.format(go=str(go))])
    page.idle()
    page.run(0, 1)
    page.says(1, "still at it")
    page.says(1, "epochs: 100%")
    text = page.output(1).inner_text()
    assert in_order(text, [*ORDER, "still at it"]), text
    page.order(1, "cancel").wait_for()
    page.save()
    page.reload()
    page.says(1, "still at it")
    page.order(1, "cancel").wait_for()
    go.touch()
    page.says(1, "completed")
    page.says(1, "done")
    page.idle()
    go.unlink()
    text = page.output(1).inner_text()
    assert in_order(text, ORDER), text
    expect(page.output(1)).not_to_contain_text("model not found")
    assert not [complaint for complaint in page.complaints if "widget" in complaint]


CLEARS = """\
%%gated_eval clears
import time
from IPython.display import clear_output
for epoch in range(12):
    clear_output(wait=True)
    print(f"epoch {epoch} of this run")
    display({"text/html": f"<b>figure {epoch}</b>", "text/plain": ""}, raw=True)
    time.sleep(0.2)
"""


def test_a_loop_that_clears_shows_its_newest_turn(notebook: Opened) -> None:
    """Each turn takes the place of the one before, and the card stays where it is."""
    page = notebook("clears.ipynb", [LOAD, CLEARS])
    page.idle()
    page.run(0, 1)
    page.says(1, "figure 11")
    page.says(1, "completed")
    page.idle()
    text = page.output(1).inner_text()
    assert in_order(text, ["completed", "epoch 11 of this run", "figure 11"]), text
    assert text.count("epoch") == text.count("figure") == 1
