"""The end of a cell is the end of its run, whatever the cell has left running."""

from __future__ import annotations

import pytest

from tests.integration.cell_process import CellRun

SERVER = """
import http.server
site = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=site.serve_forever, name="site").start()
"""
LOOKS_NOW_AND_THEN = """
def look():
    while True:
        time.sleep(0.2)
threading.Thread(target=look, name="looks").start()
"""
EXECUTOR = """
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor(4, "jobs").submit(threading.Event().wait)
"""
PROCESS = """
import multiprocessing
def sleep(parent):
    for descriptor in range(1, 100):
        try:
            os.close(descriptor)
        except OSError:
            pass
    while os.getppid() == parent:
        time.sleep(0.1)
context = multiprocessing.get_context("fork")
context.Process(target=sleep, args=(os.getpid(),), name="copy").start()
"""
TASK = """
import asyncio
async def serve():
    while True:
        await asyncio.sleep(0.1)
task = asyncio.create_task(serve())
await asyncio.sleep(0)
"""
STUBBORN_TASK = """
import asyncio
async def serve():
    while True:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass
task = asyncio.create_task(serve())
await asyncio.sleep(0)
"""
THREAD_OF_THE_LOOP = """
import asyncio
future = asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
await asyncio.sleep(0)
"""
EXIT_HANDLER = "import atexit\natexit.register(lambda: threading.Event().wait())\n"
#: What a cell may leave running for ever, and how the card names it.
LEFT = {
    "a server": (SERVER, "thread `site`"),
    "a thread that looks now and then": (LOOKS_NOW_AND_THEN, "thread `looks`"),
    "an executor": (EXECUTOR, "thread `jobs_0`"),
    "a process": (PROCESS, "process `copy`"),
    "a task": (TASK, "task `serve`"),
    "a task that cannot be cancelled": (STUBBORN_TASK, "task `serve`"),
    "a thread of the loop": (THREAD_OF_THE_LOOP, "thread `asyncio_0`"),
    "an exit handler": (EXIT_HANDLER, "its interpreter did not end in `wait`"),
}


@pytest.mark.parametrize(("source", "name"), LEFT.values(), ids=LEFT)
def test_what_a_cell_leaves_running_does_not_keep_its_run(
    cell: CellRun, source: str, name: str
) -> None:
    """Outputs are stored, the process ends with the cell's own code, and the card has the name."""
    cell.source = f"import os, threading, time\n{source}\nanswer = 42\n"
    cell.source += "file = open('written', 'w')\nfile.write('whole')\nNone"
    ended = cell.run(outputs=["answer"])
    assert ended.code == 0, ended.stderr
    assert cell.result("answer") == 42
    (warning,) = ended.of("warning")
    assert name in warning["text"]
    assert (cell.directory / "written").read_text() == "whole"


@pytest.mark.parametrize(
    ("last", "code"), [("sys.exit(3)", 3), ("1 / 0", 1), ("sys.exit('no')", 1)]
)
def test_an_end_that_is_no_success_keeps_its_code(cell: CellRun, last: str, code: int) -> None:
    """A cell that fails or leaves with a thread at its side ends at once too, and as it would."""
    cell.source = (
        f"import sys, threading\nthreading.Thread(target=threading.Event().wait).start()\n{last}"
    )
    ended = cell.run()
    assert ended.code == code
    assert ("no" in ended.stderr.splitlines()) == ("'no'" in last)


#: What a cell may leave at work, which then writes a file; longer than an idle thread may stay.
AT_WORK = """
    import asyncio, atexit, os, threading, time
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from pathlib import Path

    def compute(name, seconds=5):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(10000))
        Path(name).write_text("done")

    async def soon(name):
        await asyncio.sleep(0.5)
        Path(name).write_text("done")
    """


def test_what_is_still_at_work_may_finish(cell: CellRun) -> None:
    """Threads, executors, tasks and exit handlers that end by themselves are waited for."""
    cell.source = (
        AT_WORK
        + """
    threading.Thread(target=compute, args=("thread",), name="saves").start()
    ThreadPoolExecutor(2).submit(compute, "executor", 1)
    idle = ThreadPoolExecutor(2).submit(int)
    processes = ProcessPoolExecutor(1)
    processes.submit(int).result()
    task = asyncio.create_task(soon("task"))
    atexit.register(compute, "handler", 1)
    await asyncio.sleep(0)
    """
    )
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    names = ["executor", "handler", "task", "thread"]
    assert [(cell.directory / name).exists() for name in names] == [True] * 4
    texts = [warning["text"] for warning in ended.of("warning")]
    assert all("thread `saves` is still at work" in text for text in texts), texts


def test_a_cell_that_leaves_nothing_ends_without_a_word(cell: CellRun) -> None:
    """Idle executors, managers, pools and daemons are no business of the card."""
    cell.source = """
        import multiprocessing, threading
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        threads, processes = ThreadPoolExecutor(2), ProcessPoolExecutor(1)
        threads.submit(int).result(), processes.submit(int).result()
        context = multiprocessing.get_context("fork")
        manager, pool = context.Manager(), context.Pool(1)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        """
    ended = cell.run()
    assert (ended.code, ended.stderr, ended.of("warning")) == (0, "", [])
