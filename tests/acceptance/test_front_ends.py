"""Front ends without a browser: nbclient, papermill, IPython and the command line in a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tests.kit.controlled_runs import ControlledRun, processes_of
from tests.kit.front_end import LOAD, notebook
from tests.kit.real_server import PATIENCE_S, Served, until

_new: Any = nbformat.v4


FAILING = "%%gated_eval fails --hint-ram 64MB\ndef inner():\n    raise ValueError('boom')\ninner()"


def written(*cells: str) -> Any:
    """A notebook of these cells, the extension loaded before them."""
    return _new.new_notebook(cells=[_new.new_code_cell(source) for source in (LOAD, *cells)])


def errors(written: Any) -> list[Any]:
    """The errors that a notebook was saved with."""
    outputs = (output for cell in written.cells for output in cell.get("outputs", ()))
    return [output for output in outputs if output.output_type == "error"]


def the_run(server: Served, name: str) -> str:
    """The only run of a name."""
    (run,) = until(lambda: server.ask("GET", f"/runs?name={name}").json["runs"], f"{name} is there")
    return str(run["run_id"])


# -- without a person -----------------------------------------------------------------------------


def execute(server: Served, cells: Any, **settings: Any) -> None:
    """Execute a notebook as nbclient does for nbconvert."""
    places = server.places
    client = NotebookClient(cells, **settings)
    client.execute(env=places.environ(), cwd=str(places.notebooks))


def test_a_failing_run_fails_the_notebook_with_its_own_traceback(shared_server: Served) -> None:
    """The saved error is the run's: its exception, its lines, no frame of ours; the cells behind do
    not run.
    """
    cells = written(FAILING, "'never'")
    with pytest.raises(CellExecutionError, match="RunFailed"):
        execute(shared_server, cells)
    (error,) = errors(cells)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert error.ename == "RunFailed"
    assert error.evalue.endswith(": ValueError: boom")
    assert "raise ValueError('boom')" in shown
    assert shown.splitlines()[-1].startswith("RunFailed: fails (")
    assert "jupyter_gpugate" not in shown
    assert cells.cells[-1].outputs == []


def test_without_a_person_one_interrupt_cancels(shared_server: Served) -> None:
    """As a scheduler that stops a notebook does: the run ends before the cell does."""
    work = ControlledRun(shared_server.places, "unattended")
    cells = written("import os; open('pid', 'w').write(str(os.getpid()))", work.source())
    pid = shared_server.places.notebooks / "pid"

    def interrupt() -> None:
        work.begins()
        os.kill(int(pid.read_text()), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(CellExecutionError, match="RunCancelled"):
        execute(shared_server, cells)
    sender.join()
    run_id = the_run(shared_server, work.name)
    assert shared_server.run(run_id)["end"] == "cancelled"
    assert processes_of(run_id) == []


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_time_out_of_the_notebook_cancels_its_run(
    shared_server: Served, interrupts: bool
) -> None:
    """Whether nbclient goes on after its time-out or gives the notebook up, no live run is left."""
    work = ControlledRun(shared_server.places, "late")
    cells = written(work.source())
    with pytest.raises((CellTimeoutError, CellExecutionError)):
        execute(shared_server, cells, timeout=10, interrupt_on_timeout=interrupts)
    run_id = the_run(shared_server, work.name)
    assert shared_server.ended(run_id)["end"] == "cancelled"
    assert processes_of(run_id) == []


@contextmanager
def papermill(server: Served, cells: Any) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Papermill as a process, and the notebook that it writes."""
    folder = server.places.notebooks
    nbformat.write(cells, folder / "in.ipynb")  # type: ignore[no-untyped-call]
    process = subprocess.Popen(
        [sys.executable, "-m", "papermill", "-k", "python3", "in.ipynb", "out.ipynb"],
        cwd=folder,
        env=server.places.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process, folder / "out.ipynb"
    finally:
        process.kill()
        process.wait()


def test_an_interrupted_papermill_leaves_no_live_run(shared_server: Served) -> None:
    """After Ctrl-C papermill ends, and its run was cancelled."""
    work = ControlledRun(shared_server.places, "papermill")
    with papermill(shared_server, written(work.source())) as (process, _):
        work.begins()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) != 0
    run_id = the_run(shared_server, work.name)
    assert shared_server.ended(run_id)["end"] == "cancelled"
    assert processes_of(run_id) == []


def test_papermill_fails_with_the_run(shared_server: Served) -> None:
    """Its exit code is not 0, and what it saved holds the run's own traceback."""
    with papermill(shared_server, written(FAILING)) as (process, out):
        assert process.wait(PATIENCE_S) != 0
    read: Any = nbformat.read
    (error,) = errors(read(out, as_version=4))
    assert error.ename == "RunFailed"
    assert "ValueError: boom" in "\n".join(error.traceback)


# -- threads, tasks and subshells -----------------------------------------------------------------


def test_a_gated_cell_runs_in_a_thread(shared_server: Served) -> None:
    """Where no signal can be taken the run is waited for all the same, and its outputs are here."""
    with notebook(shared_server.places) as front_end:
        cell = front_end.run(
            "import threading\n"
            "line = 'thread --hint-ram 64MB --output x'\n"
            "words = ('gated_eval', line, 'x = 6 * 7')\n"
            "t = threading.Thread(target=get_ipython().run_cell_magic, args=words)\n"
            "t.start(); t.join()\nx"
        )
        assert (cell.error, cell.texts[-1]) == ({}, "42")


def test_tasks_of_the_kernel_go_on_after_a_gated_cell(shared_server: Served) -> None:
    """A task that began before the cell ends after it."""
    with notebook(shared_server.places) as front_end:
        task = "import asyncio\ntask = asyncio.create_task(asyncio.sleep(0.01, 'done'))"
        assert not front_end.run(task).error
        assert not front_end.run("%%gated_eval quick --hint-ram 64MB\nx = 1").error
        assert front_end.value("await task") == "'done'"


def test_a_subshell_works_while_a_cell_waits(shared_server: Served) -> None:
    """With the main shell busy a subshell looks at the queue and runs a cell of its own."""
    work = ControlledRun(shared_server.places, "busy")
    with notebook(shared_server.places) as front_end:
        waits = front_end.start(work.source("--output x"))
        work.begins()
        shell = front_end.subshell()
        queue = front_end.end_of(front_end.start("%gpu_queue", subshell_id=shell))
        assert work.name in queue.texts[-1]
        source = "%%gated_eval inside --hint-ram 64MB --output y\ny = 1"
        assert front_end.end_of(front_end.start(source, subshell_id=shell)).error == {}
        assert not waits.over
        work.end()
        assert front_end.end_of(waits).error == {}
        assert front_end.value("(x, y)") == "(42, 1)"


# -- told of an end ---------------------------------------------------------------------------


def test_a_notebook_is_told_of_the_end_of_a_detached_run(
    server: Served, start: Callable[..., Served]
) -> None:
    """Also where the gate was restarted meanwhile: once, with the handle, below the cell that
    asked; a callback that fails shows its traceback there and harms nothing.
    """
    work = ControlledRun(server.places, "told")
    with notebook(server.places) as front_end:
        cell = front_end.run("run = get_ipython().run_cell_magic('gated_eval', " + submit(work))
        assert not cell.error, cell.error
        asks = front_end.run(
            "run.when_ended(lambda run: print('ended', run.status()))\n"
            "run.when_ended(lambda run: 1 / 0)"
        )
        work.begins()
        server.kill()
        start()
        busy = front_end.run("'another cell'")
        work.end()
        front_end.see(lambda: "ZeroDivisionError" in asks.printed, "the failure is told")
        front_end.see(lambda: "ended completed" in asks.printed, "the end is told")
        late = front_end.run("run.when_ended(lambda run: print('at once'))")
        front_end.see(lambda: "at once" in late.printed, "an end that has been is told")
        assert front_end.value("1+1") == "2"
        assert asks.printed.count("ended completed") == 1
        assert (busy.printed, busy.error) == ("", {})


def submit(work: ControlledRun) -> str:
    """The arguments of a detached submit, as source."""
    head, _, body = work.source("--detach").partition("\n")
    return f"{head.partition(' ')[2]!r}, {body!r})"


def test_an_end_is_shown_without_our_frames_in_every_mode(shared_server: Served) -> None:
    """`%tb`, with the verbose form too, shows the run's own traceback and nothing of the gate's."""
    with notebook(shared_server.places) as front_end:
        assert front_end.run(FAILING).ename == "RunFailed"
        for mode in ("Context", "Verbose"):
            again = front_end.run(f"%xmode {mode}\n%tb")
            shown = "\n".join([*again.error.get("traceback", ()), again.printed])
            assert "ValueError: boom" in shown
            assert "RunFailed: fails (" in shown
            assert "until_end" not in shown
            assert "waiting.py" not in shown
