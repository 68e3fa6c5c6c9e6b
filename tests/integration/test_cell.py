"""Workers of a cell, run as a supervisor runs them."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.cell_process import CellRun, other_interpreters, python_path

MB = 1 << 20


@pytest.fixture
def cell(tmp_path: Path) -> CellRun:
    """An empty cell's run; a test writes the source."""
    return CellRun(tmp_path, "")


@pytest.fixture(params=["kernel's", *other_interpreters()], ids=os.path.basename)
def any_python(request: pytest.FixtureRequest, cell: CellRun) -> CellRun:
    """Yield a run under each CPython of this machine; all but the first are bare."""
    if request.param != "kernel's":
        cell.interpreter = request.param
    return cell


# -- being a cell --------------------------------------------------------------------------------


def test_a_cell_works_under_every_python_with_nothing_installed(any_python: CellRun) -> None:
    """Episodes, inputs, outputs, displays and tracebacks need nothing but the interpreter."""
    any_python.source = """
        # %%gated_eval
        import sys
        assert sys.argv == [__file__], sys.argv
        scale = params["scale"]
        for e in episodes:
            e.keep(e.index * scale + given["start"])
        result = (worker, workers, episodes.values)
        result
        """
    any_python.stage("given", {"start": 10})
    ended = any_python.run(
        episodes=3, parameters={"scale": "2"}, inputs=["given"], outputs=["result"]
    )
    assert ended.code == 0, ended.stderr
    assert any_python.result("result") == (0, 1, [10, 12, 14])
    assert ended.plain == ["(0, 1, [10, 12, 14])"]
    assert [e["done"] for e in ended.of("episode")] == [1, 2, 3]
    assert ended.of("result") == [{"event": "result", "outputs": ["result"]}]
    assert ended.of("warning") == []


def test_an_error_is_told_with_the_cells_own_lines_under_every_python(any_python: CellRun) -> None:
    """What raises is reported by name, words and lines of the cell, without the worker's frames."""
    any_python.source = """
        def fail(x):
            return 1 / x


        fail(0)
        """
    ended = any_python.run()
    text = "\n".join(ended.error["traceback"])
    assert ended.code == 1
    assert (ended.error["ename"], ended.error["evalue"]) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert "1 / x" in _without_colours(text)
    assert "cell.py" in text
    assert "worker.py" not in text + ended.stderr
    assert 'cell.py", line 6' in ended.stderr


def test_the_path_is_the_notebooks_to_the_letter(cell: CellRun) -> None:
    """``sys.path`` is the given list: nothing added by the start, the shell or the environment."""
    path = ["", "/nowhere", *sys.path[1:]]
    cell.path = path
    cell.environment = {"VIRTUAL_ENV": "/nowhere/venv", "PYTHONPATH": "/nowhere/else"}
    cell.source = "import sys\nseen = list(sys.path)"
    assert cell.run(outputs=["seen"]).code == 0
    assert cell.result("seen") == path


def test_without_a_path_a_cell_has_its_interpreters_own(cell: CellRun) -> None:
    """A run that names no path looks in its working folder, then where its Python looks."""
    (cell.directory / "beside.py").write_text("here = 1")
    cell.source = "import sys, beside\nseen = list(sys.path)"
    ended = cell.run(path=None, outputs=["seen"])
    assert ended.code == 0, ended.stderr
    assert cell.result("seen") == ["", *python_path(cell.interpreter)]


def test_a_cell_is_shown_like_a_cell(cell: CellRun) -> None:
    """Displays keep their kinds, their order among themselves and their ids."""
    cell.source = """
        from IPython.display import HTML, clear_output, display
        handle = display(HTML("<b>one</b>"), display_id="h")
        handle.update(HTML("<b>two</b>"))
        clear_output(wait=True)
        display({"image/png": b"\\x89PNG"}, raw=True)
        get_ipython().events.register("post_execute", lambda: display("figure"))
        HTML("<i>last</i>")
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    first, second, cleared, picture, last, figure = ended.of("display")
    assert first["data"]["text/html"] == "<b>one</b>"
    assert first["transient"] == {"display_id": "h"}
    assert (second["update"], second["transient"]) == (True, {"display_id": "h"})
    assert (cleared["clear"], cleared["wait"]) == (True, True)
    assert picture["data"]["image/png"] == "iVBORw=="
    assert (last["result"], last["data"]["text/html"]) == (True, "<i>last</i>")
    assert figure["data"]["text/plain"] == "'figure'"
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("40 + 2", ["42"]),
        ("40 + 2;", []),
        ("40 + 2 ;  # said nothing", []),
        ("'; '", ["'; '"]),
        ("None", []),
        ("x = 1", []),
    ],
)
def test_the_last_expression_is_shown_unless_it_ends_in_a_semicolon(
    cell: CellRun, last: str, shown: list[str]
) -> None:
    """The last expression is shown as a notebook shows it."""
    cell.source = f"1 + 1\n{last}\n"
    assert cell.run().plain == shown


def test_await_works_at_the_top_of_a_cell(any_python: CellRun) -> None:
    """Top-level await, async loops and an awaited last expression work in one event loop."""
    any_python.source = """
        import asyncio
        loop = asyncio.get_running_loop()

        async def twice(x):
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
            return 2 * x

        y = await twice(4)
        await twice(y)
        """
    assert any_python.run().plain == ["16"]


def test_a_cell_without_await_may_start_its_own_event_loop(cell: CellRun) -> None:
    """``asyncio.run`` works in a cell that does not await."""
    cell.source = "import asyncio\nasync def f(): return 7\nasyncio.run(f())"
    assert cell.run().plain == ["7"]


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        *(("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1)),
        *(("exit()", 0), ("quit()", 0)),
    ],
)
def test_the_cells_own_exit_code_stands(cell: CellRun, leave: str, code: int) -> None:
    """``sys.exit`` ends a cell with its code, as do ``exit`` and ``quit``; code 0 is a proper end,
    with outputs.
    """
    cell.source = f"import sys\nx = 1\n{leave}"
    ended = cell.run(outputs=["x"])
    assert ended.code == code
    assert ended.of("error") == []
    assert cell.result_path("x").exists() == (code == 0)


def test_a_syntax_error_is_told_with_its_line(cell: CellRun) -> None:
    """Source that is no Python ends the run with an error that shows the line."""
    cell.source = "x = 1\ny = = 2\n"
    ended = cell.run()
    assert ended.code == 1
    assert ended.error["ename"] == "SyntaxError"
    assert "y = = 2" in "\n".join(ended.error["traceback"])


def test_an_error_that_cannot_be_printed_is_still_told(cell: CellRun) -> None:
    """A class whose ``__str__`` fails, and a group of errors, are reported all the same."""
    cell.source = """
        class Broken(Exception):
            def __str__(self):
                raise RuntimeError("no words")
        raise Broken
        """
    ended = cell.run()
    assert (ended.code, ended.error["ename"]) == (1, "Broken")
    cell.source = 'raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])'
    ended = cell.run()
    assert (ended.code, ended.error["ename"]) == (1, "ExceptionGroup")
    assert "ValueError: a" in "\n".join(ended.error["traceback"])


def test_the_pipe_of_events_is_not_inherited_by_what_the_cell_starts(cell: CellRun) -> None:
    """A process that outlives the cell does not keep the events open, and cannot write them."""
    cell.source = """
        import os, subprocess, sys
        assert "GPUGATE_EVENTS_FD" not in os.environ
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        sleeper = [sys.executable, "-c", "import time; time.sleep(200)"]
        left = subprocess.Popen(sleeper, close_fds=False, **quiet)
        print(left.pid)
        left.returncode = 0  # on purpose: nobody waits for it
        if os.fork() == 0:
            display("in a fork")
            os._exit(0)
        os.wait();
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    left = int(ended.stdout)
    os.kill(left, signal.SIGKILL)  # it is still there, and the events have come to their end
    assert ended.of("display") == []


# -- __main__ ------------------------------------------------------------------------------------

PROCESSES = """
    import multiprocessing
    import pickle
    from dataclasses import dataclass

    @dataclass
    class Point:
        x: int

    FACTOR = params["factor"]

    def twice(point):
        return Point(point.x * FACTOR + offset)

    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    context = multiprocessing.get_context("{method}")
    {early}
    for e in episodes:
        with context.Pool(2) as pool:
            e.keep([point.x for point in pool.map(twice, [Point(1), Point(2)])])
    result = episodes.values
    """


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_see_the_cells_own_classes(any_python: CellRun, method: str) -> None:
    """A pool of any start method finds classes, functions, inputs and parameters of the cell."""
    any_python.source = PROCESSES.format(method=method, early="")
    any_python.stage("offset", 100)
    ended = any_python.run(
        episodes=2, parameters={"factor": "3"}, inputs=["offset"], outputs=["result"]
    )
    assert ended.code == 0, ended.stderr
    assert ended.stderr == ""
    assert any_python.result("result") == [[103, 106], [103, 106]]
    assert [e["done"] for e in ended.of("episode")] == [1, 2]


def test_a_pool_may_stand_unguarded_before_the_loop(cell: CellRun) -> None:
    """A started process runs the cell only up to where it would start processes itself."""
    early = "other = context.Pool(1)\n    print('started', other.map(twice, [Point(5)]))"
    cell.source = PROCESSES.format(method="spawn", early=early)
    cell.stage("offset", 0)
    ended = cell.run(episodes=1, parameters={"factor": "3"}, inputs=["offset"], outputs=["result"])
    assert ended.code == 0, ended.stderr
    assert ended.stdout.splitlines() == ["started [Point(x=15)]"]
    assert ended.stderr == ""
    assert cell.result("result") == [[3, 6]]


def test_a_started_process_may_start_another(cell: CellRun) -> None:
    """The children of a child find the cell's functions too."""
    cell.source = """
        import multiprocessing

        def inner(x):
            return x + 1

        def outer(x):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return pool.apply(inner, (x,))

        for e in episodes:
            context = multiprocessing.get_context("spawn")
            process = context.Process(target=outer, args=(1,))
            process.start()
            process.join()
            e.keep(process.exitcode)
        codes = episodes.values
        """
    ended = cell.run(outputs=["codes"])
    assert ended.code == 0, ended.stderr
    assert cell.result("codes") == [0]


def test_a_data_loader_works_on_a_dataset_of_the_cell(cell: CellRun) -> None:
    """Torch's own worker processes load a dataset class that only the cell has."""
    cell.source = """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return torch.tensor(i * i)

        for e in episodes:
            method = ["fork", "spawn"][e.index]
            loader = DataLoader(Squares(), num_workers=1, multiprocessing_context=method)
            e.keep(sum(int(x) for x in loader))
        result = episodes.values
        """
    ended = cell.run(episodes=2, outputs=["result"])
    assert ended.code == 0, ended.stderr
    assert cell.result("result") == [14, 14]


# -- episodes ------------------------------------------------------------------------------------

KEEPING = """
    import os, signal
    for e in episodes:
        print("episode", e.index)
        if os.environ.get("DIES_AT") == str(e.index):
            os.kill(os.getpid(), signal.SIGKILL)
        e.keep({"index": e.index, "squares": [e.index ** 2]})
    values = episodes.values
    """


def test_a_kept_value_is_on_the_disk_before_the_next_episode_begins(cell: CellRun) -> None:
    """When an episode is told as finished, its value's file is there whole and no draft is left."""
    cell.source = KEEPING
    worker = cell.start(episodes=3)
    for index in range(3):
        event = worker.next_event()
        assert event == {
            "event": "episode",
            "worker": 0,
            "index": index,
            "kept": True,
            "done": index + 1,
        }
        names = {p.name for p in (cell.directory / "attempts/1/episodes").iterdir()}
        assert f"{index}.pickle" in names
    assert worker.ended().code == 0
    assert sorted(p.name for p in (cell.directory / "attempts/1/episodes").iterdir()) == [
        "0.pickle",
        "1.pickle",
        "2.pickle",
        "ended.0",
    ]


def test_a_resumed_run_goes_on_and_ends_as_if_undisturbed(any_python: CellRun) -> None:
    """Kept episodes are not run again, over two interruptions, and the values are the same."""
    any_python.source = KEEPING
    facts: dict[str, Any] = {"episodes": 5, "outputs": ["values"]}
    any_python.run(**facts)
    undisturbed = any_python.result("values")
    seen = []
    before = None
    for dies_at in ("2", "4", ""):
        any_python.environment = {"DIES_AT": dies_at}
        ended = any_python.run(resume_from=before, **facts)
        assert ended.code == (-signal.SIGKILL if dies_at else 0), ended.stderr
        seen += ended.stdout.splitlines()
        before = f"attempts/{any_python.number}"
    assert any_python.result("values") == undisturbed
    assert seen == [f"episode {i}" for i in (0, 1, 2, 2, 3, 4, 4)]
    assert ended.of("episode")[-1]["done"] == 5
    assert ended.of("warning") == []


def test_a_run_whose_episodes_were_all_kept_ends_at_once(cell: CellRun) -> None:
    """A resumed run with nothing left to do runs no episode and gives all values."""
    cell.source = KEEPING
    cell.run(episodes=3)
    ended = cell.run(episodes=3, resume_from="attempts/1", outputs=["values"])
    assert ended.stdout == ""
    assert (ended.code, ended.of("episode")) == (0, [])
    assert [value["index"] for value in cell.result("values")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("total = 0\nfor e in episodes:\n    total += e.index\n    die(e)\n", "without `keep`"),
        (
            "total = 0\nfor e in episodes:\n    e.keep(0)\n    die(e)\n    total += e.index\n",
            "`total`",
        ),
        (
            "total = 0\nfor e in episodes:\n die(e)\n total += e.index\n e.index % 2 or e.keep(0)",
            "without `keep`",
        ),
    ],
    ids=["nothing kept", "all kept beside an accumulator", "one not kept"],
)
def test_an_accumulator_outside_keep_gives_the_same_result_as_undisturbed(
    cell: CellRun, source: str, why: str
) -> None:
    """A run that carries anything but kept values starts again at episode 0, and says why."""
    cell.source = (
        "import os\ndef die(e):\n    if os.environ.get('DIES_AT') == str(e.index):\n"
        f"        os.kill(os.getpid(), 9)\n{source}"
    )
    cell.environment = {"DIES_AT": "3"}
    assert cell.run(episodes=5).code == -signal.SIGKILL
    cell.environment = {}
    ended = cell.run(episodes=5, resume_from="attempts/1", outputs=["total"])
    assert cell.result("total") == 10
    (warning,) = ended.of("warning")
    assert warning["text"].startswith("the run starts again at episode 0")
    assert why in warning["text"]


def test_a_run_whose_earlier_attempt_is_torn_starts_anew(cell: CellRun) -> None:
    """An attempt that cannot be read is no reason to fail: all episodes are run, with a word."""
    cell.source = KEEPING
    cell.run(episodes=2)
    (cell.directory / "attempts/1/launch.json").write_text('{"work')
    ended = cell.run(episodes=2, resume_from="attempts/1")
    assert ended.stdout.splitlines() == ["episode 0", "episode 1"]
    (warning,) = ended.of("warning")
    assert "an earlier attempt cannot be read" in warning["text"]


def test_workers_share_the_episodes_and_all_get_all_values(cell: CellRun) -> None:
    """Worker w of N has w, w + N, ...; after its loop each sees everybody's values in order."""
    cell.source = """
        mine = []
        for e in episodes:
            mine.append(e.index)
            e.keep(e.index * 10)
            assert episodes.values == [i * 10 for i in mine]
        values = episodes.values
        assert len(episodes) == len(mine)
        """
    ended = cell.run_all(workers=3, episodes=7, outputs=["mine", "values"])
    assert [one.code for one in ended] == [0, 0, 0], [one.stderr for one in ended]
    assert [cell.result("mine", w) for w in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [cell.result("values", w) for w in range(3)] == [[i * 10 for i in range(7)]] * 3


def test_workers_resume_together(cell: CellRun) -> None:
    """What any worker kept is not run again, and the values are everybody's."""
    cell.source = KEEPING
    directory = cell.attempt(workers=2, episodes=6)
    cell.environment = {"DIES_AT": "3"}
    survivor, victim = cell.start(0, directory), cell.start(1, directory)
    assert victim.ended().code == -signal.SIGKILL
    assert [survivor.next_event()["index"] for _ in range(3)] == [0, 2, 4]
    survivor.kill()  # it waits for the other's end, as its supervisor would see
    cell.environment = {}
    ended = cell.run_all(workers=2, episodes=6, resume_from="attempts/1", outputs=["values"])
    assert [one.stdout.split() for one in ended] == [[], ["episode", "3", "episode", "5"]]
    for worker in range(2):
        assert [v["index"] for v in cell.result("values", worker)] == list(range(6))


def test_a_cell_without_a_loop_is_one_episode(cell: CellRun) -> None:
    """A cell that never iterates counts as one, of worker 0; a warning says if more were asked."""
    cell.source = "x = 1"
    first, second = cell.run_all(workers=2, episodes=100)
    assert [(e["index"], e["done"]) for e in first.of("episode")] == [(0, 1)]
    (warning,) = first.of("warning")
    assert "100" in warning["text"]
    assert second.of("episode") == second.of("warning") == []
    assert cell.run(episodes=1).of("warning") == []


def test_an_episode_left_by_break_is_counted_and_no_more(cell: CellRun) -> None:
    """``break`` ends the episode it stands in; those after it are not done, and that is said."""
    cell.source = "for e in episodes:\n    e.keep(1)\n    if e.index == 1: break"
    ended = cell.run(episodes=5)
    assert [e["done"] for e in ended.of("episode")] == [1, 2]
    (warning,) = ended.of("warning")
    assert "left after 2 of 5 episodes" in warning["text"]
    assert cell.run(episodes=2).of("warning") == []


def test_an_episode_that_raised_is_not_done(cell: CellRun) -> None:
    """The episode that an error ended is not told as finished."""
    cell.source = "for e in episodes:\n    if e.index == 1: raise ValueError"
    ended = cell.run(episodes=3)
    assert ended.code == 1
    assert [(e["index"], e["kept"]) for e in ended.of("episode")] == [(0, False)]


def test_values_of_the_cells_own_classes_come_back_as_themselves(cell: CellRun) -> None:
    """A kept instance of a class of the cell is of that very class again after a resume."""
    cell.source = """
        import os
        class Score:
            def __init__(self, x): self.x = x
        for e in episodes:
            if os.environ.get("DIES_AT") == str(e.index):
                os.kill(os.getpid(), 9)
            e.keep(Score(e.index))
        same = all(type(s) is Score for s in episodes.values)
        """
    cell.environment = {"DIES_AT": "1"}
    cell.run(episodes=2)
    cell.environment = {}
    cell.run(episodes=2, resume_from="attempts/1", outputs=["same"])
    assert cell.result("same") is True


def test_a_value_that_cannot_be_kept_is_named_by_its_episode(cell: CellRun) -> None:
    """``keep`` of something that has no pickled form raises in the cell and leaves no file."""
    cell.source = "import threading\nfor e in episodes:\n    e.keep(threading.Lock())"
    ended = cell.run()
    assert ended.error["ename"] == "TypeError"
    assert "the value of episode 0 cannot be kept" in ended.error["evalue"]
    assert list((cell.directory / "attempts/1/episodes").iterdir()) == []


# -- inputs and outputs --------------------------------------------------------------------------


def test_large_inputs_are_mapped_and_private(cell: CellRun) -> None:
    """An array given by value is used from its mapped file, which stays as it was."""
    cell.source = """
        import re
        private_kb = int(re.search(r"RssAnon:\\s*(\\d+)", open("/proc/self/status").read())[1])
        big[0] = -1
        first, last, empty_size = int(big[0]), int(big[-1]), empty.size
        """
    big: Any = np.arange(32 * MB, dtype=np.int64)
    cell.stage("big", big)
    cell.stage("empty", np.zeros(0))
    outputs = ["private_kb", "first", "last", "empty_size"]
    ended = cell.run(inputs=["big", "empty"], outputs=outputs)
    assert ended.code == 0, ended.stderr
    assert (cell.result("first"), cell.result("last")) == (-1, 32 * MB - 1)
    assert cell.result("empty_size") == 0
    assert cell.result("private_kb") * 1024 < big.nbytes / 2
    assert (cell.directory / "inputs/big.buffers").read_bytes()[64:72] == bytes(8)


def test_an_input_that_cannot_be_loaded_is_named(cell: CellRun) -> None:
    """A run whose input is missing or torn ends before the cell, with an error that names it."""
    cell.source = "print('ran')"
    cell.stage("x", 1)
    (cell.directory / "inputs/x.pickle").write_bytes(b"\x80\x05")
    ended = cell.run(inputs=["x"])
    assert (ended.code, ended.stdout) == (1, "")
    assert "input `x` cannot be loaded" in ended.error["evalue"]


def test_outputs_carry_the_cells_own_classes_by_value(cell: CellRun) -> None:
    """With cloudpickle an output of a class that only the cell has is readable elsewhere."""
    cell.source = """
        class Score:
            def __init__(self, x): self.x = x
            def twice(self): return 2 * self.x
        best = Score(21)
        """
    assert cell.run(outputs=["best"]).code == 0
    assert cell.result("best").twice() == 42


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = __import__('threading').Lock()", "output `x` (_thread.lock) cannot be stored"),
        ("y = 1", "output `x` is not defined when the cell ends"),
    ],
)
def test_an_output_that_cannot_be_stored_is_named(cell: CellRun, source: str, words: str) -> None:
    """An output without a pickled form, or one never defined, fails the run by name."""
    cell.source = source
    ended = cell.run(outputs=["x"])
    assert ended.code == 1
    assert words in ended.error["evalue"]
    assert not cell.result_path("x").exists()
    assert ended.of("result") == []


def test_tensors_come_back_in_host_memory(cell: CellRun) -> None:
    """Tensors of every kind that a cell returns or keeps are equal after loading."""
    cell.source = """
        import torch
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        base = torch.arange(6.0)
        tensors = {
            "plain": base, "view": base.view(2, 3).t(), "half": base.to(torch.bfloat16),
            "grad": base.clone().requires_grad_(), "scalar": torch.tensor(1), "bool": base > 2,
            "sparse": torch.eye(2).to_sparse(), "complex": torch.tensor([1 + 2j]).conj(),
        }
        weights = {name: w.tolist() for name, w in model.state_dict().items()}
        for e in episodes:
            e.keep(tensors)
        again = episodes.values[0]
        same = {n: bool((again[n].to_dense() == t.to_dense()).all()) for n, t in tensors.items()}
        kinds = {n: (again[n].dtype == t.dtype, again[n].requires_grad == t.requires_grad)
                 for n, t in tensors.items()}
        """
    ended = cell.run(outputs=["same", "kinds", "tensors", "model", "weights"])
    assert ended.code == 0, ended.stderr
    assert set(cell.result("same").values()) == {True}
    assert set(cell.result("kinds").values()) == {(True, True)}
    assert cell.result("tensors")["view"].tolist() == [[0, 3], [1, 4], [2, 5]]
    model = cell.result("model")
    assert {n: w.tolist() for n, w in model.state_dict().items()} == cell.result("weights")


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
