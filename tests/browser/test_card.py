"""The card in a real browser: live, and obeyed, while the kernel is busy with that very cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.notebook_page import LAB, LOAD, NOTEBOOK_7, PATIENCE_MS, Notebook
from tests.kit.real_server import Served

Opened = Callable[..., Notebook]

#: Runs until it is told to go on; says so where a reader sees it.
ENDLESS = """\
%%gated_eval endless --episodes 2
import time
for e in episodes:
    e.keep(e.index)
    print(f"episode {e.index} of a long one", flush=True)
    if e.index:
        time.sleep(3600)
"""
#: By how much the end of what a box holds is below what a reader sees of it.
BEYOND = """\
box => box.lastElementChild.getBoundingClientRect().bottom - box.getBoundingClientRect().bottom
"""
FACES = pytest.mark.parametrize("face", [LAB, NOTEBOOK_7], ids=["lab", "notebook-7"])


@FACES
@pytest.mark.behaviour(13)
def test_cancel_works_while_the_cell_runs(notebook: Opened, lab: Served, face: str) -> None:
    """The card of a busy cell shows its run at work; two presses of its button, by mouse or key,
    stop it.
    """
    page = notebook("cancel.ipynb", [LOAD, ENDLESS, "after = 1"], face)
    page.idle()
    page.run(0, 1)
    page.says(1, "1 of 2")
    page.says(1, "episode 1 of a long one")
    assert page.busy()
    run_id = page.run_id(1)
    page.order(1, "cancel").click()
    expect(page.order(1, "cancel")).to_have_text("Really stop it?")
    assert lab.run(run_id)["status"] == "active"
    expect(page.order(1, "cancel")).to_have_attribute("data-armed", "")
    page.order(1, "cancel").press("Enter")
    page.says(1, "RunCancelled")
    page.idle()
    assert lab.ended(run_id)["end"] == "cancelled"
    expect(page.output(1).locator("button")).to_have_count(0)
    assert page.complaints == []


@FACES
def test_a_reloaded_page_finds_its_run_and_detaches_it(
    notebook: Opened, lab: Served, face: str
) -> None:
    """A page reloaded in mid-cell has a live card again; detached there, the run goes on, and as
    nobody waits for it any more, a card of it elsewhere offers to cancel and nothing else.
    """
    wait = "%%gated_eval slow --output total\nimport pathlib, time\n"
    go = lab.places.notebooks / "go"
    wait += f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.1)\ntotal = 42"
    page = notebook("reload.ipynb", [LOAD, wait], face)
    page.idle()
    page.run(0, 1)
    page.says(1, "running")
    run_id = page.run_id(1)
    page.save()
    page.reload()
    page.order(1, "detach").click()
    page.idle()
    expect(page.order(1, "detach")).to_have_count(0)
    assert lab.run(run_id)["status"] == "active"
    assert lab.run(run_id)["detached"]
    handle = f'jupyter_gpugate.get("{run_id}")'
    cells = ["import jupyter_gpugate", handle, f"{handle}.result() + 1"]
    other = notebook("other.ipynb", cells, face)
    other.idle()
    other.run(0, 1)
    other.order(1, "cancel").wait_for()
    assert other.order(1, "detach").count() == 0
    go.touch()
    other.run(2)
    other.says(2, "43")
    go.unlink()
    for card in (page, other):
        card.says(1, "completed")
        expect(card.output(1).locator("button")).to_have_count(0)


@FACES
@pytest.mark.behaviour(173, 13)
def test_a_sweeps_table_is_live_and_stopped_as_one(
    notebook: Opened, lab: Served, face: str
) -> None:
    """While the kernel is busy with the cell, its table shows each run, and a button stops all."""
    sweep = (
        "%%gated_eval sweep --gpus 0 --hint-ram 64MB --sweep n=1..4 --at-most 2\nimport time\n"
        "print('row', params['n'], flush=True)\nif params['n'] > 1:\n    time.sleep(3600)"
    )
    page = notebook("sweep.ipynb", [LOAD, sweep], face)
    page.idle()
    page.run(0, 1)
    page.says(1, "4 runs: 2 active, 1 waiting, 1 completed")
    page.says(1, "row 3")
    page.says(1, "its group runs at most 2 at a time")
    assert page.busy()
    page.order(1, "cancel").click()
    expect(page.order(1, "cancel")).to_have_attribute("data-armed", "")
    page.order(1, "cancel").press("Enter")
    page.says(1, "RunCancelled")
    page.says(1, "3 of 4 runs of sweep")
    page.idle()
    page.says(1, "4 runs: 1 completed, 3 cancelled")
    ends = [row["end"] for row in lab.ask("GET", "/runs?name=sweep&limit=4").json["runs"]]
    assert sorted(ends) == ["cancelled"] * 3 + ["completed"]
    expect(page.output(1).locator("button")).to_have_count(0)
    assert page.complaints == []


def test_the_question_of_an_interrupt_is_on_the_live_card(notebook: Opened, lab: Served) -> None:
    """One interrupt asks on the card whether it is meant; a second one within 5 s cancels."""
    page = notebook("interrupt.ipynb", [LOAD, ENDLESS])
    page.idle()
    page.run(0, 1)
    page.says(1, "1 of 2")
    run_id = page.run_id(1)
    page.interrupt()
    question = "interrupt again within 5 s to cancel; the run goes on otherwise"
    page.says(1, question)
    # Commands are on the card until its script has filled it anew; the question outlasts that.
    expect(page.output(1)).not_to_contain_text("to stop")
    assert question in page.output(1).inner_text()
    page.interrupt()
    page.says(1, "RunCancelled")
    assert lab.ended(run_id)["end"] == "cancelled"


def test_a_long_output_shows_its_end(notebook: Opened) -> None:
    """Of a long output the last lines are in view, and the first says where the rest is."""
    page = notebook(
        "long.ipynb", [LOAD, "%%gated_eval long\nfor i in range(20_000): print('line', i)"]
    )
    page.idle()
    page.run(0, 1)
    page.says(1, "completed")
    page.idle()
    box = page.output(1).locator(".gpugate-output")
    expect(box).to_contain_text("line 19999")
    expect(box).to_be_in_viewport()
    assert box.evaluate(BEYOND) <= 0
    assert box.evaluate("box => box.scrollHeight > 2 * box.clientHeight")
    lines = page.output(1).locator("pre").first.inner_text().splitlines()
    assert lines[0] == f'[earlier lines: jupyter_gpugate.get("{page.run_id(1)}").output()]'
    assert lines[1].startswith("line ")


def test_the_reason_for_waiting_is_on_the_card(notebook: Opened, lab: Served) -> None:
    """A run that waits says on its card what for, in the gate's own words, and then starts."""
    lab.ask("POST", "/lock", {"resource": "machine"})
    page = notebook("wait.ipynb", [LOAD, "%%gated_eval second\nprint('its turn')"])
    page.idle()
    page.run(0, 1)
    page.says(1, "waiting, number 1 in the queue")
    # Commands are on the card until its script has filled it anew.
    expect(page.output(1)).not_to_contain_text("to stop")
    reason = lab.waiting(page.run_id(1), "lock")["reasons"][0]
    expect(page.output(1)).to_contain_text(reason["message"], timeout=PATIENCE_MS)
    lab.ask("DELETE", "/lock?resource=machine")
    page.says(1, "its turn")
    page.says(1, "completed")
    page.idle()


def test_a_saved_notebook_is_readable_without_its_server(notebook: Opened, lab: Served) -> None:
    """What a run's end leaves in the file is text and HTML without a script."""
    page = notebook("saved.ipynb", [LOAD, "%%gated_eval short\nprint('all of it')"])
    page.idle()
    page.run(0, 1)
    page.says(1, "completed")
    page.idle()
    page.save()
    saved = (lab.places.notebooks / "lab-saved.ipynb").read_text(encoding="utf-8")
    assert "all of it" in saved
    assert "<script" not in saved


def test_what_a_run_prints_stays_text(notebook: Opened) -> None:
    """Markup in output never becomes part of the page."""
    hostile = (
        "<img src=x onerror=\"document.title='taken'\"></pre><script>document.title=1</script>"
    )
    page = notebook("hostile.ipynb", [LOAD, f"%%gated_eval hostile\nprint({hostile!r})"])
    page.idle()
    page.run(0, 1)
    page.says(1, "completed")
    page.says(1, "onerror")
    assert page.output(1).locator("img").count() == 0
    assert "taken" not in page.page.title()


@FACES
def test_the_panel_stays_live_while_the_kernel_is_busy(
    notebook: Opened, lab: Served, face: str
) -> None:
    """A panel shows runs of anybody as they come and go, and stops one, during a long cell."""
    page = notebook("panel.ipynb", [LOAD, "%gpu_panel", "import time\ntime.sleep(3600)"], face)
    page.idle()
    page.run(0, 1)
    page.says(1, "no run is active and none is waiting")
    page.run(2)
    run_id = lab.submit("elsewhere", "import time\ntime.sleep(3600)")
    page.says(1, run_id)
    assert page.busy()
    row = page.output(1).locator("tr", has_text=run_id)
    lab.active(run_id)
    row.get_by_text("running").wait_for()
    row.get_by_role("button").click()
    expect(row.get_by_role("button")).to_have_attribute("data-armed", "")
    row.get_by_role("button").click()
    page.says(1, "no run is active and none is waiting")
    assert lab.ended(run_id)["end"] == "cancelled"


def test_the_card_outlives_its_server(notebook: Opened, lab: Served) -> None:
    """A page that cannot reach its server says so on the card, and catches up when it can."""
    page = notebook("away.ipynb", [LOAD, ENDLESS])
    page.idle()
    page.run(0, 1)
    page.says(1, "1 of 2")
    run_id = page.run_id(1)
    page.page.context.set_offline(True)
    page.says(1, "the server does not answer")
    lab.ask("POST", f"/runs/{run_id}/cancel")
    page.page.context.set_offline(False)
    page.says(1, "cancelled")
