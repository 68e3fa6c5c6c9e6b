"""Pictures of a card as the README shows it: waiting, running, measured.

``GPUGATE_PICTURES=docs/pictures`` keeps them there; without it they are made and looked at alone.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.notebook_page import LOAD, PATIENCE_MS, Notebook
from tests.kit.real_server import Served, until

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
NAMES = ("measured", "running", "waiting")
MB = 1 << 20
#: The page is twice as fine as a screen's dots, for readers with good screens.
SCALE = 2
#: A blank picture of a card's size has a tenth of this.
LEAST_BYTES = 20_000
#: What the first run leaves of the room, and what the second one asks for and uses.
LEFT_MB, HINT_MB, USED_MB = 1500, 2500, 1200


def evaluation(go: Path) -> str:
    """Make a cell that stops to be looked at after four episodes, until ``go`` is there."""
    return f"""\
%%gated_eval digits-val --episodes 6 --gpus 0 --hint-ram {HINT_MB}MB
from pathlib import Path
import time
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

images, labels = load_digits(return_X_y=True)
features = np.ones(({USED_MB}, 1 << 20), dtype=np.uint8)
for e in episodes:
    while e.index == 4 and not Path({str(go)!r}).exists():
        time.sleep(0.1)
    split = train_test_split(images, labels, test_size=0.3, random_state=e.index)
    score = SVC().fit(split[0], split[2]).score(split[1], split[3])
    print(f"split {{e.index}}: accuracy {{score:.3f}}", flush=True)
    e.keep(score)
"""


@pytest.fixture
def page(lab: Served, chrome: Any) -> Iterator[Callable[..., Notebook]]:
    """Open a notebook in a page that is wide enough for a card and twice as fine."""
    context = chrome.new_context(viewport={"width": 1230, "height": 900}, device_scale_factor=SCALE)

    def opened(*cells: str) -> Notebook:
        Notebook.write(lab, "pictures.ipynb", cells)
        return Notebook(context.new_page(), lab, "pictures.ipynb")

    yield opened
    context.close()
    for row in lab.ask("GET", "/runs").json["runs"]:
        if row["status"] != "ended":
            lab.ask("POST", f"/runs/{row['run_id']}/cancel")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where pictures go."""
    wanted = Path(os.environ.get("GPUGATE_PICTURES") or tmp_path)
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted


def taken(card: Locator, path: Path) -> None:
    """Take a picture of a card, buttons and all, at full size."""
    card.screenshot(path=path)
    shown = card.bounding_box()
    assert shown is not None
    width, height = checked(path.read_bytes())
    assert abs(width - SCALE * shown["width"]) <= SCALE
    assert abs(height - SCALE * shown["height"]) <= SCALE


def checked(png: bytes) -> tuple[int, int]:
    """Return a picture's width and height; it is a whole PNG, and not a blank one."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert png.endswith(b"IEND\xaeB`\x82")
    assert len(png) > LEAST_BYTES
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.behaviour(17, 24)
def test_a_card_waits_runs_and_is_measured(
    page: Callable[..., Notebook], lab: Served, folder: Path, tmp_path: Path
) -> None:
    """A card says what its run waits for, what it holds, and the second time what was measured."""
    go = tmp_path / "go"
    room = until(lambda: lab.queue()["room_bytes"].get("ram"), "RAM is measured") // MB
    hint_mb = int((room - LEFT_MB) / 1.1)  # a hint's margin is a tenth
    first = lab.submit(
        "other-val", "import time\ntime.sleep(3600)", gpus=0, hints={"ram_bytes": hint_mb * MB}
    )
    lab.active(first)
    source = evaluation(go)
    notebook = page(LOAD, source, source)
    notebook.idle()
    notebook.run(0, 1)
    card = notebook.output(1).locator(".jp-RenderedHTML").first
    lab.waiting(notebook.run_id(1), "fit")
    expect(card).to_contain_text("promised to runs that may still use it", timeout=PATIENCE_MS)
    notebook.order(1, "cancel").wait_for()
    taken(card, folder / "waiting.png")

    lab.ask("POST", f"/runs/{first}/cancel")
    notebook.says(1, "4 of 6")
    held = re.compile(r"RAM: 1,\d\d\d of [\d,]+ MB reserved")
    expect(card).to_contain_text(held, timeout=PATIENCE_MS)
    taken(card, folder / "running.png")
    go.touch()
    notebook.says(1, "completed")
    notebook.idle()

    notebook.run(2)
    notebook.says(2, "completed")
    notebook.idle()
    card = notebook.output(2).locator(".jp-RenderedHTML").first
    expect(card).to_contain_text("measured, from 1 run", timeout=PATIENCE_MS)
    expect(card).to_contain_text("as earlier runs needed")
    taken(card, folder / "measured.png")


def test_the_kept_pictures_are_whole_and_small() -> None:
    """docs/pictures holds these three PNGs and no other; each is whole and below 150 kB."""
    assert sorted(path.stem for path in PICTURES.glob("*.png")) == list(NAMES)
    for name in NAMES:
        png = (PICTURES / f"{name}.png").read_bytes()
        assert len(png) < 150_000
        checked(png)
