"""Workers of a cell, run as a supervisor runs them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys

import pytest

from tests.integration.cell_process import PROGRAM, CellRun, other_interpreters, python_path


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
    assert str(PROGRAM) not in text + ended.stderr
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


def test_the_worker_imports_nothing_from_the_working_folder(any_python: CellRun) -> None:
    """Files there may be named like any module of the worker, or like those that it uses."""
    for name in [path.stem for path in PROGRAM.glob("*.py")] + [PROGRAM.name, "gpugate_programs"]:
        (any_python.directory / f"{name}.py").write_text("raise ImportError(__file__)")
    any_python.source = """
        import multiprocessing

        def twice(x):
            return 2 * x

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.map(twice, [1])
        found
        """
    ended = any_python.run()
    assert (ended.code, ended.stderr, ended.plain) == (0, "", ["[2]"])


@pytest.mark.parametrize("python", other_interpreters(), ids=os.path.basename)
def test_a_worker_causes_no_warnings(cell: CellRun, python: str) -> None:
    """A user who makes errors of warnings can run cells, and so can their processes."""
    cell.interpreter = python
    cell.environment = {"PYTHONWARNINGS": "error"}
    cell.source = """
        import multiprocessing

        def twice(x):
            return 2 * x

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.map(twice, [1])
        found
        """
    ended = cell.run()
    assert (ended.code, ended.stderr, ended.plain) == (0, "", ["[2]"])


def test_a_copy_of_the_worker_keeps_its_compiled_files(any_python: CellRun) -> None:
    """It does so where the user's Python writes none, and leaves that setting to the cell."""
    any_python.program = any_python.directory / "gpugate_programs" / "worker"
    shutil.copytree(PROGRAM, any_python.program, ignore=shutil.ignore_patterns("__pycache__"))
    any_python.environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    any_python.source = "import sys\nsys.dont_write_bytecode"
    assert any_python.run().plain == ["True"]
    compiled = {path.name.partition(".")[0] for path in any_python.program.glob("*/*.pyc")}
    assert {"main", "execution", "ending"} <= compiled


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


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
