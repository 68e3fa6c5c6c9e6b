"""Processes that a cell starts: what they execute of it, and how they fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.cell_process import CellRun, other_interpreters

METHODS = ["spawn", "forkserver"]


@pytest.fixture
def cell(tmp_path: Path) -> CellRun:
    """An empty cell's run; a test writes the source."""
    return CellRun(tmp_path, "")


#: Lines that no process can execute a second time.
ONLY_ONCE = {
    "the start method": "multiprocessing.set_start_method(METHOD)",
    "a file of one's own": "file = open('own', 'x')",
    "a folder": "os.mkdir('made')",
    "a look at the process": "assert multiprocessing.parent_process() is None",
    "an exit": "if multiprocessing.parent_process() is not None:\n    sys.exit('a copy')",
    "a cluster": "other = multiprocessing.get_context(METHOD).Pool(1)",
}
TWO_POOLS = """
import multiprocessing, os, sys
METHOD = {method!r}
{line}
SCALE = 3

def scaled(x):
    return SCALE * x

with multiprocessing.get_context(METHOD).Pool(2) as pool:
    first = pool.map(scaled, range(3))

def again(x):
    return -scaled(x)

with multiprocessing.get_context(METHOD).Pool(2) as pool:
    second = pool.map(again, range(3))
first, second
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("line", ONLY_ONCE.values(), ids=ONLY_ONCE)
def test_a_line_that_works_only_once_keeps_no_process_from_its_function(
    cell: CellRun, method: str, line: str
) -> None:
    """Functions before and after it, and after the first pool, are there in every process."""
    cell.source = TWO_POOLS.format(method=method, line=line)
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    assert ended.plain == ["([0, 3, 6], [0, -3, -6])"]
    assert ended.stderr == ""
    assert ended.of("warning") == []


@pytest.mark.parametrize("python", other_interpreters(), ids=os.path.basename)
def test_the_start_method_may_be_set_under_every_python(cell: CellRun, python: str) -> None:
    """A cell that sets the start method at its top works with nothing installed."""
    cell.interpreter = python
    cell.source = TWO_POOLS.format(method="forkserver", line=ONLY_ONCE["the start method"])
    ended = cell.run()
    assert ended.plain == ["([0, 3, 6], [0, -3, -6])"], ended.stderr


@pytest.mark.parametrize("method", METHODS)
def test_what_no_function_needs_is_executed_once(cell: CellRun, method: str) -> None:
    """Files are written, models loaded and lines printed by the cell, not by its processes."""
    cell.source = f"""
        import multiprocessing, os
        with open("log", "a") as log:
            print("opened", file=log)

        def load():
            with open("log", "a") as log:
                print("loaded", file=log)
            return dict(weight=2)

        model = load()
        print("begins")

        def own(model, x):
            return x + 1

        def unused(x):
            return model["weight"] * x

        if __name__ == "__main__":
            open("log", "a").write("main\\n")
        with multiprocessing.get_context("{method}").Pool(3) as pool:
            print(pool.starmap(own, [(None, x) for x in range(4)]))
        open("log").read().split()
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    assert ended.plain == ["['opened', 'loaded', 'main']"]
    assert ended.stdout.splitlines() == ["begins", "[1, 2, 3, 4]"]
    assert ended.of("warning") == []


@pytest.mark.parametrize("method", METHODS)
def test_work_that_a_function_needs_is_repeated_and_said(cell: CellRun, method: str) -> None:
    """A value that a function reads is made anew in its processes; the card says by which line."""
    cell.source = f"""
        import multiprocessing

        def load():
            return dict(weight=2)

        model = load()
        model["bias"] = 1

        def predict(x):
            return model["weight"] * x + model["bias"]

        with multiprocessing.get_context("{method}").Pool(2) as pool:
            result = pool.map(predict, range(3))
        result
        """
    ended = cell.run()
    assert ended.plain == ["[1, 3, 5]"], ended.stderr
    (warning,) = ended.of("warning")
    assert "repeated line 7 `model = load()`" in warning["text"]


def test_an_object_whose_class_loads_something_is_said_as_well(cell: CellRun) -> None:
    """What a constructor of the cell does is repeated work too; plain records are none."""
    cell.source = """
        import multiprocessing

        class Record:
            def __init__(self, weight):
                self.weights = dict(weight=weight)

        class Net:
            def __init__(self):
                self.weights = self.load()

            def load(self):
                return {"weight": 2}

        class Deeper(Net):
            pass

        record = Record(3)
        net = Net()
        deeper = Deeper()

        def predict(x):
            return [each.weights["weight"] * x for each in (record, net, deeper)]

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            result = pool.map(predict, range(2))
        result
        """
    ended = cell.run()
    assert ended.plain == ["[[0, 0, 0], [3, 2, 2]]"], ended.stderr
    (warning,) = ended.of("warning")
    assert "`net = Net()`" in warning["text"]
    assert "`deeper = Deeper()`" in warning["text"]
    assert "Record" not in warning["text"]


def test_a_loop_that_changes_what_a_function_reads_hides_nothing_behind_it(cell: CellRun) -> None:
    """A line that comes to episodes or to a pool ends there; what others need is executed."""
    cell.source = """
        import multiprocessing
        found = []
        context = multiprocessing.get_context("spawn")

        def count(x):
            return len(found) + x

        for e in episodes:
            with context.Pool(1) as pool:
                found.extend(pool.map(count, [1]))
        SCALE = 10

        def scaled(x):
            return SCALE * x

        def both(x):
            return scaled(x), count(x)

        with context.Pool(1) as pool:
            result = pool.map(scaled, found), pool.map(both, [1])
        result
        """
    ended = cell.run()
    assert ended.plain == ["([10], [(10, 1)])"], ended.stderr
    assert (ended.stderr, ended.of("warning")) == ("", [])


@pytest.mark.parametrize("method", METHODS)
def test_a_line_that_a_function_needs_and_that_fails_is_named(cell: CellRun, method: str) -> None:
    """Where a process cannot make what its function reads, the card says which line failed."""
    cell.source = f"""
        import multiprocessing, os
        lock = os.open("lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)

        def note(x):
            return os.write(lock, b"x")

        with multiprocessing.get_context("{method}").Pool(2) as pool:
            pool.map(note, range(3))
        """
    ended = cell.run()
    assert (ended.code, ended.error["ename"]) == (1, "NameError")
    (warning,) = ended.of("warning")
    assert warning["text"].startswith("line 3 `lock = os.open(")
    assert "failed in a process that the cell started: FileExistsError" in warning["text"]


#: The function, the pool's options, and how the cell waits.
BROKEN = {
    "its initializer fails": ("work", "initializer=fails", "pool.map({job}, range(20))"),
    "its processes leave": (
        "work",
        "initializer=os._exit, initargs=(3,)",
        "pool.apply({job}, [1])",
    ),
    "no function, map": ("lost", "", "pool.map({job}, range(20))"),
    "no function, imap": ("lost", "", "list(pool.imap({job}, range(20)))"),
    "no function, in no order": (
        "lost",
        "",
        "list(pool.imap_unordered({job}, range(20), chunksize=3))",
    ),
}


@pytest.mark.parametrize(("job", "options", "wait"), BROKEN.values(), ids=BROKEN)
def test_a_pool_whose_processes_end_at_once_fails_instead_of_waiting(
    cell: CellRun, job: str, options: str, wait: str
) -> None:
    """Whatever way the cell waits for such a pool, it gets an error that says so."""
    cell.source = f"""
        import multiprocessing, os

        def fails():
            raise OSError("no device here")

        def work(x):
            return x

        if multiprocessing.parent_process() is None:
            def lost(x):
                return x

        with multiprocessing.get_context("spawn").Pool(2, {options}) as pool:
            {wait.format(job=job)}
        """
    ended = cell.run()
    assert (ended.code, ended.error["ename"]) == (1, "RuntimeError"), ended.stderr
    assert "the processes of this pool end before they do any work" in ended.error["evalue"]


def test_a_pool_that_loses_processes_now_and_then_goes_on(cell: CellRun) -> None:
    """Processes that end after their work, or one by one with work done in between, are no end."""
    cell.source = """
        import multiprocessing, os, time

        def work(x):
            return x

        def leave(x):
            os._exit(1)

        with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
            for round in range(4):
                lost = pool.apply_async(leave, (0,))
                assert pool.map(work, range(6), chunksize=1) == list(range(6))
                assert not lost.ready()
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr


#: What an initializer keeps by `global`, with and without a first value, also by a helper.
KEPT_BY_GLOBAL = {
    "a first value": ("model = None", "model = float(size)"),
    "no first value": ("", "model = float(size)"),
    "a value that is read": ("model = 1.0", "model = model * size"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("first", "kept"), KEPT_BY_GLOBAL.values(), ids=KEPT_BY_GLOBAL)
def test_what_an_initializer_keeps_is_there_for_the_functions_after_it(
    cell: CellRun, method: str, first: str, kept: str
) -> None:
    """No later name takes back what a function of the cell has bound by `global`."""
    cell.source = f"""
        import multiprocessing
        {first}

        def keep(size):
            global model
            {kept}

        def start(size):
            keep(size)

        def scaled(x):
            return model * x

        context = multiprocessing.get_context({method!r})
        with context.Pool(1, initializer=keep, initargs=(2,)) as pool:
            first = pool.map(scaled, range(3))
        with context.Pool(1, initializer=start, initargs=(3,)) as pool:
            second = pool.map(scaled, range(3))
        first, second
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    assert ended.plain == ["([0.0, 2.0, 4.0], [0.0, 3.0, 6.0])"]


@pytest.mark.parametrize("method", METHODS)
def test_a_name_that_every_cell_has_may_be_the_cells_own(cell: CellRun, method: str) -> None:
    """A started process sees `worker`, `params` and the others as the cell has bound them."""
    cell.source = f"""
        import multiprocessing
        other, workers = 1, 40
        params = {{**params, "more": 2}}

        def worker(x):
            return x + workers + params["more"]

        def asks_by_name(x):
            return globals()["worker"](x)

        with multiprocessing.get_context({method!r}).Pool(1) as pool:
            found = pool.map(worker, range(2)), pool.map(asks_by_name, range(2))
        found
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    assert ended.plain == ["([42, 43], [42, 43])"]


@pytest.mark.parametrize("method", METHODS)
def test_the_names_that_every_cell_has_are_there_in_its_processes(
    cell: CellRun, method: str
) -> None:
    """A function that a started process executes reads `worker`, `workers` and `params`."""
    cell.source = f"""
        import multiprocessing

        def told(x):
            return worker, workers, dict(params)

        with multiprocessing.get_context({method!r}).Pool(1) as pool:
            found = pool.map(told, range(1))
        found
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    assert ended.plain == ["[(0, 1, {})]"]
