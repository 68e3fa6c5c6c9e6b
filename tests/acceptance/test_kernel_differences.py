"""What a cell does in the notebook it does in a run, or the card says in one sentence why not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.controlled_runs import processes_of
from tests.kit.real_server import Served
from tests.kit.user_notebook import UserNotebook


@pytest.fixture(scope="module")
def notebook(shared_server: Served) -> Iterator[UserNotebook]:
    """One notebook for all tests here: no run needs what an earlier one did."""
    opened = UserNotebook(shared_server)
    yield opened
    opened.close()


def newest(server: Served, name: str) -> str:
    """The id of the newest run of this name."""
    return str(server.ask("GET", f"/runs?name={name}").json["runs"][0]["run_id"])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_cell_may_set_the_start_method(notebook: UserNotebook, method: str) -> None:
    """A pool finds its function, and the rest of the cell is executed once."""
    notebook.run(f"""%%gated_eval started --gpus 0 --output squares,times
import multiprocessing, os
multiprocessing.set_start_method({method!r})
with open("times-{method}", "a") as log:
    log.write("once ")

def square(x):
    return x * x

with multiprocessing.Pool(2) as pool:
    squares = pool.map(square, range(4))
times = open("times-{method}").read()
""")
    assert notebook.value("squares") == [0, 1, 4, 9]
    assert notebook.value("times") == "once "


SERVES = """
import http.server, multiprocessing, threading, time
site = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=site.serve_forever, name="dashboard").start()
multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), name="sleeper").start()
answer = 42
"""


def test_a_run_ends_with_its_cell_whatever_that_left(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """The notebook has its outputs, nothing is left, and the card names what was stopped."""
    shown = notebook.run(f"%%gated_eval serves --gpus 0 --output answer{SERVES}")
    assert notebook.value("answer") == 42
    assert "thread `dashboard`" in shown.text
    assert "process `sleeper`" in shown.text
    assert processes_of(newest(shared_server, "serves")) == []


def test_a_time_limit_does_not_fail_a_cell_that_has_ended(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """A limit that comes while the run waits for a busy thread ends the run, as completed."""
    cell = notebook.start("""%%gated_eval late --gpus 0 --time-limit 8s --output answer
import threading
def spin():
    while True:
        sum(range(1000))
threading.Thread(target=spin, name="spins").start()
answer = 42
""")
    shown = notebook.finish(cell)
    assert shown.error is None, shown.traceback
    assert notebook.value("answer") == 42
    run = shared_server.run(newest(shared_server, "late"))
    assert run["end"] == "completed"


def test_prints_and_figures_are_those_of_the_notebook(notebook: UserNotebook) -> None:
    """Text is UTF-8 whatever the notebook's environment says; figures need no magic."""
    notebook.run("import os; os.environ['PYTHONIOENCODING'] = 'ascii'")
    for line in ("", 'get_ipython().run_line_magic("matplotlib", "inline")\n'):
        shown = notebook.run(
            f"%%gated_eval prints --gpus 0\n{line}import matplotlib.pyplot as plt\n"
            "print('✓ 5 µs')\nplt.plot([1, 2]);"
        )
        assert "✓ 5 µs" in shown.displays[0]
        assert shown.displays[1:] == ["<Figure size 640x480 with 1 Axes>"]
    notebook.run("del os.environ['PYTHONIOENCODING']")


def test_a_question_is_answered_by_an_error_that_says_why(notebook: UserNotebook) -> None:
    """A cell that asks for input learns that a run has no keyboard, in its own traceback."""
    text = notebook.fails("%%gated_eval asks --gpus 0\nname = input('Name? ')").traceback
    assert "----> 2 name = input('Name? ')" in text
    assert "EOFError: runs have no keyboard to answer `Name?`" in text


def test_what_only_looks_like_a_mistake_is_told_with_its_remedy(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """A comment above the magic, and a parameter used as a variable, are refused at the submit."""
    told = notebook.refused("# my run\n%%gated_eval misplaced --gpus 0\n1")
    assert told.startswith("`%%gated_eval misplaced --gpus 0` must be the first line of its cell")
    told = notebook.refused("%%gated_eval misplaced --gpus 0 --set lr=0.1\nprint(lr)")
    assert told == '`lr` is a parameter of the run: write `params["lr"]` in the cell'
    assert shared_server.ask("GET", "/runs?name=misplaced").json["runs"] == []
