"""Memory of runs that have ended: theirs until it is seen free, or until LINGER_S has passed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    GPU,
    NOW,
    finish,
    gate,
    grant,
    key_of,
    process,
    request,
    sample,
    start,
)
from tests.kit.held import SUPERVISOR, WORKER, after, gone, tree


def lingering(state: GateState, run_id: str = "run") -> int | None:
    """What is still seen of a gone run; None once it is over."""
    left = state.lingering.get((run_id, GPU))
    return left.held_bytes if left else None


def test_what_a_gone_run_held_is_its_own_until_it_is_seen_free() -> None:
    """What the tree last held, less the rise of free since; over when 95 % is back."""
    state = gone("run")
    state = after(state, sample(NOW + 2, free={GPU: 21 * GB}))
    assert lingering(state) == 3 * GB
    assert state.attribution.resources[GPU].external_bytes == 0
    state = after(state, sample(NOW + 3, free={GPU: 24 * GB - 250 * MB}))
    assert lingering(state) == 250 * MB
    assert lingering(after(state, sample(NOW + 4, free={GPU: 24 * GB - 200 * MB}))) is None


def test_what_does_not_come_back_is_external_after_linger_s() -> None:
    """Nobody waits for it for ever."""
    state = gone("run")
    state = after(state, sample(NOW + 30, free={GPU: 20 * GB}))
    assert lingering(state) == 4 * GB
    state = after(state, sample(NOW + 31, free={GPU: 20 * GB}))
    assert lingering(state) is None
    assert (
        after(state, sample(NOW + 32, free={GPU: 20 * GB}))
        .attribution.resources[GPU]
        .external_bytes
        == 4 * GB
    )


def test_no_byte_comes_back_twice() -> None:
    """Of two runs that ended together the first one's memory is back, the other's is not."""
    state = after(gone("a", "b"), sample(NOW + 2, free={GPU: 20 * GB}))
    assert (lingering(state, "a"), lingering(state, "b")) == (None, 4 * GB)
    state = after(state, sample(NOW + 3, free={GPU: 24 * GB}))
    assert lingering(state, "b") is None


def test_what_was_back_before_does_not_count_for_a_later_end() -> None:
    """A run that ends after another one's memory came back waits for its own."""
    state = after(gone("a"), sample(NOW + 2, free={GPU: 24 * GB}))
    state = start(apply(state, [ev.Requested(NOW + 3, request("b"), "side")]), "b", at=NOW + 3)
    rows = {GPU: [(key_of("b").pid, 4 * GB)]}
    held = sample(NOW + 4, lists=rows, processes=tree(run_id="b"), free={GPU: 20 * GB})
    state = after(state, held)
    state = apply(state, [finish(state, "b", at=NOW + 4)])
    assert lingering(after(state, sample(NOW + 5, free={GPU: 20 * GB})), "b") == 4 * GB


def test_memory_that_somebody_else_took_is_not_waited_for() -> None:
    """When all that is in use has an owner, nothing of the gone run is left to see."""
    taken = sample(
        NOW + 2,
        free={GPU: 20 * GB},
        lists={GPU: [(50, 4 * GB)]},
        processes=[process(ProcessKey(50, 5), GB)],
    )
    assert lingering(after(gone("run"), taken)) is None


@pytest.mark.parametrize("survivor", [WORKER, key_of("run", 5)], ids=["named", "younger"])
def test_a_tree_that_still_lives_keeps_its_charge(survivor: ProcessKey) -> None:
    """Whatever its supervisor said: with a process of it in the table the charge stands."""
    state = gone("run")
    table = [process(survivor, 0, SUPERVISOR.pid), process(SUPERVISOR)]
    if survivor != WORKER:  # known by its parent, before any heartbeat named it
        state = gone_with(state, survivor)
    for at in (2, 20, 60):
        rows = {GPU: [(survivor.pid, 4 * GB)]}
        state = after(state, sample(NOW + at, lists=rows, processes=table, free={GPU: 20 * GB}))
    left = state.lingering[("run", GPU)]
    assert left.tree_alive
    assert left.reservation() == 2 * GB
    state = after(state, sample(NOW + 61, free={GPU: 20 * GB}))
    assert state.lingering == {}, "it has been waited for since its end"


def gone_with(state: GateState, survivor: ProcessKey) -> GateState:
    """The same, with a process that the last sample attributed to the run."""
    holders = {**state.attribution.holder_of, survivor: state.attribution.holder_of[WORKER]}
    return replace(state, attribution=replace(state.attribution, holder_of=holders))


def test_the_supervisor_itself_does_not_keep_the_charge() -> None:
    """It says that all others are gone, and waits for an answer before it goes."""
    state = after(
        gone("run"), sample(NOW + 2, processes=[process(SUPERVISOR)], free={GPU: 20 * GB})
    )
    assert not state.lingering[("run", GPU)].tree_alive
    assert state.lingering[("run", GPU)].reservation() == 0


def test_what_one_attempt_left_is_not_the_next_ones() -> None:
    """A run that is granted again begins with nothing held."""
    state = apply(gone("run"), [ev.Requested(NOW + 2, request("other"), "side")])
    assert ("run", GPU) in state.lingering
    again = replace(state, queue=gate(request()).queue, alike=gate(request()).alike)
    again = apply(again, [ev.Granted(NOW + 3, grant(fence=9))])
    assert again.lingering == {}
