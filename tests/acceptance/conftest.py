"""Real servers for acceptance tests; nothing that they started outlives a test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import GB, StandIn
from tests.kit.attribution_oracle import Oracle
from tests.kit.real_server import Places, Served, end_everything_of


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    """One GPU of 24 GB whose driver is the stand-in."""
    driver = StandIn(tmp_path / "driver")
    driver.gpu(total=24 * GB, name="NVIDIA L4")
    return driver


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    """A user's directories; with a GPU where the test asks for the stand-in."""
    with_gpu = "stand_in" in request.fixturenames
    own = Places(tmp_path, request.getfixturevalue("stand_in") if with_gpu else None)
    yield own
    end_everything_of(own)
    shutil.rmtree(own.runtime, ignore_errors=True)


@pytest.fixture
def start(places: Places) -> Iterator[Callable[..., Served]]:
    """Start another server of the same user."""
    started: list[Served] = []

    def begin(*options: str, **environ: str) -> Served:
        started.append(Served(places, *options, **environ))
        return started[-1]

    yield begin
    for server in started:
        server.stop()


@pytest.fixture
def server(start: Callable[..., Served]) -> Served:
    """A Jupyter server with the extension."""
    return start()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for many tests that leave nothing behind."""
    own = Places(tmp_path_factory.mktemp("shared"))
    served = Served(own)
    yield served
    served.stop()
    end_everything_of(own)
    shutil.rmtree(own.runtime, ignore_errors=True)


@pytest.fixture
def oracle(server: Served, stand_in: StandIn) -> Iterator[Oracle]:
    """Checks attribution at every tick of the test's server."""
    looking = Oracle(server, stand_in)
    yield looking
    looking.close()
