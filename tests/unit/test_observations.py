"""What an attempt that ends has taught: peaks, lower bounds, and where memory ran out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.learning.observations import sedimented
from jupyter_gpugate.core.leases import Usage
from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.requests import Basis, Enforcement
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    VRAM,
)
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import GPU, NOW, beat, board, finish, gate, request, start, using
from tests.kit.estimates import term

if TYPE_CHECKING:
    from jupyter_gpugate.core.requests import Request

END = NOW + 100


def live(asked: Request | None = None, **usage: Any) -> GateState:
    """A live run whose GPU usage is ``usage``; all was read a second before its end."""
    state = start(gate(asked or request()), charges={RAM: 4 * GB, GPU: 12 * GB})
    gpu = {"read_at": END - 1, "peak_bytes": 5 * GB, **usage}
    ram = Usage(read_at=END - 1, peak_bytes=GB)
    return with_usage(state, **{GPU: Usage(**gpu), RAM: ram})


def with_usage(state: GateState, **usage: Usage) -> GateState:
    """The state with other usage of the run's resources."""
    lease = state.leases["run"]
    return replace(state, leases={"run": using(lease, {**lease.usage, **usage})})


def taught(state: GateState, **end: Any) -> dict[str, Observation]:
    """The observations by kind of resource."""
    event = finish(state, at=END, **end)
    return {s.observation.resource: s.observation for s in sedimented(state, event, 77.0)}


def test_a_whole_run_teaches_its_peaks() -> None:
    """Both resources, with what they were charged, how long it took and who it was."""
    lessons = taught(live(), duration_s=100.0)
    vram = lessons[VRAM]
    assert (vram.peak_bytes, vram.complete, vram.charge_bytes) == (5 * GB, True, 12 * GB)
    assert (vram.at, vram.duration_s, vram.run_id) == (77.0, 100.0, "run")
    assert vram.setting.device_model == board().model
    assert lessons[RAM].setting.device_model is None
    assert lessons[RAM].peak_bytes == GB


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_only_what_completed_is_complete(outcome: AttemptOutcome) -> None:
    """Every other end is a lower bound, and one without user code teaches nothing."""
    lessons = taught(live(), outcome=outcome)
    if outcome is AttemptOutcome.NOT_STARTED:
        assert lessons == {}
    else:
        assert lessons[VRAM].complete is (outcome is AttemptOutcome.COMPLETED)


def test_fewer_episodes_than_asked_are_a_lower_bound() -> None:
    """A cell has to have done them all; a program counts as done by its exit."""
    cell, program = request(episodes=10), request(episodes=10, kind="program")
    assert not taught(live(cell), episodes_done=9)[VRAM].complete
    assert taught(live(cell), episodes_done=10)[VRAM].complete
    assert taught(live(program), episodes_done=1)[VRAM].complete


@pytest.mark.parametrize(
    ("usage", "complete"),
    [
        ({"longest_gap_s": 15.0}, True),
        ({"longest_gap_s": 15.1}, False),
        ({"read_at": END - 15}, True),
        ({"read_at": END - 16}, False),
    ],
)
def test_a_long_stretch_without_a_reading_is_a_lower_bound(
    usage: dict[str, Any], complete: bool
) -> None:
    """15 s at most, the stretch before the end included."""
    assert taught(live(**usage))[VRAM].complete is complete


def test_a_high_water_mark_covers_any_stretch() -> None:
    """The framework's own peak stands for what nobody saw, where it speaks of that device."""
    gap = live(longest_gap_s=60.0)
    assert taught(gap, vram_bytes={GPU: 6 * GB}, vram_covered=True)[VRAM].complete
    assert not taught(gap, vram_bytes={GPU: 6 * GB}, vram_covered=False)[VRAM].complete
    assert not taught(gap, vram_bytes={}, vram_covered=True)[VRAM].complete


def test_a_framework_raises_the_peak_by_what_it_reports_and_its_contexts() -> None:
    """What torch reserved at its greatest, and what the driver needs beside it."""
    state = live(overhead_bytes=500 * MB)
    assert taught(state, vram_bytes={GPU: 6 * GB})[VRAM].peak_bytes == 6 * GB + 500 * MB
    assert taught(state, vram_bytes={GPU: GB})[VRAM].peak_bytes == 5 * GB
    assert taught(state, vram_bytes={GPU: 24 * GB})[VRAM].peak_bytes == 24 * GB
    known = replace(live(request(workers=2)), device_overhead={board().model: 400 * MB})
    assert taught(known, vram_bytes={GPU: 6 * GB})[VRAM].peak_bytes == 6 * GB + 800 * MB


def test_a_supervisor_that_died_is_remembered_by_its_heartbeats() -> None:
    """Peaks that it told while it lived count when nobody tells the end."""
    state = live()
    peaks = finish(state, ram_bytes=3 * GB, ram_meter="pss", vram_bytes={GPU: 7 * GB}).end.peaks
    state = apply(state, [beat(state, peaks=peaks)])
    lessons = taught(state, outcome=AttemptOutcome.LOST)
    assert (lessons[VRAM].peak_bytes, lessons[RAM].peak_bytes) == (7 * GB, 3 * GB)
    assert not lessons[VRAM].complete


def test_an_attempt_too_short_for_a_reading_teaches_nothing_of_it() -> None:
    """No list was taken after its start: its GPU need is as unknown as before."""
    assert VRAM not in taught(live(read_at=None, peak_bytes=0))
    without = start(gate(request(gpus=0)), charges={RAM: GB})
    assert list(taught(without, ram_bytes=GB, ram_meter="pss")) == [RAM]


def test_a_use_of_zero_is_a_real_zero() -> None:
    """A run that was watched and used nothing has shown that it needs nothing."""
    vram = taught(live(peak_bytes=0))[VRAM]
    assert (vram.peak_bytes, vram.complete) == (0, True)


# -- RAM ------------------------------------------------------------------------------------------


def ram_of(usage: Usage, report_gap_s: float = 0.0, **end: Any) -> Observation:
    """What is taught of RAM where the gate saw this."""
    state = with_usage(live(), ram=usage)
    lease = state.leases["run"]
    assert lease.live is not None
    reported = replace(lease.live.reported, report_gap_s=report_gap_s)
    lease = replace(lease, stage=replace(lease.live, reported=reported))
    return taught(replace(state, leases={"run": lease}), **end)[RAM]


def test_a_supervisors_peak_is_taken_unless_one_process_held_more() -> None:
    """A report below what the gate saw of a single process is not believed: its own sum counts."""
    usage = Usage(
        read_at=END - 1, peak_bytes=MB, process_peak_bytes=2 * GB, summed_peak_bytes=5 * GB
    )
    assert ram_of(usage, ram_bytes=2 * GB, ram_meter="pss").peak_bytes == 2 * GB
    assert ram_of(usage, ram_bytes=2 * GB - 1, ram_meter="pss").peak_bytes == 5 * GB
    assert ram_of(usage).peak_bytes == 5 * GB


def test_a_supervisor_that_did_not_look_for_long_has_seen_a_lower_bound() -> None:
    """Its own longest stretch counts, and a high-water mark covers it."""
    usage = Usage(read_at=END - 1, longest_gap_s=99.0)
    told: dict[str, Any] = {"ram_bytes": GB, "ram_meter": "pss"}
    assert ram_of(usage, 15.0, **told).complete, "the gate's own gaps do not matter here"
    assert not ram_of(usage, 15.1, **told).complete
    assert ram_of(usage, 60.0, ram_covered=True, **told).complete


# -- out of memory --------------------------------------------------------------------------------


def oom(state: GateState, evidence: str, resource: str = "vram", **end: Any) -> Observation:
    """What running out of memory teaches of the GPU."""
    found = {"oom_resource": resource, "oom_evidence": evidence, **end}
    return taught(state, outcome=AttemptOutcome.OOM, **found)[VRAM]


def test_under_its_own_cap_it_ran_out_at_all_that_the_cap_allowed() -> None:
    """However little was seen: it had up to its charge, and asked for more."""
    assert oom(live(), "own_cap").oom_at_bytes == 12 * GB
    assert oom(live(), "own_cap").peak_bytes == 5 * GB


def test_on_a_full_device_it_ran_out_at_what_it_held() -> None:
    """Others had the rest: its charge says nothing."""
    assert oom(live(), "device_full").oom_at_bytes == 5 * GB


def test_running_out_of_ram_says_nothing_of_the_gpu() -> None:
    """The other resource keeps its lower bound and no more."""
    assert oom(live(), "host_oom_killer", "ram").oom_at_bytes is None


def test_running_out_at_once_is_known_all_the_same() -> None:
    """Before any reading: the next run must not be given the same again."""
    state = live(read_at=None, peak_bytes=0)
    assert oom(state, "own_cap").oom_at_bytes == 12 * GB
    event = finish(state, outcome=AttemptOutcome.OOM, oom_resource="vram", oom_evidence="own_cap")
    lessons = sedimented(state, event, 0.0)
    after = apply(state, [event, *lessons, ev.Requested(END, request("next", vram=None), "side")])
    charge = after.queue["next"].needs.on(board().model)
    assert charge.lower_bound_bytes == 12 * GB


def test_a_cap_that_sufficed_is_told_as_the_charge() -> None:
    """The cap binds the framework; with its contexts that is what the run could take."""
    state = live()
    lease = state.leases["run"]
    lease = replace(lease, terms=replace(lease.terms, caps={GPU: 11 * GB}))
    state = replace(state, leases={"run": lease})
    vram = taught(state)[VRAM]
    assert (vram.cap_bytes, vram.enforcement) == (12 * GB, Enforcement.ENFORCED)
    assert taught(state)[RAM].enforcement is Enforcement.NONE


def test_an_old_end_teaches_nothing() -> None:
    """Neither an old fence nor a run that is gone, nor any other event."""
    state = live()
    event = finish(state, at=END)
    assert sedimented(state, replace(event, fence=99), 0.0) == ()
    assert sedimented(gate(), event, 0.0) == ()
    assert sedimented(state, ev.Present(END, "side"), 0.0) == ()


def test_several_devices_teach_their_greatest_peak() -> None:
    """A need is per device: the one that held most speaks, and a gap on any of them counts."""
    boards = [board(0), board(1)]
    state = start(gate(request(gpus=2), boards=boards), charges={RAM: GB, "GPU-0": GB, "GPU-1": GB})
    seen = Usage(read_at=END - 1, peak_bytes=GB)
    more = Usage(read_at=END - 1, peak_bytes=3 * GB, longest_gap_s=20.0)
    state = with_usage(state, **{"GPU-0": seen, "GPU-1": more})
    vram = taught(state)[VRAM]
    assert (vram.peak_bytes, vram.complete) == (3 * GB, False)


def watched(cap: int, **usage: Any) -> GateState:
    """A live first run that was charged 12 GB, and given a cap of so much after a wider one."""
    state = live(**usage)
    lease = state.leases["run"]
    basis = dict.fromkeys(lease.charges, Basis.WATCH)
    lease = replace(lease, terms=replace(lease.terms, basis=basis))
    lease = replace(lease, caps={GPU: cap}, widest_caps={GPU: 20 * GB})
    return replace(state, leases={"run": lease})


def test_the_cap_that_sufficed_a_first_run_is_the_widest_it_had() -> None:
    """A cap that fell in the end has not been proven for the whole of the run."""
    lesson = taught(watched(14 * GB))[VRAM]
    assert (lesson.charge_bytes, lesson.cap_bytes) == (12 * GB, 20 * GB)
    state = replace(watched(14 * GB), device_overhead={board().model: 300 * MB})
    assert taught(state)[VRAM].cap_bytes == 20 * GB + 300 * MB  # with its context


def test_a_first_run_ran_out_at_the_cap_in_force() -> None:
    """Not at its charge, which bound nothing, nor at a cap that it no longer had."""
    end = {"outcome": AttemptOutcome.OOM, "oom_resource": VRAM, "oom_evidence": "own_cap"}
    assert taught(watched(14 * GB), **end)[VRAM].oom_at_bytes == 14 * GB


def test_a_first_run_fills_what_it_is_given_where_it_fills_its_cap() -> None:
    """A peak near the charge, which did not bind, is a need like any other."""
    at_charge = taught(watched(20 * GB, peak_bytes=12 * GB - MB))[VRAM]
    assert term([at_charge], at_charge.setting, family=at_charge.family).margin_bytes > GB
    at_cap = taught(watched(20 * GB, peak_bytes=20 * GB - MB))[VRAM]
    assert term([at_cap], at_cap.setting, family=at_cap.family).margin_bytes == 0


def test_memory_on_a_device_that_was_not_given_is_needed_all_the_same() -> None:
    """A program that ignores its mask teaches what it held, wherever that was."""
    strays = with_usage(live(peak_bytes=0), **{"GPU-9": Usage(read_at=END - 1, peak_bytes=3 * GB)})
    assert taught(strays)[VRAM].peak_bytes == 3 * GB
    without = start(gate(request(gpus=0)), charges={RAM: 4 * GB})
    without = with_usage(without, **{"GPU-9": Usage(read_at=END - 1, peak_bytes=3 * GB)})
    assert VRAM not in taught(without)
