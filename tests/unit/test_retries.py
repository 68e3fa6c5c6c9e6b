"""Runs that ran out of memory: which are tried again, and with how much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.retries import with_retry
from jupyter_gpugate.core.learning.observations import sedimented
from jupyter_gpugate.core.leases import Usage
from jupyter_gpugate.core.memory.settling import settling_events
from jupyter_gpugate.core.reports import AttemptOutcome, RunEnd
from jupyter_gpugate.core.requests import Basis, Retry, RetryCause
from jupyter_gpugate.core.resources import GB, MB, RAM, VRAM
from jupyter_gpugate.core.samples import ProcessKey, Sample
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
    finish,
    gate,
    key_of,
    process,
    request,
    sample,
    start,
    using,
)
from tests.kit.held import after

END = NOW + 30
OOM: dict[str, Any] = {"outcome": AttemptOutcome.OOM, "oom_resource": VRAM}
OWN_CAP = {**OOM, "oom_evidence": "own_cap"}
DEVICE_FULL = {**OOM, "oom_evidence": "device_full"}
FAILED: dict[str, Any] = {"outcome": AttemptOutcome.FAILED, "reason": "exit 1", "exit_code": 1}
OTHER = ProcessKey(77, 7)


def live(charge: int = 4 * GB, peak: int = 3 * GB, **fields: Any) -> GateState:
    """A live run, and one that waits behind it; it was charged so much and has held so much."""
    basis = fields.pop("basis", Basis.CALIBRATED)
    caps = {GPU: fields.pop("cap", charge)}
    state = gate(request(**fields), request("later"))
    charges = {RAM: GB, GPU: charge}
    state = start(state, charges=charges, caps=caps, basis=dict.fromkeys(charges, basis))
    state = apply(state, [beat(state)])
    lease = state.leases["run"]
    usage = Usage(held_bytes=peak, peak_bytes=peak, read_at=END - 1, peak_moved_at=NOW)
    leases = {"run": using(lease, {**lease.usage, GPU: usage})}
    return replace(state, leases=leases)


def retry_of(state: GateState, seen: Sample | None = None, **end: Any) -> Retry | None:
    """The retry of a run that ends so."""
    return with_retry(state, finish(state, at=END, **end), seen).retry


def ended(state: GateState, seen: Sample | None = None, **end: Any) -> GateState:
    """The state after an end, with what it has taught."""
    event = with_retry(state, finish(state, at=END, **end), seen)
    return apply(state, [event, *sedimented(state, event, 77.0, seen)])


def test_a_run_that_hit_its_own_cap_is_tried_again_with_half_as_much_more() -> None:
    """At its old place, with the charge that follows from the cap; the attempt counts."""
    state = ended(live(), **OWN_CAP)
    assert list(state.queue) == ["run", "later"]
    queued = state.queue["run"]
    cause = RetryCause.OWN_CAP
    assert queued.retry == Retry(cause, GPU, "GPU 0 (NVIDIA L4)", 4 * GB, 6 * GB, fence=1)
    assert (queued.attempts, queued.waits_since) == (1, END)
    assert "run" not in state.ended
    assert state.queue["run"].needs.vram[0][1].need_bytes == 6 * GB


def test_a_first_run_that_hit_its_cap_is_tried_again_with_half_as_much_more() -> None:
    """The cap in force counts, not the charge; the next attempt is watched as well."""
    state = ended(live(12 * GB, basis=Basis.WATCH, cap=14 * GB, vram=None), **OWN_CAP)
    retry = state.queue["run"].retry
    assert retry is not None
    assert (retry.at_bytes, retry.charge_bytes) == (14 * GB, 21 * GB)
    assert state.queue["run"].needs.vram[0][1].lower_bound_bytes == 14 * GB


def test_the_device_is_the_ceiling_of_a_retry() -> None:
    """No more than there is, and no retry of a run that had all of it."""
    retry = retry_of(live(18 * GB), **OWN_CAP)
    assert retry is not None
    assert retry.charge_bytes == 24 * GB - 256 * MB
    assert retry_of(live(24 * GB - 256 * MB), **OWN_CAP) is None


def test_a_second_end_out_of_memory_ends_the_run() -> None:
    """One retry in all, whatever the evidence."""
    state = ended(live(), **OWN_CAP)
    state = start(state, charges={RAM: GB, GPU: 6 * GB}, attempt=2)
    state = apply(state, [beat(state)])
    over = ended(state, **OWN_CAP)
    assert over.ended["run"].end.kind is RunEnd.OOM
    assert over.ended["run"].attempt == 2
    assert "run" not in over.queue


@pytest.mark.parametrize(
    "end",
    [
        {"outcome": AttemptOutcome.COMPLETED},
        {"outcome": AttemptOutcome.CANCELLED},
        {"outcome": AttemptOutcome.LOST},
        FAILED,
        {"outcome": AttemptOutcome.OOM, "oom_resource": RAM, "oom_evidence": "memory_error"},
        {"outcome": AttemptOutcome.OOM, "oom_resource": RAM, "oom_evidence": "host_oom_killer"},
        {"outcome": AttemptOutcome.OOM, "oom_resource": "shm", "oom_evidence": "shm_full"},
    ],
    ids=lambda end: end.get("oom_evidence", end["outcome"].value),
)
def test_no_other_end_is_tried_again(end: dict[str, Any]) -> None:
    """A larger reservation of GPU memory would have changed none of them."""
    assert retry_of(live(), **end) is None


def test_an_amount_that_the_author_chose_is_not_enlarged() -> None:
    """It is exactly what was asked for."""
    assert retry_of(live(basis=Basis.CHOSEN), **OWN_CAP) is None


def test_a_device_that_was_full_though_nobody_else_grew_means_a_low_estimate() -> None:
    """The run is tried again with half as much more than it held."""
    retry = retry_of(live(12 * GB, 14 * GB, basis=Basis.WATCH, vram=None), **DEVICE_FULL)
    assert retry is not None
    assert (retry.cause, retry.at_bytes) == (RetryCause.DEVICE_FULL, 14 * GB)
    assert retry.charge_bytes == 21 * GB


def crowded(other: int) -> Sample:
    """A sample after the end of the run: somebody outside holds so much of the device."""
    return sample(
        END,
        processes=[process(OTHER)],
        lists={GPU: [(OTHER.pid, other)]},
        free={GPU: 24 * GB - other},
    )


@pytest.mark.parametrize("other", [0, 9 * GB])
def test_a_run_that_filled_a_device_alone_is_not_tried_again(other: int) -> None:
    """It would find no more room; beside others it may, once they have left."""
    state = live(12 * GB, vram=None, basis=Basis.WATCH)
    seen = sample(
        NOW + 1,
        processes=[process(OTHER), process(key_of("run")), process(key_of("run", 1))],
        lists={GPU: [(OTHER.pid, other), (key_of("run", 1).pid, 14 * GB)]},
        free={GPU: 10 * GB - other},
    )
    assert bool(retry_of(after(state, seen), **DEVICE_FULL)) is bool(other)


def beside(other: int, **fields: Any) -> GateState:
    """A live run that has held 3 of its 10 GB, beside somebody outside who holds so much."""
    state = live(10 * GB, **fields)
    seen = sample(
        NOW + 1,
        processes=[process(OTHER), process(key_of("run")), process(key_of("run", 1), 0, 0)],
        lists={GPU: [(OTHER.pid, other), (key_of("run", 1).pid, 3 * GB)]},
        free={GPU: 24 * GB - other - 3 * GB},
    )
    return after(state, seen)


@pytest.mark.parametrize("end", [DEVICE_FULL, FAILED], ids=["device_full", "failed"])
def test_a_program_that_others_pushed_out_is_tried_again_with_the_same_charge(
    end: dict[str, Any],
) -> None:
    """Others took what was reserved for it: that teaches nothing of its need."""
    state = beside(2 * GB, kind="program")
    seen = crowded(17 * GB)
    retry = retry_of(state, seen, **end)
    assert retry is not None
    assert (retry.cause, retry.at_bytes) == (RetryCause.PUSHED_OUT, 15 * GB)
    assert retry.charge_bytes == 10 * GB
    over = ended(state, seen, **end)
    shown = over.calibration.tracks("ada", "eval")
    assert [t.evidence.oom_bytes for t in shown if t.resource == VRAM] == [0]


def test_a_first_run_needs_its_generous_charge_only_on_a_full_device() -> None:
    """A program of unknown need may fail by itself while others take part of its charge."""
    state = beside(2 * GB, kind="program", vram=None, basis=Basis.WATCH)
    seen = crowded(17 * GB)
    assert retry_of(state, seen, **FAILED) is None
    retry = retry_of(replace(state, free_seen={GPU: 100 * MB}), seen, **FAILED)
    assert retry is not None
    assert retry.cause is RetryCause.PUSHED_OUT


def test_a_failed_run_with_room_around_it_is_not_tried_again() -> None:
    """Others may grow as long as what was reserved for the run is there."""
    state = beside(2 * GB, kind="program")
    assert retry_of(state, crowded(12 * GB), **FAILED) is None


def test_a_cell_that_failed_by_itself_is_not_tried_again() -> None:
    """Its worker would have reported that memory ran out."""
    state = beside(2 * GB)
    assert retry_of(state, crowded(17 * GB), **FAILED) is None


def test_a_program_that_filled_its_device_beyond_its_charge_ran_out_of_memory() -> None:
    """It says so itself only in its output; what was measured is the evidence."""
    shared = live(12 * GB, 14 * GB, basis=Basis.WATCH, vram=None, kind="program")
    assert retry_of(shared, **FAILED) is None  # there was room
    alone = live(12 * GB, 23 * GB + 500 * MB, basis=Basis.WATCH, vram=None, kind="program")
    alone = replace(alone, free_seen={GPU: 100 * MB})
    assert ended(alone, **FAILED).ended["run"].end.kind is RunEnd.FAILED  # as it is reported
    shared = replace(shared, free_seen={GPU: 100 * MB})
    over = ended(shared, **FAILED)
    retry = over.queue["run"].retry
    assert retry is not None
    assert (retry.cause, retry.charge_bytes) == (RetryCause.DEVICE_FULL, 21 * GB)


def test_the_journal_keeps_the_retry() -> None:
    """A gate that starts again does not judge the end again: what it measured then is gone."""
    state = live()
    event = with_retry(state, finish(state, at=END, **OWN_CAP), None)
    later = replace(event, end=replace(event.end, oom_evidence=""))
    assert apply(state, [later]).queue["run"].retry == event.retry


def test_the_longest_wait_counts_from_the_retry() -> None:
    """A run that has started has not waited since its submit."""
    state = ended(live(max_wait_s=5.0), **OWN_CAP)
    assert state.expiries == {"run": END + 5.0}


def test_a_grant_says_what_the_retry_gets_in_fact() -> None:
    """Where it is charged more than the least, or on another device, the sentence says that."""
    queued = ended(live(), **OWN_CAP).queue["run"]
    for uuid in (GPU, "GPU-1"):
        retry = queued.retry_with({RAM: GB, uuid: 7 * GB})
        assert retry is not None
        assert retry.charge_bytes == 7 * GB


def test_an_old_end_changes_nothing() -> None:
    """Neither an end of another attempt nor one of a run that is not there."""
    state = live()
    event = finish(state, at=END, **OWN_CAP)
    assert with_retry(state, replace(event, fence=99), None).retry is None
    assert with_retry(apply(state, [event]), event, None).retry is None


def test_a_first_run_that_had_too_little_does_not_start_with_what_little_there_is() -> None:
    """After minutes a first run takes what fits now; one that this has ended before waits."""
    late = END + 1000
    state = replace(
        ended(live(2 * GB, basis=Basis.WATCH, cap=2 * GB, vram=None), **OWN_CAP),
        patient_until=late,
    )
    little = decide(state, sample(late, free={GPU: 5 * GB}), late)
    assert "run" not in {grant.run_id for grant in little.grants}
    (granted,) = (g for g in decide(state, sample(late), late).grants if g.run_id == "run")
    assert granted.charges[GPU] == 12 * GB  # half of the device


def test_a_retry_does_not_settle_below_what_it_was_given() -> None:
    """The run grew once more, late, and may do so again."""
    state = ended(live(2 * GB, 2 * GB, basis=Basis.WATCH, cap=2 * GB, vram=None), **OWN_CAP)
    again = start(state, charges={RAM: GB, GPU: 12 * GB}, basis={GPU: Basis.WATCH})
    lease = again.leases["run"]
    usage = Usage(peak_bytes=GB, read_at=END, first_used_at=END, peak_moved_at=END)
    lease = using(lease, {GPU: usage})
    (event,) = settling_events(again, lease, END + 601)
    assert (event.reason, event.charges) == ("settled", {GPU: 3 * GB})
