"""Notebooks in a real browser, in JupyterLab or in Notebook 7, used as a person would."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import nbformat
from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.kit.real_server import PATIENCE_S, Served

PATIENCE_MS = 1000 * PATIENCE_S
#: A workspace of its own keeps a page from opening what another one has left open.
LAB, NOTEBOOK_7 = "lab/workspaces/{stem}/tree/{name}", "notebooks/{name}"
#: Below the user's settings: no page may ask anything of the world, or ask whether it may.
NOTICES = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
QUIET = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
LOAD = "%load_ext jupyter_gpugate"
_new: Any = nbformat.v4
_write: Any = nbformat.write


def chromium() -> str | None:
    """The system's browser."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def browser(executable: str) -> Iterator[Any]:
    """A browser of this test's own, without a window."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        opened = playwright.chromium.launch(executable_path=executable, args=flags)
        yield opened
        opened.close()


class Notebook:
    """One notebook in one page."""

    def __init__(self, page: Page, server: Served, name: str, face: str = LAB) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._hear)
        page.on("dialog", lambda dialog: dialog.accept())
        path = face.format(stem=name.partition(".")[0], name=name)
        self._address = f"{server.url}/{path}?token={server.token}"
        self.open()

    @staticmethod
    def write(server: Served, name: str, cells: Sequence[str]) -> None:
        """Put a notebook into the server's folder."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = _new.new_notebook(
            cells=[_new.new_code_cell(source) for source in cells],
            metadata={"kernelspec": kernel},
        )
        _write(notebook, server.places.notebooks / name)

    def open(self) -> None:
        """Load the page, for the first time or again."""
        self.page.goto(self._address)
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for()

    def reload(self) -> None:
        """Load the page anew, as a person does who has lost patience."""
        self.page.reload()
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for()

    def idle(self) -> None:
        """Wait until the kernel has nothing to do."""
        self.page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for()

    def busy(self) -> bool:
        """Tell whether the kernel is at work on a cell."""
        indicator = self.page.locator(".jp-Notebook-ExecutionIndicator")
        return indicator.get_attribute("data-status") == "busy"

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)

    def run(self, *indices: int) -> None:
        """Execute cells by the keyboard, each when the one before it has ended.

        A page whose kernel is not ready yet may forget what it was told: then it is told again.
        """
        for index in indices:
            prompt = self.cell(index).locator(".jp-InputPrompt").first
            wanted = r"\[[*\d]" if index == indices[-1] else r"\[\d"
            while not re.match(wanted, prompt.inner_text()):
                # A slow page may ask which kernel to take.
                for button in self.page.locator(".jp-Dialog .jp-mod-accept").all():
                    button.click()
                self.cell(index).locator(".cm-content").click()
                self.page.keyboard.press("Shift+Enter")
                with suppress(AssertionError):
                    expect(prompt).to_have_text(re.compile(wanted))

    def interrupt(self) -> None:
        """Interrupt the kernel by the keyboard, as from a cell in command mode."""
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("i")
        self.page.keyboard.press("i")

    def save(self) -> None:
        """Save by the keyboard, and wait until that is done."""
        with self.page.expect_response(
            lambda answer: answer.request.method == "PUT" and "/api/contents/" in answer.url
        ):
            self.page.keyboard.press("Control+s")

    def output(self, index: int) -> Locator:
        """All that a cell shows below itself."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def says(self, index: int, words: str) -> None:
        """Wait until a cell shows these words."""
        self.output(index).get_by_text(words).first.wait_for()

    def order(self, index: int, verb: str) -> Locator:
        """The button of a card for an order."""
        return self.output(index).locator(f'button[data-order="{verb}"]')

    def run_id(self, index: int) -> str:
        """The run that a cell's card is about."""
        return self.output(index).locator("code").first.inner_text()

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)
