"""Failpoints: armed by name, and nothing at all where they are not."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from jupyter_gpugate.gate import failpoints
from jupyter_gpugate.gate.failpoints import arm, failpoint


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


@pytest.mark.parametrize(("action", "number"), [("raise", errno.EIO), ("enospc", errno.ENOSPC)])
def test_an_armed_place_fails(action: str, number: int) -> None:
    """Each action is the error that a disk would give."""
    arm(f"here:{action}")

    with pytest.raises(OSError, match="failpoint here") as failure:
        failpoint("here")

    assert failure.value.errno == number


def test_other_places_go_on() -> None:
    """A failpoint that nobody armed does nothing."""
    arm("here:raise,there:sleep:0")

    failpoint("elsewhere")
    failpoint("there")


def test_arming_replaces_what_was_armed() -> None:
    """An empty text disarms everything."""
    arm("here:raise")
    arm("")

    failpoint("here")
    assert failpoints._armed == {}


@pytest.mark.parametrize("text", ["here", "here:explode", "here:sleep", "here:sleep:soon"])
def test_what_is_no_action_is_refused(text: str) -> None:
    """A misspelt failpoint does not pass for a test that found nothing."""
    with pytest.raises(ValueError):  # noqa: PT011 - float() words one of them
        arm(text)
