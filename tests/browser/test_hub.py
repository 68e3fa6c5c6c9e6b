"""Cards and panels in the pages of a server that treats cookies as JupyterHub does."""

from __future__ import annotations

from collections.abc import Callable

from tests.browser.notebook_page import LOAD, Notebook
from tests.kit.real_server import Served

OPTIONS = ("--ServerApp.identity_provider_class=tests.browser.hub_identity.HubIdentity",)
ENDLESS = "%%gated_eval endless\nimport time\ntime.sleep(3600)"


def test_a_hubs_page_is_live_and_obeyed(notebook: Callable[..., Notebook], lab: Served) -> None:
    """Where the server wants the page's mark with every question of a script, card and panel have
    it: the one's buttons are there, the other's stops the run.
    """
    page = notebook("hub.ipynb", [LOAD, "%gpu_panel", ENDLESS])
    page.idle()
    page.run(0, 1, 2)
    page.order(2, "cancel").wait_for()
    run_id = page.run_id(2)
    row = page.output(1).locator("tr", has_text=run_id)
    row.locator("button", has_text="Cancel").click()
    row.locator("button[data-armed]", has_text="Really stop it?").click()
    page.says(2, "RunCancelled")
    assert lab.ended(run_id)["end"] == "cancelled"
    assert page.complaints == []
