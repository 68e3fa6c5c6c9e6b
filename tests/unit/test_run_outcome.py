"""The record of how an attempt ended, and the stop in it, in this version and in former ones."""

from __future__ import annotations

import pytest

from jupyter_gpugate.core.codec import from_json
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.runs.outcome import KILLED, REMOVED, Lost, lost_outcome, stop_in


def test_a_lost_attempt_records_its_stop_and_its_survivors() -> None:
    """The stop is a value of its own; the reason names the processes that could not be stopped."""
    lost = Lost(AttemptOutcome.LOST, KILLED, Stop.of(StopKind.KILLED))
    outcome = lost_outcome(lost, [ProcessKey(71, 8)], 0.25)
    end = from_json(EndReport, outcome["end"])
    assert end.reason == "its supervisor was killed; still there: 71"
    assert outcome["kill"] == {"means": "kill", "ms": 250, "survivors": [[71, 8]]}
    assert stop_in(outcome) == Stop.of(StopKind.KILLED)
    assert stop_in(lost_outcome(Lost(AttemptOutcome.LOST, "reboot"), [], 0.0)) is None


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("terminated", StopKind.TERMINATED),
        (KILLED, StopKind.KILLED),
        (f"{KILLED}; still there: 71, 72", StopKind.KILLED),
        (REMOVED, StopKind.REMOVED),
        ("exit 3", None),
        ("", None),
    ],
)
def test_the_stop_of_a_former_record_is_read_from_its_reason(
    reason: str, kind: StopKind | None
) -> None:
    """A record without a stop is of a former version, whose reason says the same."""
    outcome = {"end": {"outcome": "lost", "reason": reason}, "kill": None}
    assert stop_in(outcome) == (None if kind is None else Stop.of(kind))
    assert stop_in({**outcome, "stop": None}) is None


@pytest.mark.parametrize("stop", ["cancelled", {"kind": "of a later version", "by": "owner"}, 3])
def test_a_stop_that_cannot_be_read_is_none(stop: object) -> None:
    """A run may write anything into its own record."""
    assert stop_in({"end": {"reason": "terminated"}, "stop": stop}) is None
    assert stop_in({"end": 3}) is None
