"""The tutorials, executed by two front ends, and how their saved forms read.

nbval executes them once more, as a third: it collects them from their own folder.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter

from notebooks.demo_server import PATIENCE_S, Places, ServedKernel, Server

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FIRST, WAITING, TERMINAL, WORKERS, SWEEP = TUTORIALS = (
    "01-first-run.ipynb",
    "02-why-is-it-waiting.ipynb",
    "03-from-the-terminal.ipynb",
    "04-two-workers.ipynb",
    "05-a-sweep.ipynb",
)
RUN_ID = r"\d{8}-\d{6}-[a-z]{5}"
_read: Any = nbformat.read

Executed = Mapping[str, Any]


def by_a_server(places: Places) -> Iterator[Executed]:
    """Execute them in kernels of a Jupyter server, as a person who runs all cells of each."""
    server = Server(places, {})
    done = {}
    for name in TUTORIALS:
        done[name] = _read(shutil.copy(NOTEBOOKS / name, places.notebooks), as_version=4)
        kernel: Any = ServedKernel(server, name)
        NotebookClient(done[name], km=kernel, timeout=int(PATIENCE_S)).execute(cleanup_kc=True)
    yield done
    server.stop()


def by_papermill(places: Places) -> Iterator[Executed]:
    """Execute them where there is no server: the first one starts the gate of all."""
    done = {}
    with mock.patch.dict(os.environ, places.environ({}), clear=True):
        for name in TUTORIALS:
            out = places.notebooks / name
            papermill.execute_notebook(
                NOTEBOOKS / name,
                out,
                cwd=places.notebooks,
                execution_timeout=int(PATIENCE_S),
                progress_bar=False,
            )
            done[name] = _read(out, as_version=4)
    assert (places.root / "runtime" / "gpugate" / "gate.log").exists()
    yield done


@pytest.fixture(scope="module", params=[by_a_server, by_papermill])
def executed(request: pytest.FixtureRequest) -> Iterator[Executed]:
    """The tutorials with what they have shown; nothing that they started is left afterwards."""
    places = Places()
    try:
        yield from request.param(places)
    finally:
        places.remove()


def outputs(notebook: Any, cell_id: str) -> list[Any]:
    """Return what one cell of a notebook has shown."""
    (cell,) = [cell for cell in notebook.cells if cell.id == cell_id]
    return list(cell.outputs)


def text(notebook: Any, cell_id: str) -> str:
    """Return all that a cell has shown, as text."""
    found = outputs(notebook, cell_id)
    assert found, f"{cell_id} has shown nothing"
    return "".join(
        str(output["text"] if "text" in output else output["data"]["text/plain"])
        for output in found
    ).replace("\r\n", "\n")


def megabytes(words: str, label: str) -> int:
    """Return the number of MB that an explanation gives under a label."""
    (found,) = re.findall(rf"^    {label} ([\d,]+) MB$", words, re.MULTILINE)
    return int(found.replace(",", ""))


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


# -- a first run ----------------------------------------------------------------------------------


def test_the_first_run_finds_what_it_says(executed: Executed) -> None:
    """One worker's values come back to the notebook, and two workers find the same ones."""
    notebook = executed[FIRST]
    assert re.fullmatch(r"accuracy 0\.9\d\d ± 0\.\d{3} over 6 splits\n", text(notebook, "result"))
    assert text(notebook, "same-result") == "[True, True]"


@pytest.mark.behaviour(17, 58, 59)
def test_the_first_run_shows_how_the_gate_learns(executed: Executed) -> None:
    """After each run the estimate rests on one more: measured first, then on a line through two."""
    lines = text(executed[FIRST], "estimate").splitlines()
    assert lines[0] == "digits"
    assert re.fullmatch(r"  RAM \d+ MB measured, from 1 run, plus \d+ MB safety margin", lines[1])
    assert re.fullmatch(r"total: RAM \d+ MB", lines[2])
    assert re.fullmatch(r"(up to )?\d+ workers?.* fits? now", lines[3])
    fitted = text(executed[FIRST], "estimate-four").splitlines()[1]
    assert re.fullmatch(
        r"  RAM \d+ MB fitted over workers 1, 2, from 2 runs, plus \d+ MB safety margin", fitted
    )


@pytest.mark.parametrize("cell_id", ["one-worker", "again"])
def test_each_gated_cell_leaves_one_card_that_any_page_can_show(
    executed: Executed, cell_id: str
) -> None:
    """The saved card is text and HTML, says the same in both, and needs no script or widget."""
    (card,) = outputs(executed[FIRST], cell_id)
    assert set(card["data"]) == {"text/plain", "text/html"}
    lines = card["data"]["text/plain"].splitlines()
    assert re.fullmatch(rf"digits · completed · {RUN_ID}", lines[0])
    assert "  episodes  6 of 6" in lines
    assert any(re.fullmatch(r"  peak +RAM: \d+ of [\d,]+ MB reserved", line) for line in lines)
    page = Words(card["data"]["text/html"])
    assert page.tags.isdisjoint({"script", "iframe", "link", "img", "onclick"})
    assert set(" ".join(lines).split()) <= set(page.words)


def test_the_queue_stays_readable_in_a_saved_notebook(executed: Executed) -> None:
    """The saved queue names the memory and says that nothing is left to run."""
    (shown,) = outputs(executed[FIRST], "queue")
    assert set(shown["data"]) == {"text/plain", "text/html"}
    assert re.search(r"^  RAM +[\d,]+ MB", shown["data"]["text/plain"], re.MULTILINE)
    for words in ("no run is active and none is waiting", "usable", "others"):
        assert words in shown["data"]["text/plain"]
        assert words in shown["data"]["text/html"]


@pytest.mark.parametrize("exporter", [HTMLExporter, MarkdownExporter])
def test_a_converted_notebook_still_tells_the_story(executed: Executed, exporter: Any) -> None:
    """What nbconvert makes of the executed tutorial says what the cards and the estimates say."""
    page, _ = exporter().from_notebook_node(executed[FIRST])
    words = " ".join(Words(page).words)
    for told in (
        "6 of 6",
        "completed",
        "reserved",
        "measured, from 1 run",
        "fitted over workers 1, 2",
    ):
        assert told in words


# -- why is it waiting? ---------------------------------------------------------------------------


@pytest.mark.behaviour(22)
def test_a_run_behind_a_lock_says_so_wherever_one_looks(executed: Executed) -> None:
    """Card, handle and queue name the lock; once it is given back, the same run starts."""
    notebook = executed[WAITING]
    assert text(notebook, "lock").startswith("the machine is locked: for 10 min")
    reason = "this machine is locked for interactive use by"
    card = text(notebook, "patient")
    assert re.match(rf"patient · waiting, number 1 in the queue · {RUN_ID}\n", card)
    assert re.search(rf"^  waits +{reason}", card, re.MULTILINE)
    assert f"\nbecause {reason}" in text(notebook, "explain")
    assert re.search(rf"^  1  {RUN_ID}  patient .* {reason}", text(notebook, "queue"), re.MULTILINE)
    assert text(notebook, "release") == "the machine is no longer locked"
    ended = text(notebook, "patient-ends")
    assert ended.splitlines()[0].startswith("patient · completed · ")
    assert "    | at last" in ended.splitlines()
    assert re.findall(RUN_ID, ended)[0] == re.findall(RUN_ID, card)[0]


def test_waiting_ends_by_a_limit_or_by_a_change_of_mind(executed: Executed) -> None:
    """A run that did not start in time raises as expired; a cancelled one had not started."""
    expired = text(executed[WAITING], "expired")
    last = "within --max-wait; its last reason to wait: "
    assert re.match(rf"impatient \({RUN_ID}\) expired: it did not start {last}", expired)
    cancelled = text(executed[WAITING], "cancel")
    assert re.fullmatch(rf"{RUN_ID} is cancelled: it had not started", cancelled)


def test_a_run_that_waits_for_its_own_notebook_is_told_so_first(executed: Executed) -> None:
    """The notebook comes before the arithmetic, holds what is short, and ends the wait by `del`."""
    notebook = executed[WAITING]
    assert "  waits     this notebook itself holds" in text(notebook, "too-big")
    told = text(notebook, "own-memory")
    first, second = re.findall(r"^because (.*)$", told, re.MULTILINE)
    assert first.startswith("this notebook itself holds")
    assert re.match(r"needs [\d,]+ MB of RAM; ", second)
    short = megabytes(told, "short")
    assert 0 < short <= megabytes(told, "held")
    # A need is rounded up, and what there is down.
    assert 0 <= megabytes(told, "need") - megabytes(told, "usable") - short <= 2
    ended = text(notebook, "free").splitlines()
    assert ended[0].startswith("too-big · completed · ")
    assert "    | there was enough memory after all" in ended


# -- from the terminal ----------------------------------------------------------------------------


def test_a_command_prints_its_result_and_gives_its_exit_code(executed: Executed) -> None:
    """A script that completes gives 0 after its output, one that fails its own code."""
    notebook = executed[TERMINAL]
    lines = text(notebook, "run").splitlines()
    assert any(re.fullmatch(r"seed 1: accuracy 0\.9\d\d", line) for line in lines)
    assert lines[-1].endswith("digits-script · completed")
    assert text(notebook, "exit-code") == "0"
    failed = text(notebook, "failing").splitlines()
    assert "evaluate.py: error: argument --seed: invalid int value: 'one'" in failed
    assert failed[-2].endswith("digits-typo · failed (exit 2)")
    assert failed[-1] == "2"


def test_a_command_is_measured_as_a_cell_is(executed: Executed) -> None:
    """After its one run the estimate in the terminal is a measurement."""
    estimate = text(executed[TERMINAL], "estimate").splitlines()
    assert estimate[0] == "digits-script"
    assert re.fullmatch(
        r"  RAM \d+ MB measured, from 1 run, plus \d+ MB safety margin", estimate[1]
    )


def test_terminal_and_notebook_see_the_same_run(executed: Executed) -> None:
    """The run that a terminal has queued is on a card of the notebook, and cancelled for both."""
    notebook = executed[TERMINAL]
    (run_id,) = re.findall(rf"^  ({RUN_ID})  long ", text(notebook, "terminal-queue"), re.MULTILINE)
    card = text(notebook, "handle").splitlines()[0]
    assert card.startswith("long · ")
    assert card.endswith(f" · {run_id}")
    assert text(notebook, "cancel").startswith(f"{run_id} is cancelled: stopped ")
    assert text(notebook, "status") == "'cancelled'"
    assert re.search(r"RAM is measured: [\d,]+ MB free of", text(notebook, "doctor"))


# -- two workers ----------------------------------------------------------------------------------


def test_two_workers_share_what_one_has_done(executed: Executed) -> None:
    """Each has half of the episodes, outputs are lists by worker, and the scores are the same."""
    notebook = executed[WORKERS]
    alone = text(notebook, "alone-result").splitlines()
    assert alone[0] == "worker 0 of 1 had 8 episodes"
    assert re.fullmatch(r"\[(0\.9\d*(, )?){8}\]", alone[1])
    shares, same = text(notebook, "together-result").splitlines()
    assert shares == "['worker 0 of 2 had 4 episodes', 'worker 1 of 2 had 4 episodes']"
    assert same == "[True, True]"
    fitted = text(notebook, "estimate").splitlines()[1]
    assert re.fullmatch(
        r"  RAM \d+ MB fitted over workers 1, 2, from 2 runs, plus \d+ MB safety margin", fitted
    )


def test_a_worker_that_fails_takes_its_run_along(executed: Executed) -> None:
    """The exception is the worker's own, and what was kept before it is on disk."""
    first, second = text(executed[WORKERS], "caught").splitlines()
    assert re.fullmatch(rf"fragile \({RUN_ID}\) failed .*: ValueError: image 5 is damaged", first)
    assert second == "failed | ValueError | image 5 is damaged"
    kept = set(re.findall(r"\d", text(executed[WORKERS], "kept")))
    assert {"1", "3"} <= kept
    assert not {"5", "7"} & kept


# -- a sweep --------------------------------------------------------------------------------------


def test_a_sweep_is_one_table_and_teaches_the_values_between(executed: Executed) -> None:
    """Outputs are lists in the order of the sweep; a value that nobody ran starts as fitted."""
    notebook = executed[SWEEP]
    assert text(notebook, "sizes") == "[80, 160, 320]\n"
    assert "3 completed" in text(notebook, "sweep")
    assert "fitted over batch 8, 16, 32" in text(notebook, "between")


def test_a_setting_that_fails_is_named_and_the_others_have_results(executed: Executed) -> None:
    """One exception names it, the table has all three, and the explanation has its traceback."""
    notebook = executed[SWEEP]
    assert "batch=33 (ValueError: batch 33 is odd)" in text(notebook, "failed")
    table = text(notebook, "table")
    assert table.count("completed") == 2
    assert table.count("'failed'") + table.count(" failed ") == 1
    assert "raise ValueError" in text(notebook, "why")


# -- the files ------------------------------------------------------------------------------------


def test_the_places_of_the_tutorials_are_for_them_alone() -> None:
    """While nbval runs a notebook with a gate of its own, the tests beside it keep their places."""
    assert "gpugate-demo-" not in os.environ.get("XDG_RUNTIME_DIR", "")


def test_tutorials_are_kept_without_what_they_showed() -> None:
    """Outputs belong to whoever runs a tutorial: the kept ones have none, and cells with names."""
    assert sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")) == list(TUTORIALS)
    for name in TUTORIALS:
        notebook = _read(NOTEBOOKS / name, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [c.id for c in code if c.outputs or c.execution_count is not None] == []
        assert [c.id for c in notebook.cells if re.fullmatch(r"[0-9a-f]{8}", c.id)] == []


def test_links_of_the_tutorials_lead_somewhere() -> None:
    """Each tutorial links to the next one or to a page, and every link finds its file."""
    for name in TUTORIALS:
        notebook = _read(NOTEBOOKS / name, as_version=4)
        told = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        links = re.findall(r"\]\(([^)#\s]+)", told)
        assert links
        assert [link for link in links if not (NOTEBOOKS / link).exists()] == []
