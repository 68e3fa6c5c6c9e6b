"""What each run holds by one sample, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Usage
from jupyter_gpugate.core.memory.growth import grown
from jupyter_gpugate.core.memory.holding import observe
from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.samples import ProcessKey, ReaderHealth
from jupyter_gpugate.core.shares import Growth, ResourceAttribution
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
    board,
    finish,
    gate,
    grant,
    key_of,
    process,
    request,
    sample,
    start,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.samples import Process, Sample

SUPERVISOR, WORKER = key_of("run"), key_of("run", 1)
NEVER = 1 << 60


def tree(ram: int = 0, run_id: str = "run") -> list[Process]:
    """A run's supervisor and its worker, which holds so much."""
    return [process(key_of(run_id)), process(key_of(run_id, 1), ram, key_of(run_id).pid)]


def live(charge: int = 10 * GB, **fields: Any) -> GateState:
    """One live run charged so much of the GPU, whose heartbeat named its tree."""
    traits = fields.pop("traits", None)
    charges = {RAM: 4 * GB, GPU: charge}
    state = start(gate(request(**fields), traits=traits), charges=charges)
    return apply(state, [beat(state)])


def seen(at: float, vram: int | None = 0, ram: int = 0, **fields: Any) -> Sample:
    """A sample in which the run's worker holds so much."""
    held = vram or 0
    given = {
        "processes": tree(ram),
        "lists": {GPU: [(WORKER.pid, vram)]},
        "free": {GPU: 24 * GB - held},
        **fields,
    }
    return sample(at, **given)


def after(state: GateState, *samples: Sample) -> GateState:
    """The state after these samples, with all that follows from them applied."""
    for one in samples:
        at = one.devices[0].taken_at
        state, events = observe(state, one, at)
        state = apply(state, events)
    return state


def usage(state: GateState, resource: str = GPU) -> Usage:
    """What the gate has seen of the run on one resource."""
    return state.leases["run"].usage[resource]


def events_of(state: GateState, one: Sample, kind: type) -> list[Any]:
    """The events of one kind that follow from a sample."""
    return [e for e in observe(state, one, one.devices[0].taken_at)[1] if isinstance(e, kind)]


def test_what_a_run_holds_is_read_from_its_processes() -> None:
    """Held, peak and meter follow the sample; a peak stays when the memory goes."""
    state = after(live(), seen(NOW + 1, 3 * GB), seen(NOW + 2, GB))
    assert (usage(state).held_bytes, usage(state).peak_bytes) == (GB, 3 * GB)
    assert usage(state).meter == "nvml"
    assert state.leases["run"].reservation(GPU) == 9 * GB


def test_ram_is_the_smaller_of_report_and_sample() -> None:
    """Copy-on-write counts twice in the table, and a report is as old as it is."""
    state = live()
    state = apply(state, [beat(state, at=NOW + 1, ram=GB)])
    state = after(state, seen(NOW + 2, ram=3 * GB))
    assert (usage(state, RAM).held_bytes, usage(state, RAM).meter) == (GB, "pss")
    state = after(state, seen(NOW + 3, ram=500 * MB))
    assert (usage(state, RAM).held_bytes, usage(state, RAM).meter) == (500 * MB, "statm")


def test_a_report_younger_than_the_sample_does_not_count_yet() -> None:
    """What was released after the sample was taken is not free in it."""
    state = live()
    state = apply(state, [beat(state, at=NOW + 5, ram=GB)])
    assert usage(after(state, seen(NOW + 4, ram=3 * GB)), RAM).held_bytes == 3 * GB
    assert usage(after(state, seen(NOW + 5, ram=3 * GB)), RAM).held_bytes == GB


def test_the_gate_keeps_its_own_sum_whatever_is_reported() -> None:
    """The greatest process and the greatest sum are remembered beside the report."""
    state = live()
    state = apply(state, [beat(state, at=NOW, ram=10 * MB)])
    processes = [process(SUPERVISOR, 12 * MB), process(WORKER, 3 * GB, SUPERVISOR.pid)]
    state = after(state, seen(NOW + 1, processes=processes))
    assert usage(state, RAM).held_bytes == 10 * MB
    assert usage(state, RAM).process_peak_bytes == 3 * GB
    assert usage(state, RAM).summed_peak_bytes == 3 * GB + 12 * MB


def test_a_run_that_no_list_names_holds_nothing() -> None:
    """It is read as 0, and is not taken for one that has begun to use the device."""
    state = after(live(), seen(NOW + 1, lists={GPU: []}))
    assert (usage(state).held_bytes, usage(state).peak_bytes) == (0, 0)
    assert (usage(state).read_at, usage(state).first_used_at) == (NOW + 1, None)


def test_an_end_tells_the_greatest_that_anybody_saw() -> None:
    """Per resource; what was never read is not told as 0."""
    state = apply(live(), [finish(live(), ram_bytes=GB)])
    assert state.ended["run"].peaks == {RAM: GB}
    state = after(live(), seen(NOW + 1, 3 * GB, ram=2 * GB), seen(NOW + 2, GB))
    state = apply(state, [finish(state, ram_bytes=GB, vram_bytes={GPU: 4 * GB})])
    assert state.ended["run"].peaks == {RAM: 2 * GB, GPU: 4 * GB}


def test_a_stretch_without_a_reading_is_known() -> None:
    """The longest gap counts from the start, and a reading that came twice is none."""
    moments = (4, 5, 25, 26)
    state = after(live(), *(seen(NOW + at, GB) for at in moments))
    assert usage(state).longest_gap_s == 20
    assert usage(after(state, seen(NOW + 26, 9 * GB))).held_bytes == GB


def test_a_restart_within_a_run_is_a_stretch_without_a_reading() -> None:
    """What was seen before is not known any more: the gap counts from the run's start."""
    fresh = live()
    state = apply(fresh, [ev.Measured(NOW + 90, "run", 1, {GPU: 5 * GB})])
    state = after(state, seen(NOW + 100, 2 * GB))
    assert usage(state).longest_gap_s == 100
    assert usage(state).peak_bytes == 5 * GB


def test_a_sample_from_before_the_start_shows_nothing_of_the_run() -> None:
    """A list that was taken before the run started says nothing about it."""
    assert usage(after(live(), seen(NOW - 1, GB))).read_at is None


# -- bytes that nobody tells ----------------------------------------------------------------------


def test_unknown_bytes_are_the_runs_own_report() -> None:
    """Up to its charge; and such a reading is none for a peak."""
    state = live(charge=4 * GB)
    state = apply(state, [beat(state, vram={GPU: 3 * GB})])
    state = after(state, seen(NOW + 1, None, free={GPU: 20 * GB}))
    assert (usage(state).held_bytes, usage(state).meter) == (3 * GB, "report")
    assert (usage(state).peak_bytes, usage(state).read_at) == (0, None)
    shares = state.attribution.resources[GPU]
    assert (
        shares.attributed_bytes + shares.external_bytes - shares.overlap_bytes == shares.used_bytes
    )
    state = apply(state, [beat(state, vram={GPU: 9 * GB})])
    assert usage(after(state, seen(NOW + 2, None))).held_bytes == 4 * GB


def test_without_a_report_the_fall_of_free_is_shared() -> None:
    """What has gone since the grant is split among the runs granted since, up to each charge."""
    state = after(gate(request(), request("other")), sample(NOW - 1))
    state = start(start(state, "run"), "other", at=NOW + 1)
    tables = [*tree(), *tree(run_id="other")]
    hidden = sample(NOW + 2, free={GPU: 21 * GB}, lists={GPU: None}, processes=tables)
    state = after(state, hidden)
    assert usage(state).meter == "by_delta"
    assert usage(state).held_bytes == (24 - 21) * GB // 2
    assert (
        state.leases["other"].usage[GPU].held_bytes == 2 * GB
    )  # its charge; it shares with nobody


def test_without_a_process_table_ram_is_shared_the_same_way() -> None:
    """Two runs are not both credited with the whole fall of free RAM."""
    state = after(gate(request(), request("other")), sample(NOW - 1))
    charges = {RAM: 8 * GB, GPU: GB}
    state = start(start(state, "run", charges=charges), "other", charges=charges)
    state = after(state, sample(NOW + 1, ram=50 * GB, processes=()))
    assert usage(state, RAM).held_bytes == 5 * GB
    assert state.leases["other"].usage[RAM].held_bytes == 5 * GB
    state = apply(state, [beat(state, ram=3 * GB)])
    state = after(state, sample(NOW + 2, ram=50 * GB, processes=()))
    assert (usage(state, RAM).held_bytes, usage(state, RAM).meter) == (3 * GB, "report")


def test_a_context_is_what_the_driver_shows_beyond_the_report() -> None:
    """The least difference counts, since a report is older than the sample beside it."""
    state = live()
    for at, reported, held in ((1, GB, 4 * GB), (2, 4 * GB, 4 * GB + 300 * MB), (3, GB, 2 * GB)):
        state = apply(state, [beat(state, at=NOW + at, vram={GPU: reported})])
        state = after(state, seen(NOW + at, held))
    assert usage(state).overhead_bytes == 300 * MB


def test_memory_on_a_device_it_was_not_given_is_charged_there() -> None:
    """It is measured where it is, and at once charged there as an overrun."""
    boards = [board(0), board(1)]
    state = start(gate(request(), boards=boards), charges={RAM: GB, GPU: GB})
    elsewhere = sample(
        NOW + 1, boards=boards, lists={"GPU-1": [(WORKER.pid, GB)]}, processes=tree()
    )
    state = after(state, elsewhere)
    assert state.leases["run"].held("GPU-1") == GB
    assert state.leases["run"].charges["GPU-1"] == int(1.25 * GB)


def test_runs_that_share_a_device_are_neighbours() -> None:
    """The most that there ever were is kept for the observation."""
    state = start(start(gate(request(), request("other")), "run"), "other")
    state = after(state, sample(NOW + 1, processes=tree()))
    state = apply(state, [finish(state, "other")])
    live = after(state, sample(NOW + 2, processes=tree())).leases["run"].live
    assert live is not None
    assert live.measured.neighbours == 1


# -- peaks, overruns, settling --------------------------------------------------------------------


def test_a_peak_is_kept_for_a_restart_when_it_has_grown_notably() -> None:
    """By 16 MB or 2 %, whichever is more; not every byte is written down."""
    state = after(live(), seen(NOW + 1, GB))
    assert usage(state).journalled_peak_bytes == GB
    assert events_of(state, seen(NOW + 2, GB + 20 * MB), ev.Measured) == []
    (measured,) = events_of(state, seen(NOW + 2, GB + 21 * MB), ev.Measured)
    assert measured.peaks == {GPU: GB + 21 * MB}
    small = after(live(), seen(NOW + 1, 100 * MB))
    assert events_of(small, seen(NOW + 2, 116 * MB), ev.Measured) == []
    assert len(events_of(small, seen(NOW + 2, 116 * MB + 1), ev.Measured)) == 1


def test_an_overrun_is_charged_at_once_within_the_device() -> None:
    """1.25 times what is held, but never more than there is."""
    (event,) = events_of(live(charge=GB), seen(NOW + 1, 4 * GB), ev.Recharged)
    assert (event.reason, event.charges) == ("overrun", {GPU: 5 * GB})
    (event,) = events_of(live(charge=GB), seen(NOW + 1, 20 * GB), ev.Recharged)
    assert event.charges == {GPU: 24 * GB}


def watched(episodes: int = 100, **fields: Any) -> GateState:
    """A live run that nothing was known of, charged 12 GB."""
    state = live(charge=12 * GB, episodes=episodes, **fields)
    lease = state.leases["run"]
    basis = dict.fromkeys(lease.charges, Basis.WATCH)
    return replace(state, leases={"run": replace(lease, terms=replace(lease.terms, basis=basis))})


def settles(state: GateState, *moments: tuple[float, int, int]) -> list[float]:
    """When the GPU's charge settles, given (seconds, bytes held, episodes done)."""
    found = []
    for at, held, episodes in moments:
        state = apply(state, [beat(state, at=NOW + at, episode=episodes)])
        one = seen(NOW + at, held)
        state, events = observe(state, one, NOW + at)
        state = apply(state, events)
        if any(isinstance(e, ev.Recharged) and GPU in e.charges for e in events):
            found.append(at)
    return found


def test_a_watched_run_settles_after_a_whole_episode_and_a_minute_without_a_rise() -> None:
    """Two more episodes than at its first use: the one under way then was no whole one."""
    steady = [(10 * n, 2 * GB, n // 3) for n in range(1, 15)]
    assert settles(watched(), *steady) == [70]  # 60 s after the first use at 10
    slow = [(10 * n, 2 * GB, n // 12) for n in range(1, 40)]
    assert settles(watched(), *slow)[0] == 240  # the second whole episode


def test_a_rising_peak_puts_settling_off() -> None:
    """The minute counts from the last rise, and from the longest episode if that is longer."""
    rising = [(10 * n, min(n, 9) * GB // 2, n // 3) for n in range(1, 40)]
    assert settles(watched(), *rising) == [150]
    late = [(10 * n, (1 if n < 24 else 2) * GB, n // 12) for n in range(1, 60)]
    assert settles(watched(), *late) == [360]  # an episode lasts 120 s; the last rise is at 240


def test_zero_use_never_settles() -> None:
    """A run that has not begun to use the GPU has shown nothing."""
    assert settles(watched(), *[(10 * n, 0, n) for n in range(1, 100)]) == []


def test_without_episodes_settling_takes_ten_minutes() -> None:
    """A program that counts nothing is left alone until its peak has stood for long."""
    assert settles(watched(episodes=1), *[(10 * n, GB, 0) for n in range(1, 90)]) == [610]


def test_a_settled_charge_only_falls() -> None:
    """1.25 times the peak and 256 MB, never above the charge it has."""
    state = watched(episodes=1, traits=Traits(settle_unmoved_s=5))
    state = after(state, seen(NOW + 1, 2 * GB), seen(NOW + 7, 2 * GB))
    assert state.leases["run"].charges[GPU] == int(2.5 * GB) + 256 * MB
    assert state.leases["run"].terms.caps[GPU] == 12 * GB
    full = watched(episodes=1, traits=Traits(settle_unmoved_s=5))
    full = after(full, seen(NOW + 1, 11 * GB), seen(NOW + 7, 11 * GB))
    assert full.leases["run"].charges[GPU] == 12 * GB


def test_an_overrun_settles_like_a_watched_run() -> None:
    """Counted from the overrun, whatever rung it was admitted by."""
    state = live(charge=GB, episodes=1, traits=Traits(settle_unmoved_s=5))
    state = after(state, seen(NOW + 1, 4 * GB))
    assert usage(state).overrun_at == NOW + 1
    state = after(state, seen(NOW + 3, 4 * GB), seen(NOW + 7, 4 * GB))
    assert usage(state).overrun_at is None
    assert state.leases["run"].charges[GPU] == 5 * GB


# -- what others do -------------------------------------------------------------------------------


def others(held: int) -> ResourceAttribution:
    """A device on which nobody of ours is."""
    return ResourceAttribution(GPU, held, {}, held, 0)


def test_the_fastest_growth_of_others_is_remembered_for_ten_minutes() -> None:
    """Within any minute; slow growth is small, and old growth is forgotten."""
    growth = Growth()
    for second in range(0, 400, 10):
        growth = grown(growth, others(second * 10 * MB), float(second))
    assert max(rise for _, rise in growth.rises) == 600 * MB
    growth = grown(growth, others(NEVER), 2000.0)
    assert growth.rises == ((2000.0, 0),)


def test_a_reading_that_is_known_already_makes_nothing_grow() -> None:
    """While the reader hangs the last reading comes again and again."""
    growth = grown(Growth(), others(GB), 10.0)
    assert grown(growth, others(GB), 10.0) is growth


def test_a_run_whose_bytes_nobody_tells_is_not_taken_for_others() -> None:
    """Its memory must not raise the floor."""
    state = after(live(), sample(NOW + 1, processes=tree()))
    state = after(state, seen(NOW + 2, None, free={GPU: 10 * GB}))
    assert [rise for _, rise in state.growth[GPU].rises] == [0]


def test_a_new_device_and_a_new_driver_are_noticed() -> None:
    """Both change what runs need, so both are events."""
    one = sample(NOW, boards=[board(0), board(1)])
    health = ReaderHealth("gpu", True, NOW, detail={"driver": "550.54.15"})
    events = observe(gate(), replace(one, readers=(health,)), NOW)[1]
    assert events == (ev.DriverSeen(NOW, "550"), ev.DeviceSeen(NOW, board(1)))


def test_utilisation_that_cannot_be_read_is_not_idle() -> None:
    """A device that does not tell is left out of the means."""
    one = sample(NOW)
    busy = replace(one, devices=(replace(one.devices[0], utilisation=1.0),))
    state = after(gate(), busy)
    assert state.utilisation == {GPU: 1.0}
    assert after(state, sample(NOW + 1)).utilisation == {}


# -- memory of runs that are gone -----------------------------------------------------------------


def gone(*run_ids: str, held: int = 4 * GB) -> GateState:
    """Runs that each held so much of the GPU at the last sample, and ended after it."""
    state = gate(*(request(run_id) for run_id in run_ids))
    for run_id in run_ids:
        state = start(state, run_id, charges={RAM: GB, GPU: 6 * GB})
        state = apply(state, [beat(state, run_id)])
    rows = [(key_of(run_id, 1).pid, held) for run_id in run_ids]
    table = [row for run_id in run_ids for row in tree(run_id=run_id)]
    free = {GPU: 24 * GB - held * len(run_ids)}
    state = after(state, sample(NOW + 1, lists={GPU: rows}, processes=table, free=free))
    return apply(state, [finish(state, run_id, at=NOW + 1) for run_id in run_ids])


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
    again = replace(state, queue=gate(request()).queue, groups=gate(request()).groups)
    again = apply(again, [ev.Granted(NOW + 3, grant(fence=9))])
    assert again.lingering == {}
