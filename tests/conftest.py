"""What every test shares: the long form of the soak tests, and a clock-free hypothesis."""

from __future__ import annotations

import signal

import hypothesis
import pytest

# A shared machine can be ten times slower for minutes: no verdict may rest on how long an example
# took.
hypothesis.settings.register_profile(
    "unhurried",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("unhurried")

# Under nohup, and in some CI, a hang-up is ignored, and whatever the tests start would ignore it as
# well; a handler goes no further than this process.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --soak."""
    parser.addoption(
        "--soak", action="store_true", help="run the long form of the tests marked soak"
    )


@pytest.fixture(scope="session")
def soaking(pytestconfig: pytest.Config) -> bool:
    """Whether the long form was asked for: more seeds, more kills, the same assertions."""
    return bool(pytestconfig.getoption("--soak"))
