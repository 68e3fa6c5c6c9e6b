"""Fixtures of several integration tests: a user's directories, and a GPU reader."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gpu_reading import Driver, Reader, driver_in
from tests.served import Places, end_everything_of


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """A user's directories."""
    own = Places(tmp_path)
    yield own
    end_everything_of(own)
    shutil.rmtree(own.runtime, ignore_errors=True)


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
