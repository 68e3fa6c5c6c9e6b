"""Processes that a cell starts: they have its functions, classes and values."""

from __future__ import annotations

import os

import pytest

from tests.integration.cell_process import CellRun, other_interpreters

METHODS = ["spawn", "forkserver"]
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
