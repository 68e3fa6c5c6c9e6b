"""The parts of a cell that a process started by it executes."""

from __future__ import annotations

import pytest

from tests.integration.cell_process import CellRun

METHODS = ["spawn", "forkserver"]


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
