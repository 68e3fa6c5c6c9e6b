"""Memory of a run that no process shows as its own is counted once, and gone when it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.memory.attribution import HUGE_PAGES, SHARED_MEMORY
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.shares import ResourceAttribution
from tests.kit.core_builders import NOW, beat, gate, key_of, process, request, sample, start

if TYPE_CHECKING:
    from jupyter_gpugate.core.samples import Sample
    from jupyter_gpugate.core.state import GateState

TOTAL = 64 * GB


def live(*run_ids: str) -> GateState:
    """Live runs, each charged 1 GB of RAM."""
    state = gate(*(request(run_id, gpus=0) for run_id in run_ids))
    for run_id in run_ids:
        state = start(state, run_id, charges={RAM: GB})
    return state


def seen(at: float, *run_ids: str, used: int = 2000, **fields: Any) -> Sample:
    """A sample in which each run's worker has 22 MB of its own; ``used`` in MB."""
    tree = [process(key_of(run_id)) for run_id in run_ids]
    tree += [process(key_of(run_id, 1), 22 * MB, key_of(run_id).pid) for run_id in run_ids]
    return sample(at, ram=TOTAL - used * MB, processes=(process(key_of("init")), *tree), **fields)


def after(state: GateState, *samples: Sample) -> GateState:
    """The state after these samples."""
    for one in samples:
        assert one.ram
        state, events = apply_sample(state, one, one.ram.taken_at)
        state = apply(state, events)
    return state


def reported(state: GateState, at: float, **shared: int) -> GateState:
    """The state after a report of each run: 22 MB, and so much shared memory in MB."""
    beats = [
        beat(state, run_id, at=at, ram=(22 + mb) * MB, shared=mb * MB)
        for run_id, mb in shared.items()
    ]
    return apply(state, beats)


def ram(state: GateState) -> ResourceAttribution:
    """The attribution of RAM, whose arithmetic holds."""
    shares = state.attribution.resources[RAM]
    left = shares.attributed_bytes + shares.external_bytes - shares.overlap_bytes
    assert left == shares.used_bytes
    assert sum(row.held_bytes or 0 for row in shares.external) == shares.external_bytes
    return shares


def held(state: GateState, run_id: str = "run") -> int:
    """What a run holds of RAM, in MB."""
    return state.leases[run_id].held(RAM) // MB


def test_what_a_run_shares_is_held_and_not_reserved_again() -> None:
    """Mapped shared memory and files in memory are out of what is free: the rest is reserved."""
    state = reported(live("run"), NOW, run=400)
    state = after(state, seen(NOW + 1, "run", unmovable=450 * MB))
    assert held(state) == 422
    assert state.leases["run"].reservation(RAM) == GB - 422 * MB
    rows = {row.note: row.held_bytes for row in ram(state).external if not row.pid}
    assert rows[SHARED_MEMORY] == 50 * MB


def test_what_is_gone_counts_before_the_next_report() -> None:
    """An exit or a deleted file lowers what is held as soon as a sample shows it."""
    state = reported(live("run"), NOW, run=400)
    state = after(state, seen(NOW + 1, "run", unmovable=450 * MB))
    state = after(state, seen(NOW + 2, "run", unmovable=150 * MB))
    assert held(state) == 122
    state = reported(state, NOW + 2.5, run=390)
    assert held(after(state, seen(NOW + 3, "run", unmovable=440 * MB))) == 412


def test_what_went_while_the_report_was_made_is_not_held() -> None:
    """A fall between the two samples around a report may be of what it tells."""
    state = after(live("run"), seen(NOW + 1, "run", unmovable=500 * MB))
    state = reported(state, NOW + 1.5, run=400)
    assert held(after(state, seen(NOW + 2, "run", unmovable=200 * MB))) == 122


def test_of_several_runs_none_keeps_what_is_gone() -> None:
    """Whose it was is not known, so it is taken off each: too little held is reserved instead."""
    state = reported(live("a", "b"), NOW, a=300, b=300)
    state = after(state, seen(NOW + 1, "a", "b", unmovable=600 * MB))
    assert (held(state, "a"), held(state, "b")) == (322, 322)
    state = after(state, seen(NOW + 2, "a", "b", unmovable=400 * MB))
    assert (held(state, "a"), held(state, "b")) == (122, 122)
    ram(state)


def test_a_report_never_exceeds_what_is_unexplained() -> None:
    """More than the machine has in use cannot be a run's."""
    state = reported(live("run"), NOW, run=900)
    state = after(state, seen(NOW + 1, "run", used=500, unmovable=900 * MB))
    assert held(state) == 500
    assert ram(state).external_bytes == 0


def test_a_run_without_a_process_shares_nothing() -> None:
    """What a gone tree has left in memory is no live run's."""
    state = reported(live("run"), NOW, run=400)
    state = after(state, seen(NOW + 1, unmovable=450 * MB))
    assert held(state) == 0


@pytest.mark.parametrize(
    ("used", "rows"),
    [
        (2000, {HUGE_PAGES: 700, SHARED_MEMORY: 300, "unlisted": 1000}),
        (800, {HUGE_PAGES: 700, SHARED_MEMORY: 100}),
        (100, {HUGE_PAGES: 100}),
    ],
)
def test_what_no_process_accounts_for_is_named(used: int, rows: dict[str, int]) -> None:
    """A pool of huge pages and shared memory have rows of their own; the rest is unlisted."""
    state = after(gate(), seen(NOW, used=used, unmovable=300 * MB, huge_pool=700 * MB))
    told = {row.note: (row.held_bytes or 0) // MB for row in ram(state).external}
    assert told == rows
