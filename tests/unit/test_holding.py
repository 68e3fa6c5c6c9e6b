"""What each run holds by one sample, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.memory.growth import grown
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.samples import ReaderHealth
from jupyter_gpugate.core.shares import Growth
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
    board,
    finish,
    gate,
    process,
    request,
    sample,
    start,
)
from tests.kit.held import SUPERVISOR, WORKER, after, live, others, seen, tree, usage

if TYPE_CHECKING:
    from jupyter_gpugate.core.samples import Sample


NEVER = 1 << 60


def events_of(state: GateState, one: Sample, kind: type) -> list[Any]:
    """The events of one kind that follow from a sample."""
    return [e for e in apply_sample(state, one, one.devices[0].taken_at)[1] if isinstance(e, kind)]


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
    events = apply_sample(gate(), replace(one, readers=(health,)), NOW)[1]
    assert events == (ev.DriverSeen(NOW, "550"), ev.DeviceSeen(NOW, board(1)))


def test_utilisation_that_cannot_be_read_is_not_idle() -> None:
    """A device that does not tell is left out of the means."""
    one = sample(NOW)
    busy = replace(one, devices=(replace(one.devices[0], utilisation=1.0),))
    state = after(gate(), busy)
    assert state.utilisation == {GPU: 1.0}
    assert after(state, sample(NOW + 1)).utilisation == {}
