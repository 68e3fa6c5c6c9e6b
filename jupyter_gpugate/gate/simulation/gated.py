"""The gate's own policy in a simulation: its ticks are those of the real gate.

A tick in which nothing is decided, recorded or charged anew can be left out: the machine stands
still between two changes, so all ticks between would have said the same.  Whether they would is
tried: the tick at the end of the pause is computed first, and if it says anything, the
pause is taken second by second instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.evidence import Calibration
from jupyter_gpugate.core.flow.tick import Happened, Tick, run_tick
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport, Peaks, Phase, RunReport
from jupyter_gpugate.core.requests import Enforcement, Grant
from jupyter_gpugate.core.state import GateState, Traits
from jupyter_gpugate.gate.simulation.machine import BOOT
from jupyter_gpugate.gate.simulation.physics import Ended, Physics, Running
from jupyter_gpugate.gate.simulation.workload import Job, Start

#: The longest pause between two ticks: the core takes a longer one for a gate that was away.
PAUSE_S = 10
SIDE = "run-side"


class Gated:
    """Runs the core on a simulated machine; ``calibration`` is what it has learned before."""

    def __init__(
        self,
        calibration: Calibration | None = None,
        traits: Traits | None = None,
        pause_s: int = PAUSE_S,
    ) -> None:
        self.state = GateState(
            traits=traits or Traits(), boot_id=BOOT, calibration=calibration or Calibration()
        )
        self.decisions = Decisions()
        self.grants: list[tuple[float, Grant]] = []
        self._pause_s = pause_s
        self._posted: list[ev.Event] = []  # for the next tick
        self._ahead: Tick | None = None  # the tick at the end of a pause
        self._careful_until = 0.0

    @property
    def calibration(self) -> Calibration:
        return self.state.calibration

    # -- what a replay asks ---------------------------------------------------------------------

    def next_tick(self, physics: Physics, change: float) -> float:
        grain = physics.world.grain_s
        second = min(physics.now + 1, change)
        if self._posted:  # a start makes a tick at once
            return min(physics.now + grain, change)
        pause = self._pause_s - physics.now % self._pause_s
        # The moment before a change is read too, so that every reading is as fresh as in life.
        candidate = min(physics.now + pause, change - grain)
        if candidate <= second or second <= self._careful_until:
            return second
        tick = self._tick_at(candidate, physics, ())
        if _says_anything(tick):
            self._careful_until = candidate
            return second
        self._ahead = tick
        return candidate

    def tick(self, physics: Physics, arrived: Sequence[Job], ended: Sequence[Ended]) -> list[Start]:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            posted, self._posted = self._posted, []
            posted += [ev.Finished(one.at, *_lease_of(self, one), _report(one)) for one in ended]
            posted += [ev.Requested(physics.now, job.request, SIDE) for job in arrived]
            ahead = self._tick_at(physics.now, physics, posted)
        self.state, self.decisions = ahead.written(), ahead.decisions
        for run_id in ahead.decisions.caps:
            run, lease = physics.runs.get(run_id), self.state.leases[run_id]
            if run is not None:
                run.cap_bytes = min(lease.caps.values())
        starts = []
        for grant in ahead.decisions.grants:
            self.grants.append((physics.now, grant))
            starts.append(Start(grant.run_id, grant.devices, _cap(grant)))
        return starts

    def started(self, run: Running) -> None:
        """Take note of a supervisor that asks for `go`; the next tick knows it."""
        fence = self.state.leases[run.job.run_id].terms.fence
        key = run.supervisor.key
        self._posted.append(ev.Started(run.started_at, run.job.run_id, fence, key, BOOT))

    def queued(self) -> Mapping[str, str]:
        reasons = {}
        for key, run_ids in self.state.alike.items():
            told = self.decisions.reasons_of(key)
            basis = next((need.basis.value for _, need in key.needs.vram), "ram")
            reason = f"{told[0].check.value} ({basis})" if told else "new"
            reasons.update(dict.fromkeys(run_ids, reason))
        return reasons

    def charges(self) -> Mapping[str, Mapping[str, int]]:
        return {run_id: lease.charges for run_id, lease in self.state.leases.items()}

    def basis(self, run_id: str) -> str:
        terms = self.state.leases[run_id].terms
        return next((terms.basis[device].value for device in terms.devices), "")

    # -- ticks ----------------------------------------------------------------------------------

    def _tick_at(self, now: float, physics: Physics, posted: Sequence[ev.Event]) -> Tick:
        events = (*posted, ev.Present(now, SIDE), *self._beats(now, physics))
        sample = physics.machine.sample(now)
        happened = Happened(events, sample, now, measured=True, wall=now)
        return run_tick(self.state, happened, self.decisions)

    def _beats(self, now: float, physics: Physics) -> Iterator[ev.Beat]:
        for run_id, run in physics.runs.items():
            lease = self.state.leases.get(run_id)
            if lease is not None:
                yield _beat(now, run, lease.terms.fence)


def _says_anything(tick: Tick) -> bool:
    decided = tick.decisions.grants or tick.decisions.caps
    return bool(decided) or any(
        not isinstance(event, (ev.Beat, ev.Present)) for event in tick.events
    )


def _cap(grant: Grant) -> int | None:
    enforced = grant.enforcement is Enforcement.ENFORCED
    return min(grant.caps.values()) if enforced and grant.caps else None


def _beat(now: float, run: Running, fence: int) -> ev.Beat:
    held = run.worker.ram_bytes + run.supervisor.ram_bytes
    return ev.Beat(
        at=now,
        run_id=run.job.run_id,
        fence=fence,
        tree=(run.supervisor.key, run.worker.key),
        report=RunReport(ram_held_bytes=held),
        peaks=Peaks(ram_bytes=run.peak_ram, ram_meter="pss"),
        episode=run.job.episodes_at(run.work_s),
        phase=Phase.RUNNING,
    )


def _lease_of(gate: Gated, ended: Ended) -> tuple[str, int]:
    run_id = ended.running.job.run_id
    return run_id, gate.state.leases[run_id].terms.fence


def _report(ended: Ended) -> EndReport:
    run = ended.running
    if ended.outcome is AttemptOutcome.OOM and run.job.request.kind == "program":
        # Nobody looks into a program: all that is known of its end is its exit status.
        return EndReport(AttemptOutcome.FAILED, "exit 1", exit_code=1, duration_s=run.work_s)
    return EndReport(
        ended.outcome,
        episodes_done=run.job.episodes_at(run.work_s),
        peaks=Peaks(ram_bytes=run.peak_ram, ram_meter="pss", ram_covered=True),
        duration_s=ended.at - run.started_at,
        oom_resource=ended.resource,
        oom_evidence=ended.evidence,
    )
