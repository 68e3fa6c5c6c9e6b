"""Reports of supervisors: peaks, contexts, episodes and stretches without a reading."""

from __future__ import annotations

from dataclasses import replace

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Reported
from jupyter_gpugate.core.reports import (
    RunReport,
)
from jupyter_gpugate.core.resources import (
    GB,
    MB,
)
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
    board,
    finish,
    gate,
    request,
    start,
    using,
)
from tests.kit.transitions import EVENTS, FENCE, LATER, made


def test_reports_only_ever_raise_a_peak() -> None:
    """A later, smaller report lowers no peak, and the gate's own peaks survive a restart."""
    state = made("running")
    state = apply(state, [EVENTS["measured"], ev.Measured(LATER, "run", FENCE, {GPU: MB})])
    assert state.leases["run"].usage[GPU].peak_bytes == GB


def reported(state: GateState) -> Reported:
    """The heartbeats of the run."""
    live = state.leases["run"].live
    assert live is not None
    return live.reported


def longest_episode_s(*episodes: tuple[float, int], workers: int = 1) -> float:
    """The longest episode of a run whose heartbeats told of so many at these moments."""
    state = start(gate(request(workers=workers, episodes=100)))
    beats = [beat(state, at=NOW + after, episode=done) for after, done in episodes]
    return reported(apply(state, beats)).longest_episode_s


def test_the_longest_episode_is_known_however_many_workers_share_them() -> None:
    """Workers that finish in turn or together have episodes of the same length."""
    assert longest_episode_s((10, 1), (40, 2), (50, 3)) == 30
    assert longest_episode_s((30, 1), (60, 2), (90, 3), workers=2) == 60
    assert longest_episode_s((60, 2), (120, 4), workers=2) == 60


def test_a_context_costs_what_the_driver_shows_beyond_the_frameworks_own_memory() -> None:
    """The least difference that a run showed is what each of its workers' contexts cost."""
    state = start(gate(request(workers=2)))
    lease = state.leases["run"]
    usage = {**lease.usage, GPU: replace(lease.usage[GPU], overhead_bytes=1000 * MB)}
    state = replace(state, leases={"run": using(lease, usage)})
    assert apply(state, [finish(state)]).device_overhead == {board().model: 500 * MB}


def test_an_absurd_context_is_not_believed() -> None:
    """A run that starts another GPU program has shown nothing about contexts: one costs 64 MB to
    2 GB.
    """
    state = start(gate(request()))
    lease = state.leases["run"]
    for size, learned in (
        (2 * GB + 1, {}),
        (2 * GB, {board().model: 2 * GB}),
        (64 * MB, {board().model: 64 * MB}),
        (64 * MB - 1, {}),
    ):
        usage = {**lease.usage, GPU: replace(lease.usage[GPU], overhead_bytes=size)}
        seen = replace(state, leases={"run": using(lease, usage)})
        assert apply(seen, [finish(seen)]).device_overhead == learned


def test_a_report_tells_how_long_its_supervisor_went_without_a_reading() -> None:
    """The greatest age of a report is the longest stretch that nobody looked."""
    state = start(gate(request()))
    ages = [(1.0, GB), (20.0, GB), (2.0, GB), (1e9, None)]
    beats = [beat(state, at=LATER, ram=held, ram_age_s=age) for age, held in ages]
    assert reported(apply(state, beats)).report_gap_s == 20.0
    assert reported(apply(state, beats)).report == RunReport(ram_age_s=1e9)
