"""States of one run, for the tests of transitions."""

from __future__ import annotations

from typing import Final

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.reports import (
    AttemptOutcome,
    EndReport,
    Phase,
    RunEnd,
)
from jupyter_gpugate.core.resources import (
    GB,
    VRAM,
)
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    BOOT,
    GPU,
    NOW,
    beat,
    board,
    finish,
    gate,
    grant,
    key_of,
    request,
    start,
)

FENCE: Final = 1


LATER: Final = NOW + 10


def made(standing: str) -> GateState:
    """A gate whose one run stands so."""
    if standing == "absent":
        return gate()
    state = gate(request())
    if standing == "queued":
        return state
    if standing == "granted":
        return apply(state, [ev.Granted(NOW, grant(fence=FENCE))])
    state = start(state)
    if standing == "starting":
        return state
    if standing == "ended":
        return apply(state, [finish(state)])
    return apply(state, [beat(state, phase=Phase(standing))])


def ended(outcome: AttemptOutcome) -> ev.Finished:
    """The end of the run's first attempt."""
    return ev.Finished(LATER, "run", FENCE, EndReport(outcome))


EVENTS: Final[dict[str, ev.Event]] = {
    "requested": ev.Requested(LATER, request(), "side"),
    "withdrawn": ev.Withdrawn(LATER, "run"),
    "granted": ev.Granted(LATER, grant(fence=FENCE)),
    "declined": ev.Declined(LATER, "run", FENCE, "no room on disk"),
    "declined for good": ev.Declined(LATER, "run", FENCE, "gone", RunEnd.FAILED),
    "started": ev.Started(LATER, "run", FENCE, key_of("run"), BOOT),
    "running": ev.Beat(LATER, "run", FENCE, (key_of("run"),), phase=Phase.RUNNING),
    "stopping": ev.Beat(LATER, "run", FENCE, (key_of("run"),), phase=Phase.STOPPING),
    "measured": ev.Measured(LATER, "run", FENCE, {GPU: GB}),
    "settled": ev.Recharged(LATER, "run", FENCE, {GPU: GB}, "settled"),
    "overrun": ev.Recharged(LATER, "run", FENCE, {GPU: 3 * GB}, "overrun"),
    "completed": ended(AttemptOutcome.COMPLETED),
    "evicted": ended(AttemptOutcome.EVICTED),
    "not started": ended(AttemptOutcome.NOT_STARTED),
    "released": ev.Released(LATER, "run", GPU),
    "present": ev.Present(LATER, "side"),
    "device seen": ev.DeviceSeen(LATER, board(1)),
    "device forgotten": ev.DeviceForgotten(LATER, GPU),
    "driver seen": ev.DriverSeen(LATER, "550"),
    "locked": ev.Locked(LATER, GPU, "bob", LATER + 60),
    "unlocked": ev.Unlocked(LATER, GPU),
    "drained": ev.DrainChanged(LATER, draining=True),
    "verdict": ev.VerdictChanged(LATER, "run", "fit"),
    "sedimented": ev.Sedimented(
        LATER, Observation(request().family, request().setting, VRAM, GB, complete=True, at=0.0)
    ),
    "forgotten": ev.CalibrationForgotten(LATER, "ada", "eval"),
    "same boot": ev.Restarted(LATER, BOOT),
    "other boot": ev.Restarted(LATER, "another-boot"),
}
