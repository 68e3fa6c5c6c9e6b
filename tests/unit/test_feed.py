"""What is told of a run's way, and in which words."""

from __future__ import annotations

import pytest

from jupyter_gpugate.server.feed import _way_between, kind_of


@pytest.mark.parametrize(
    ("passed", "now", "way"),
    [
        ("", "granted", ["granted"]),
        ("", "running", ["granted", "starting", "running"]),
        ("granted", "running", ["starting", "running"]),
        ("starting", "stopping", ["stopping"]),
        ("granted", "stopping", ["starting", "stopping"]),
        ("running", "stopping", ["stopping"]),
    ],
)
def test_no_step_is_left_out_and_none_invented(passed: str, now: str, way: list[str]) -> None:
    """Between two ticks a run may have gone further; one that is stopped early never ran."""
    assert _way_between(passed, now) == way


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("time_limit", "time_limit"),
        ("exit 3", "exit 3"),
        ("max_wait: GPU 0 is locked by ada", "max_wait"),
        ("signal 9", "signal 9"),
        ("", ""),
        ("no such program: /home/ada/secret/eval", ""),
        ("the notebook's kernel is gone", ""),
        ("exit 3\n/home/ada", ""),
    ],
)
def test_a_reason_in_words_is_not_told(reason: str, kind: str) -> None:
    """An event names kinds; a sentence may hold a path and stays with the run."""
    assert kind_of(reason) == kind
