"""Fixtures of several integration tests: a user's directories, a GPU reader, and a cell's run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cell_process import CellRun, other_interpreters
from tests.integration.gpu_reading import Driver, Reader, driver_in
from tests.integration.hosted import Hosting, hosts_in
from tests.integration.run_side import GateOfRuns, gate_of_runs
from tests.integration.supervisor_process import Make, attempts
from tests.kit.real_server import Places, end_everything_of


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """A user's directories."""
    own = Places(tmp_path)
    yield own
    end_everything_of(own)
    shutil.rmtree(own.runtime, ignore_errors=True)


@pytest.fixture
def hosting(tmp_path: Path) -> Iterator[Hosting]:
    """Run a coroutine beside a host of its own."""
    with hosts_in(tmp_path) as host:
        yield host


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Put a stand-in driver of some variant into this process's environment."""
    return driver_in(tmp_path, monkeypatch)


@pytest.fixture
def reader() -> Iterator[Reader]:
    """Give a reader to use without await, whose deadline nothing misses."""
    reader = Reader()
    yield reader
    reader.close()


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


@pytest.fixture
def make() -> Iterator[Make]:
    """Give attempts that share a gate, and clear up after them."""
    with attempts() as give:
        yield give


@pytest.fixture
def gate() -> Iterator[GateOfRuns]:
    """Give a gate of a few lines for a run side, listening."""
    with gate_of_runs() as listening:
        yield listening
