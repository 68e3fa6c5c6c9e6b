"""What every test shares: the long form of the soak tests, and a clock-free hypothesis."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="session", autouse=True)
def apart_from_the_user() -> Iterator[None]:
    """Keep all that a broken test may leave running from the places of whoever runs the tests."""
    root = Path(tempfile.mkdtemp(prefix="gg-", dir="/tmp"))  # short, for sockets
    (root / "home").mkdir(mode=0o700)
    for name in (".cache", ".pyenv"):  # browsers and interpreters that are found there
        if Path.home().joinpath(name).is_dir():
            (root / "home" / name).symlink_to(Path.home() / name)
    with pytest.MonkeyPatch.context() as patch:
        # A user has one gate: tests that run beside each other are different users by their homes.
        patch.setenv("HOME", str(root / "home"))
        for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "JUPYTER_DATA_DIR"):
            place = root / name.lower()
            place.mkdir(mode=0o700)
            patch.setenv(name, str(place))
        yield
    shutil.rmtree(root, ignore_errors=True)
