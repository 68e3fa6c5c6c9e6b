"""The script of cards and panels, against a server that answers as each test needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import expect

from jupyter_gpugate.faces import tables
from jupyter_gpugate.notebook import live
from tests.browser.stand_in_page import AWAY, Page
from tests.kit.real_server import until

Opened = Callable[..., Page]

GROUP = "g20260914-101502-kqzfa"

PRESSED_30_TIMES = """\
button => {
  for (let n = 0; n < 30; n++) button.click();
  return [button.textContent, button.disabled];
}
"""
PRESSED_ONCE_ARMED = """\
button => {
  const answer = () => "armed" in button.dataset && button.click();
  new MutationObserver(answer).observe(button, { attributes: true });
  button.click();
}
"""


@pytest.fixture
def opened(chrome: Any) -> Iterator[Opened]:
    """Open a page of a stand-in."""
    pages: list[Page] = []

    def open_page(*shown: Any) -> Page:
        pages.append(Page(chrome.new_context(viewport={"width": 400, "height": 600}), *shown))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


def test_a_page_asks_the_server_that_it_came_from_and_says_who_it_is(opened: Opened) -> None:
    """Questions and orders go below the server's own path, with the token of page and of cookie."""
    page = opened()
    page.card("r1", "at work", "queued", "detach", "cancel")
    place = page.show("card", "one", "r1")
    place.get_by_role("button", name="Detach").click()
    page.until(lambda: len(page.orders) == 1, "the page detaches")
    place.get_by_role("button", name="Cancel").click()
    page.until(lambda: len(page.orders) == 2, "the page cancels")
    assert [order.url.partition("/user/ada/gpugate/api/v1")[2] for order in page.orders] == [
        "/runs/r1/detach",
        "/runs/r1/cancel",
    ]
    for request in (*page.asked, *page.orders):
        assert request.headers["authorization"] == "token a-token"
        assert request.headers["x-xsrftoken"] == "2|abc"


def test_each_card_of_a_page_is_about_its_own_run(opened: Opened) -> None:
    """Two cards on one page show two runs, and a button of one stops that one."""
    page = opened()
    for name in ("r1", "r2"):
        page.card(name, f"about {name}", "queued", "cancel")
    first, second = page.show("card", "one", "r1"), page.show("card", "two", "r2")
    expect(second).to_contain_text("about r2")
    expect(first).to_contain_text("about r1")
    page.card("r1", "news of r1", "queued", "cancel")
    expect(first).to_contain_text("news of r1")
    expect(second).to_contain_text("about r2")
    second.get_by_role("button").click()
    page.until(lambda: page.orders, "the page cancels")
    assert page.orders[0].url.endswith("/runs/r2/cancel")


def test_a_card_that_a_page_shows_twice_is_live_in_both_places(opened: Opened) -> None:
    """A notebook that is open twice in one page has each card twice, and asks once for each."""
    run = {"run_id": "r1", "name": "digits", "status": "queued"}
    page = opened(2 * live.bundle(run)["text/html"])
    page.card("r1", "kept up to date", "ended")
    expect(page.page.get_by_text("kept up to date")).to_have_count(2)
    assert page.questions["/runs/r1/card"] == 2


def test_text_below_a_card_goes_on_while_it_grows(opened: Opened) -> None:
    """The script asks for the text that grows below its card, and fills in what it asked for and
    nothing else.
    """
    texts = "".join(f'<div data-run="r1" data-from="{at}">from {at}</div>' for at in (5, 90))
    run = {"run_id": "r1", "name": "digits", "status": "active", "output_until": 3}
    page = opened(live.bundle(run)["text/html"] + texts)
    rest = {"start": 90, "html": '<div class="gpugate-output">and on</div>'}
    answer = {"html": "at work", "status": "active", "orders": [], "rest": rest}
    page.answers("/runs/r1/card", answer)
    expect(page.page.locator('[data-from="90"]')).to_have_text("and on")
    expect(page.page.locator('[data-from="5"]')).to_have_text("from 5")
    assert "until=3&rest=90" in page.asked[-1].url


def test_a_groups_table_is_kept_up_to_date_and_stopped_as_one(opened: Opened) -> None:
    """Its buttons concern all runs; one that has ended has none, and is asked about no more."""
    group: dict[str, Any] = {"group": GROUP, "name": "sweep", "status": "queued", "runs": []}
    page = opened(live.group_bundle(group)["text/html"])

    def answers(html: str, status: str, *orders: str) -> None:
        page.answers(f"/groups/{GROUP}/card", {"html": html, "status": status, "orders": orders})

    answers("2 of 3 active", "active", "detach", "cancel")
    expect(page.page.get_by_text("2 of 3 active")).to_have_count(1)
    page.page.get_by_role("button", name="Detach").click()
    page.until(lambda: len(page.orders) == 1, "the page detaches")
    cancel = page.page.get_by_role("button", name="Cancel all")
    cancel.click()
    sure = page.page.get_by_role("button", name="Really stop it?")
    expect(sure).to_have_attribute("data-armed", "")
    sure.click()
    page.until(lambda: len(page.orders) == 2, "the page cancels")
    assert [order.url.rpartition("/groups/")[2] for order in page.orders] == [
        f"{GROUP}/detach",
        f"{GROUP}/cancel",
    ]
    answers("all have ended", "ended")
    expect(page.page.get_by_text("all have ended")).to_have_count(1)
    expect(page.page.get_by_role("button")).to_have_count(0)


def test_a_card_says_what_is_wrong_and_goes_on_once_it_is_not(opened: Opened) -> None:
    """Whatever keeps a server from answering is on the card, in its words, until it does answer."""
    page = opened()
    page.card("r1", "at work", "active", "cancel")
    place = page.show("card", "one", "r1")
    place.get_by_text("at work").wait_for()
    for status, body, words in (
        (AWAY, "", "the server does not answer"),
        (403, {"error": "forbidden", "message": "who are you?"}, "who are you?"),
        (404, "<h1>no such page</h1>", "the server answered 404"),
        (429, {"error": "busy", "message": "not so fast"}, "not so fast"),
        (503, {"error": "gate_away", "message": "the gate is starting"}, "the gate is starting"),
    ):
        page.answers("/runs/r1/card", body, status)
        expect(place.get_by_role("status")).to_have_text(words)
        page.card("r1", f"back from {status}", "active", "cancel")
        place.get_by_text(f"back from {status}").wait_for()
        expect(place.get_by_role("status")).to_be_empty()


def test_a_run_that_was_deleted_takes_no_more_orders(opened: Opened) -> None:
    """A card whose run the gate does not know any more says so and has no buttons."""
    page = opened()
    page.card("r1", "at work", "active", "cancel")
    place = page.show("card", "one", "r1")
    place.get_by_role("button").wait_for()
    gone = {"error": "not_found", "message": "there is no run r1"}
    page.answers("/runs/r1/card", gone, 404)
    expect(place.get_by_role("status")).to_have_text("there is no run r1")
    expect(place.get_by_role("button")).to_have_count(0)


def test_a_question_that_is_lost_is_asked_again(opened: Opened) -> None:
    """A connection that has died without a word keeps no card from going on."""
    page = opened("", 1_000)
    page.card("r1", "at work", "active")
    place = page.show("card", "one", "r1")
    place.get_by_text("at work").wait_for()
    expect(place.get_by_role("status")).to_have_text("the server does not answer")
    page.until(lambda: page.questions["/runs/r1/card"] > 2, "the page asks again")


def test_what_nobody_can_see_asks_nothing(opened: Opened) -> None:
    """A card in a tab that is not in front waits with its questions until it is."""
    page = opened()
    for name in ("r1", "r2"):
        page.card(name, f"about {name}", "active")
    page.page.add_style_tag(content="#one { display: none }")
    hidden = page.show("card", "one", "r1")
    seen = page.show("card", "two", "r2")
    seen.get_by_text("about r2").wait_for()
    page.card("r2", "news of r2", "active")
    seen.get_by_text("news of r2").wait_for()
    assert page.questions["/runs/r1/card"] == 0
    page.page.add_style_tag(content="#one { display: block }")
    hidden.get_by_text("about r1").wait_for()


def test_many_cards_leave_the_browser_lines_for_the_notebook(opened: Opened) -> None:
    """However many cards a page has, two questions wait at the server; all cards stay live."""
    page = opened()
    runs = [f"r{number}" for number in range(8)]
    for name in runs:
        page.card(name, f"about {name}", "active")
    places = [page.show("card", name, name) for name in runs]
    for name, place in zip(runs, places, strict=True):
        expect(place).to_contain_text(f"about {name}")
    page.until(lambda: all(times > 1 for times in page.questions.values()), "each asks again")
    for name in runs:
        page.card(name, f"news of {name}", "active")
    for name, place in zip(runs, places, strict=True):
        expect(place).to_contain_text(f"news of {name}")
    assert page.most_held == 2


@pytest.mark.parametrize("kind", ["card", "panel"])
def test_a_press_right_after_another_answers_no_question(opened: Opened, kind: str) -> None:
    """A double click, or a key that is held, raises the question and never answers it; a press
    after a moment does, on the card and on the panel.
    """
    page = opened()
    page.card("r1", "at work", "active", "cancel")
    page.panel(snapshot("r1"), r1="active")
    place = page.show(kind, "one", "r1")
    cancel = place.get_by_role("button")
    cancel.wait_for()
    # All presses in one turn of the page's loop, as close as any can be.
    assert cancel.evaluate(PRESSED_30_TIMES) == ["Really stop it?", False]
    assert page.orders == []
    # This page's timers are fast: the answer is given as soon as it counts.
    cancel.evaluate(PRESSED_ONCE_ARMED)
    page.until(lambda: page.orders, "the page cancels")


def test_an_output_that_was_cleared_is_let_go(opened: Opened) -> None:
    """The page's memory does not keep a card that is shown nowhere any more."""
    page = opened()
    page.card("r1", "at work", "active", "cancel")
    page.show("card", "one", "r1").get_by_text("at work").wait_for()
    page.page.evaluate("globalThis.card = new WeakRef(document.getElementById('one'))")
    page.page.evaluate("document.getElementById('one').remove()")
    tools = page.page.context.new_cdp_session(page.page)

    def collected() -> bool:
        tools.send("HeapProfiler.collectGarbage")
        return bool(page.page.evaluate("globalThis.card.deref() === undefined"))

    until(collected, "the card is collected")


def test_a_reader_keeps_the_button_and_the_line_that_he_was_at(opened: Opened) -> None:
    """New answers leave the focus on its button, and an output that was scrolled where it was."""
    page = opened()
    output = '<div class="gpugate-output" style="height:80px;overflow:auto;display:flex;'
    output += f'flex-direction:column-reverse"><pre>{"<br>".join(map(str, range(90)))}'
    page.card("r1", f"{output}<br>{'a' * 200}", "queued", "detach", "cancel")
    place = page.show("card", "one", "r1")
    box = place.locator(".gpugate-output")
    box.evaluate("box => box.scrollTo(50, -300)")
    line = box.evaluate("box => box.scrollHeight - box.clientHeight + box.scrollTop")
    place.get_by_role("button", name="Cancel").focus()
    page.card("r1", f"{output}<br>{'a' * 200}<br>more<br>more", "active", "cancel")
    expect(box).to_contain_text("more")
    expect(place.get_by_role("button", name="Cancel")).to_be_focused()
    assert box.evaluate("box => box.scrollLeft") == 50
    kept = box.evaluate("box => box.scrollHeight - box.clientHeight + box.scrollTop")
    assert abs(kept - line) <= 1


def snapshot(*names: str, others: Sequence[str] = ()) -> str:
    """Make the panel of a gate at which these runs are at work, beside processes of others."""
    running = [{"run_id": name, "name": name, "owner": "ada", "phase": "running"} for name in names]
    held = {"held_bytes": 1 << 30, "resource": "ram", "pid": 7, "user": "eve"}
    external = [{**held, "command": command} for command in others]
    return tables.queue({"running": running, "external": external})["text/html"]


def test_the_panel_has_a_button_for_each_run_and_for_nothing_else(opened: Opened) -> None:
    """A button stops the run of its row; no process of others has one, however it is called."""
    page = opened()
    # The second one is a word that every object of the page's language knows.
    names = snapshot("r1", "r2", others=["r2", "constructor"])
    page.panel(names, r1="queued", r2="queued")
    place = page.show("panel", "gate")
    expect(place.get_by_role("button")).to_have_count(2)
    row = place.locator("tr", has_text="r2").first
    assert row.locator("td").all_inner_texts()[1:3] == ["r2", "r2"]
    head = place.locator("tr", has_text="used of reserved")
    assert head.locator("td").count() == row.locator("td").count()
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    row.get_by_role("button").click()
    page.until(lambda: page.orders, "the page cancels")
    assert page.orders[0].url.endswith("/runs/r2/cancel")


def test_what_went_wrong_with_an_order_stays_on_the_panel(opened: Opened) -> None:
    """A refused order is told in the server's words, which the next news does not take away."""
    page = opened()
    page.panel(snapshot("r1"), r1="queued")
    refusal = {"error": "journal", "message": "the gate cannot write its journal"}
    page.answers("/runs/r1/cancel", refusal, 503)
    place = page.show("panel", "gate")
    place.get_by_role("button").click()
    expect(place.get_by_role("status")).to_have_text("the gate cannot write its journal")
    page.page.mouse.move(0, 0)
    place.get_by_role("button").focus()
    page.panel(snapshot("r1", "r2"), r1="queued", r2="queued")
    expect(place.get_by_role("button")).to_have_count(2)
    expect(place.get_by_role("status")).to_have_text("the gate cannot write its journal")
    expect(place.get_by_role("button").first).to_be_focused()
