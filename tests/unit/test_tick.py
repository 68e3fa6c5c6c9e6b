"""One tick of the gate: what counts before and after it is written down, and what costs nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.decisions import Check, Decisions
from jupyter_gpugate.core.flow import tick as tick_module
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.tick import Happened, Tick, run_tick
from jupyter_gpugate.core.leases import Granted, Usage
from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.core.samples import Fault, Sample
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import GPU, NOW, finish, gate, key_of, request, sample, start, using

if TYPE_CHECKING:
    from collections.abc import Callable


def tick(
    state: GateState,
    *posted: ev.Event,
    at: float = NOW,
    last: Decisions | None = None,
    **fields: Any,
) -> Tick:
    """One tick with these events; a new sample unless ``measured`` says no."""
    given = {"sample": sample(at), "measured": True, **fields}
    return run_tick(state, Happened(posted, now=at, wall=77.0, **given), last or Decisions())


def kinds(events: tuple[ev.Event, ...]) -> list[str]:
    """What happened, in order."""
    return [event.kind for event in events]


def told(found: Tick, run_id: str = "run") -> list[Check]:
    """What a run is told in a tick."""
    return [r.check for r in found.decisions.reasons_of(found.decided.queue[run_id].key)]


def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often decisions were made since."""
    calls = 0

    def counting(*args: Any) -> Decisions:
        nonlocal calls
        calls += 1
        return decide(*args)

    monkeypatch.setattr(tick_module, "decide", counting)
    return lambda: calls


def test_nothing_is_decided_anew_where_nothing_has_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an event or a new sample the last decisions stand, less their grants."""
    first = tick(gate(request(vram=30 * GB), request("small")))
    assert len(first.grants) == 1
    calls = counted(monkeypatch)
    again = tick(first.written(), at=NOW + 0.5, last=first.decisions, measured=False)
    assert calls() == 0
    assert again.decisions.kept_waiting is first.decisions.kept_waiting
    assert (again.decisions.grants, again.record) == ((), ())
    tick(first.written(), at=NOW + 1, last=first.decisions)
    assert calls() == 1


def test_grants_are_part_of_what_is_written_down() -> None:
    """The record holds the events and the grants; only then the leases live."""
    found = tick(gate(), ev.Requested(NOW, request(), "side"))
    assert kinds(found.record) == ["requested", "granted"]
    assert "run" not in found.decided.leases
    assert "run" in found.written().leases
    assert found.written().tick == 1


def test_heartbeats_and_presences_are_not_written_down() -> None:
    """A gate that is left alone writes nothing."""
    state = start(gate(request()))
    beat = ev.Beat(NOW, "run", 1, (key_of("run"),))
    found = tick(state, beat, ev.Present(NOW, "side"), ev.DriverSeen(NOW, "550"))
    assert found.record == ()


def test_what_could_not_be_written_does_not_exist_but_ends_count() -> None:
    """Submits and grants are refused; an end is kept in memory, to be written later."""
    state = start(gate(request(), request("waits", vram=30 * GB)), charges={RAM: GB, GPU: 9 * GB})
    found = tick(state, finish(state), ev.Requested(NOW, request("new"), "side"))
    assert [grant.run_id for grant in found.decisions.grants] == ["new"]
    after, later = found.unwritten()
    assert "run" in after.ended
    assert "new" not in after.queue
    assert "new" not in after.leases
    assert kinds(later)[0] == "finished"


def test_who_would_start_is_told_that_the_journal_is_in_the_way() -> None:
    """Nobody waits without a reason, also while nothing can be written."""
    found = tick(gate(request(), request("large", vram=30 * GB)))
    withheld = found.withheld()
    assert withheld.grants == ()
    (reason,) = withheld.reasons_of(found.decided.queue["run"].key)
    assert reason.check is Check.JOURNAL
    large = withheld.reasons_of(found.decided.queue["large"].key)
    assert [r.check for r in large] == [Check.EXTERNAL_HOLDS]


def test_an_end_teaches_before_the_same_tick_decides() -> None:
    """A run whose sibling has just completed is admitted by what that one showed."""
    state = start(gate(request(vram=None), request("next", vram=None)))
    lease = state.leases["run"]
    usage = {r: Usage(read_at=NOW, peak_bytes=GB) for r in (RAM, GPU)}
    state = replace(state, leases={"run": using(lease, usage)})
    found = tick(state, finish(state, at=NOW + 1), at=NOW + 1)
    assert kinds(found.events)[:3] == ["finished", "sedimented", "sedimented"]
    (grant,) = found.decisions.grants
    assert (grant.run_id, grant.basis[GPU].value) == ("next", "calibrated")


def test_an_exit_is_not_credited_before_it_is_seen() -> None:
    """The tick that learns of an end decides by what the sample shows free."""
    state = start(gate(request(), request("next", vram=20 * GB)), charges={RAM: GB, GPU: 20 * GB})
    lease = state.leases["run"]
    usage = {**lease.usage, GPU: Usage(held_bytes=20 * GB, peak_bytes=20 * GB, read_at=NOW)}
    state = replace(state, leases={"run": using(lease, usage)})
    still = sample(NOW + 1, free={GPU: 4 * GB})
    found = tick(state, finish(state, at=NOW + 1), at=NOW + 1, sample=still)
    assert found.grants == ()
    assert told(found, "next") == [Check.FIT]
    free = tick(found.written(), at=NOW + 2, last=found.decisions)
    assert [grant.run_id for grant in free.decisions.grants] == ["next"]


def test_a_sample_that_cannot_be_used_admits_nothing_and_breaks_nothing() -> None:
    """Whatever was read, the tick ends, says what was wrong, and holds everything as stale."""
    broken = replace(sample(), devices=(None,))  # type: ignore[arg-type]
    found = tick(gate(request()), sample=broken)
    assert "AttributeError" in found.fault
    assert told(found) == [Check.STALE, Check.STALE]
    assert found.grants == ()


# -- the story of a run ---------------------------------------------------------------------------


def verdicts(found: Tick) -> dict[str, str]:
    """What the story of each run is told in a tick."""
    return {e.run_id: e.verdict for e in found.events if isinstance(e, ev.VerdictChanged)}


def test_a_change_of_the_dominant_reason_is_written_into_the_story() -> None:
    """Once for each change, and not again while it stays the same."""
    first = tick(gate(request(vram=30 * GB)))
    assert verdicts(first) == {"run": "external_holds"}
    second = tick(first.written(), at=NOW + 1, last=first.decisions)
    assert verdicts(second) == {}
    drained = ev.DrainChanged(NOW, draining=True)
    third = tick(second.written(), drained, at=NOW + 2, last=second.decisions)
    assert verdicts(third) == {"run": "drain"}


def test_a_newcomer_is_told_what_its_equals_know() -> None:
    """A run that joins a group has its reason in its own story."""
    first = tick(gate(request(vram=30 * GB)))
    joined = ev.Requested(NOW, request("twin", vram=30 * GB), "side")
    second = tick(first.written(), joined, at=NOW + 1, last=first.decisions)
    assert verdicts(second) == {"twin": "external_holds"}


def test_a_run_that_starts_is_not_told_why_it_waits() -> None:
    """Of equal runs those that start have no reason in their story."""
    state = gate(*(request(f"r{n}", vram=10 * GB) for n in range(3)))
    assert verdicts(tick(state)) == {"r2": "fit"}


# -- time -----------------------------------------------------------------------------------------


def test_after_a_gap_everybody_gets_one_fresh_time_to_live() -> None:
    """A gate that was stopped or asleep measures first and expires nothing."""
    state = start(gate(request(), request("waits", max_wait_s=30.0, vram=30 * GB)))
    state = replace(state, ticked_at=NOW)
    gone = sample(NOW + 600)
    found = tick(state, at=NOW + 600, sample=gone)
    assert "run" in found.written().leases
    assert "waits" in found.written().queue
    later = tick(found.written(), at=NOW + 609, last=found.decisions)
    assert "waits" in later.written().queue
    last = tick(
        replace(later.written(), ticked_at=NOW + 615), at=NOW + 616, last=later.decisions
    ).written()
    assert last.ended["waits"].end.kind.value == "expired"
    assert last.ended["run"].end.kind.value == "lost"


def test_a_regular_beat_is_no_gap() -> None:
    """Ten seconds without a tick are slow, and no more."""
    state = replace(gate(request()), ticked_at=NOW)
    assert tick(state, at=NOW + 10).written().patient_until == state.patient_until
    assert tick(state, at=NOW + 10.1).written().patient_until == NOW + 25.1


def test_an_empty_sample_and_a_hanging_driver_hold_only_what_rests_on_them() -> None:
    """RAM-only runs start while the GPUs cannot be read."""
    state = gate(request(), request("none", gpus=0))
    health = replace(sample().readers[0], fault=Fault("TIMEOUT", "no answer", NOW))
    hung = replace(sample(), devices=(), readers=(health,))
    found = tick(state, sample=hung)
    assert [grant.run_id for grant in found.decisions.grants] == ["none"]
    assert told(found) == [Check.STALE]
    assert tick(state, sample=Sample()).grants == ()


def test_folding_the_record_gives_the_same_leases() -> None:
    """What is written down is all that a restart needs."""
    begin = gate()
    found = tick(begin, ev.Requested(NOW, request(), "side"))
    again = apply(begin, found.record)
    # What others held at the grant comes from a sample, is not recorded, and decides nothing.
    written = found.written().leases
    unseen = {run: replace(lease, stage=Granted({})) for run, lease in written.items()}
    assert again.leases == unseen
    assert list(again.queue) == list(found.written().queue)
