"""What a run displays and prints, as its notebook shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.notebook.replay import Replay

CLEAR = "\x1b[H\x1b[2J"  # as a supervisor writes it into the output of a run with one worker


class Run:
    """A run's files, a cell that follows them, and its page."""

    def __init__(self, place: Path) -> None:
        self.attempt = place / "20261129-143600-abcde" / "attempts" / "1"
        self.attempt.mkdir(parents=True)
        self.state = {"directory": str(self.attempt.parents[1]), "attempt": 1, "status": "active"}
        self.updates = 0
        self._number = 0
        self._places: dict[str, str] = {}
        self.replay = Replay(self)

    def publish(self, data: Any, transient: Any, *, update: bool, **_: Any) -> None:
        """Stand in for the notebook's page."""
        name = transient["display_id"]
        assert update == (name in self._places)
        self.updates += 1
        self._places[name] = data["text/plain"]

    def prints(self, text: str) -> None:
        with (self.attempt / "output.log").open("a", encoding="utf-8") as log:
            log.write(text)

    def displays(self, text: str = "", name: str = "", **fields: Any) -> None:
        """Add an event as a supervisor does."""
        self._number += 1
        log = self.attempt / "output.log"
        at = log.stat().st_size if log.exists() else 0
        transient = {"display_id": name} if name else {}
        event = {"event": "display", "data": {"text/plain": text}, "transient": transient}
        told = {"n": self._number, "worker": 0, "alone": True, "at": at}
        with (self.attempt / "display.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**event, **told, **fields}) + "\n")

    def page(self) -> list[str]:
        """Let the cell catch up; return what is below its card, without the places left empty."""
        self.replay.catch_up(self.state)
        return [text for text in self._places.values() if text]

    def places(self) -> int:
        """How many places there are, empty ones included."""
        return len(self._places)

    def card(self) -> str:
        """Return the output that the card shows."""
        whole = (self.attempt / "output.log").read_text(encoding="utf-8")
        state = self.replay.on_card({**self.state, "output_tail": whole})
        return str(state["output_tail"])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Make a run, and follow it to its end."""
    run = Run(tmp_path)
    yield run
    run.replay.close()


@pytest.mark.parametrize("look", [lambda run: run.page(), lambda _run: None])
def test_prints_and_displays_keep_their_order(run: Run, look: Callable[[Run], Any]) -> None:
    """What came first is on the card, and the rest is below it in its order, however often the
    cell looks.
    """
    steps: list[Callable[[], None]] = [
        lambda: run.prints("one\n"),
        lambda: run.displays("figure 1"),
        lambda: run.prints("two\n"),
        lambda: run.prints("more\n"),
        lambda: run.displays("figure 2"),
        lambda: run.displays("figure 3"),
        lambda: run.prints("\r 10%\r 90%"),
    ]
    for step in steps:
        step()
        look(run)
    assert run.page() == ["figure 1", "two\nmore", "figure 2", "figure 3", " 90%"]
    assert run.card() == "one\n"


def test_without_a_display_all_output_is_on_the_card(run: Run) -> None:
    """A run that only prints has nothing below its card."""
    run.prints(f"one\n{CLEAR}two\n")
    run.displays(clear=True, at=4)
    assert run.page() == []
    assert run.card() == f"one\n{CLEAR}two\n"


@pytest.mark.parametrize("wait", [False, True])
def test_a_clear_takes_prints_and_displays_off(run: Run, wait: bool) -> None:
    """A loop that clears and shows anew uses the same places again; a clear that waits leaves what
    is there until anything comes.
    """
    before: list[str] = []
    for epoch in range(5):
        run.displays(clear=True, wait=wait)
        assert run.page() == (before if wait else [])
        run.prints(CLEAR)
        run.prints(f"epoch {epoch}\n" if epoch % 2 else "")
        run.displays(f"figure {epoch}")
        run.prints("after\n")
        between = [f"epoch {epoch}"] if epoch % 2 else []
        before = run.page()
        assert before == [*between, f"figure {epoch}", "after"]
    assert "epoch" not in run.card()
    assert run.places() <= 3


def test_a_clear_that_waits_is_done_by_a_print_too(run: Run) -> None:
    """Text after a clear that waits takes the old displays off."""
    run.displays("old")
    run.displays(clear=True, wait=True)
    assert run.page() == ["old"]
    run.prints(f"{CLEAR}new\n")
    assert run.page() == ["new"]


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("look", [lambda run: run.page(), lambda _run: None])
def test_text_between_a_clear_and_the_first_display_stays(
    run: Run, look: Callable[[Run], Any], *, wait: bool
) -> None:
    """A clear takes off what came before it, and nothing that was printed after it."""
    steps: list[Callable[[], None]] = [
        lambda: run.prints("old\n"),
        lambda: run.displays(clear=True, wait=wait),
        lambda: run.prints(f"{CLEAR}new\n"),
        lambda: run.displays("figure"),
        lambda: run.prints("last\n"),
    ]
    for step in steps:
        step()
        look(run)
    assert run.page() == ["figure", "last"]
    assert run.card() == f"old\n{CLEAR}new\n"


def test_updates_change_their_display_where_it_stands(run: Run) -> None:
    """A display is renewed in its place, wherever it is shown; one that was cleared is gone."""
    run.displays("bar 0", "bar")
    run.displays("figure")
    run.displays("bar 0", "bar")
    for step in range(1, 4):
        run.displays(f"bar {step}", "bar", update=True)
    run.displays("nowhere", "never shown", update=True)
    assert run.page() == ["bar 3", "figure", "bar 3"]
    run.displays(clear=True)
    run.displays("bar 4", "bar", update=True)
    assert run.page() == []


def test_many_updates_at_once_are_shown_as_one(run: Run) -> None:
    """A page is spared what nobody could have seen."""
    run.displays("bar", "bar")
    run.page()
    before = run.updates
    for step in range(500):
        run.displays(f"bar {step}", "bar", update=True)
        run.displays(clear=True, wait=True)
        run.displays("bar", "bar")
    assert run.page() == ["bar"]
    assert run.updates - before <= 2


def test_a_file_that_was_written_anew_is_read_on_where_it_was(run: Run) -> None:
    """What was seen is not shown again, what was not is; a gap in between is said, and an update
    that has lost its display is shown all the same.
    """
    run.displays("seen")
    assert run.page() == ["seen"]
    file = run.attempt / "display.jsonl"
    whole = file.read_bytes()
    for number in range(3):
        run.displays(f"figure {number}")
    lines = file.read_bytes().splitlines(keepends=True)
    fresh = run.attempt / "new"
    fresh.write_bytes(whole + lines[2])
    fresh.replace(file)
    assert run.page() == ["seen", "figure 1"]
    run.displays("table", "lost", update=True, n=9)
    last = file.read_bytes().splitlines(keepends=True)[-1]
    fresh.write_bytes(b'{"event": "gone", "n": 8, "count": 7}\n' + last)
    fresh.replace(file)
    assert run.page() == [
        "seen",
        "figure 1",
        "[up to 7 earlier displays were too fast to be shown]",
        "table",
    ]


def test_a_widgets_view_is_left_out(run: Run) -> None:
    """The page of this kernel has no model of the run's: the other forms are shown."""
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}}
    shown: list[dict[str, Any]] = []
    replay = Replay(type("Page", (), {"publish": lambda _self, data, **_: shown.append(data)})())
    run.displays(data={**view, "text/plain": "50%"})
    run.displays(data=view)
    replay.catch_up(run.state)
    replay.close()
    assert shown == [{"text/plain": "50%"}, {"text/plain": "[a widget of the run]"}]


def test_only_text_that_grows_is_left_to_the_cards_script(run: Run) -> None:
    """Where the page's script keeps growing text up to date, the cell does not rewrite it; once it
    ends, the cell shows it whole, and the script has no hold on it.
    """
    run.replay = Replay(run, scripted=True)
    run.displays("figure")
    run.prints("one\n")
    assert run.page() == ["figure", "one"]
    assert 'data-from="0"' in run.replay._text_shown["text/html"]
    run.prints("two\n")
    assert run.page() == ["figure", "one"]
    run.displays("next")
    run.prints("three\n")
    assert run.page() == ["figure", "one\ntwo", "next", "three"]
    assert 'data-from="8"' in run.replay._text_shown["text/html"]
    run.prints("four\n")
    run.state = {**run.state, "status": "ended"}
    assert run.page() == ["figure", "one\ntwo", "next", "three\nfour"]
    assert "data-from" not in run.replay._text_shown["text/html"]


def test_the_text_between_displays_is_bounded(run: Run) -> None:
    """Of a long text its end is shown, with a line that names the call that gives all of it."""
    run.displays("figure")
    run.prints("".join(f"line {number}\n" for number in range(100_000)))
    figure, text = run.page()
    assert figure == "figure"
    assert text.endswith("line 99999")
    assert len(text) < 100_000
    html = run.replay._text_shown["text/html"]
    assert (
        "[earlier lines: jupyter_gpugate.get(&quot;20261129-143600-abcde&quot;).output()]" in html
    )


def test_a_log_that_lost_its_beginning_is_read_by_the_same_bytes(run: Run) -> None:
    """Positions count what is gone as well."""
    run.prints("one\n")
    run.displays("figure")
    run.prints("".join(f"line {number}\n" for number in range(1_000)))
    log = run.attempt / "output.log"
    kept = log.read_bytes()[-105:]
    gone = log.stat().st_size - len(kept)
    log.write_bytes(b"[gpugate: the first %d bytes are gone]\n" % gone + kept)
    _, text = run.page()
    assert text.splitlines()[1:] == kept.decode().splitlines()[1:]
    assert "earlier lines" in text


def test_an_attempt_that_begins_anew_takes_the_places_of_the_one_before(run: Run) -> None:
    """What an attempt that failed has shown gives way to what the next one shows."""
    run.prints("one\n")
    run.displays("first try")
    run.prints("two\n")
    run.page()
    run.attempt = run.attempt.with_name("2")
    run.attempt.mkdir()
    run.state = {**run.state, "attempt": 2}
    run.prints("again\n")
    run.displays("second try")
    assert run.page() == ["second try"]
    assert run.card() == "again\n"


def test_torn_and_foreign_lines_stop_nothing(run: Run) -> None:
    """What is no event of a display is passed over, and a line that is being written waits."""
    file = run.attempt / "display.jsonl"
    file.write_bytes(b'no json\n[1]\n{"event": "warning"}\n{"event": "display"}\n')
    run.displays("figure")
    with file.open("ab") as torn:
        torn.write(b'{"event": "disp')
    assert run.page() == ["figure"]
