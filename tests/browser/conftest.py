"""One JupyterLab, which serves Notebook 7 as well, and one browser for all pages."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.browser.notebook_page import LAB, NOTICES, QUIET, Notebook, browser, chromium
from tests.kit.real_server import Places, Served, end_everything_of

FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="module")
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A real JupyterLab with the extension, and with the options that the file asks for."""
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    places = Places(tmp_path_factory.mktemp("lab"))
    settings = places.root / "config" / "lab" / "user-settings" / NOTICES
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(QUIET), encoding="utf-8")
    served = Served(places, *getattr(request.module, "OPTIONS", ()), app="jupyterlab")
    yield served
    served.stop()
    end_everything_of(places)
    shutil.rmtree(places.runtime, ignore_errors=True)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    """The system's Chromium; its loop runs until it is closed, and no other can meanwhile."""
    executable = chromium()
    if executable is None:
        pytest.skip("no Chromium on this machine")
    with browser(executable) as opened:
        yield opened


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let fixtures know whether their test failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def notebook(
    lab: Served, chrome: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., Notebook]]:
    """Write a notebook and open it in a page of its own; pictures are taken of what failed."""
    pages: list[Notebook] = []

    def opened(name: str, cells: Sequence[str], face: str = LAB) -> Notebook:
        # A second page of the same notebook would share its kernel.
        name = f"{face.partition('/')[0]}-{name}"
        Notebook.write(lab, name, cells)
        context = chrome.new_context(viewport={"width": 1100, "height": 800})
        pages.append(Notebook(context.new_page(), lab, name, face))
        return pages[-1]

    yield opened
    for number, page in enumerate(pages):
        if request.node.stash.get(FAILED, False):
            picture = tmp_path / f"page-{number}.png"
            page.page.screenshot(path=picture)
            sys.stderr.write(f"{picture} shows what failed; it complained: {page.complaints}\n")
        page.page.context.close()
    lab.ask("DELETE", "/lock?resource=machine")
    for row in lab.ask("GET", "/runs").json["runs"]:
        if row["status"] != "ended":
            lab.ask("POST", f"/runs/{row['run_id']}/cancel")
