"""In-memory twins of the readers, the journal, the run side and the clock, for one thread.

A `Simulation` runs the same ticks as the real gate on a machine that is a table of numbers, in
simulated seconds.  It serves tests, benchmarks, and predictions of what the gate would
do with a workload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.tick import Happened, Tick, run_tick
from jupyter_gpugate.core.reports import (
    AttemptOutcome,
    EndReport,
    Peaks,
    Phase,
    RunReport,
)
from jupyter_gpugate.core.requests import (
    Enforcement,
    Family,
    Grant,
    Request,
    Setting,
)
from jupyter_gpugate.core.resources import GB, VRAM
from jupyter_gpugate.core.state import GateState, Traits
from jupyter_gpugate.gate.journal.journal import JournalError
from jupyter_gpugate.gate.simulation.machine import BOOT, Holding, SimulatedMachine

SUPERVISOR_BYTES = 12 << 20


@dataclass(frozen=True)
class Behaviour:
    """A simulated run: memory as a function of the seconds since its start.

    ``ram`` and ``vram`` (per device) give bytes, ``episodes`` how many are done, ``lasts_s`` when
    it ends by itself, ``ready_s`` when the URL of a service answers.  A run under an enforced cap
    that asks for more ends out of memory.
    """

    lasts_s: float
    ram: Callable[[float], int] = lambda _s: GB
    vram: Callable[[float], int] = lambda _s: 0
    episodes: Callable[[float], int] = lambda _s: 0
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED
    ready_s: float = math.inf


def ramp(to_bytes: int, after_s: float = 0.0, over_s: float = 0.0) -> Callable[[float], int]:
    """Memory that appears after a while, at once or evenly over some seconds."""

    def at(seconds: float) -> int:
        if seconds < after_s:
            return 0
        share = 1.0 if over_s == 0 else min(1.0, (seconds - after_s) / over_s)
        return int(to_bytes * share)

    return at


class MemoryJournal:
    """A journal in a list; ``broken`` makes every append fail."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.broken = ""

    def replay(self) -> list[ev.Event]:
        return list(self.events)

    def observations(self) -> list[Observation]:
        return [e.observation for e in self.events if isinstance(e, ev.Sedimented)]

    def story(self, run_id: str) -> list[tuple[float, ev.Event]]:
        return [(e.at, e) for e in self.events if getattr(e, "run_id", None) == run_id]

    def append(self, events: Sequence[ev.Event], *, durable: bool) -> None:
        del durable
        if self.broken:
            raise JournalError(self.broken)
        self.events.extend(events)

    def prune(self, max_age_s: float, max_rows: int) -> None:
        """Nothing to prune."""

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class SimulatedRun:
    """A live attempt on the simulated machine; it does nothing before the gate has said go."""

    grant: Grant
    request: Request
    behaviour: Behaviour
    started_at: float
    supervisor: Holding
    worker: Holding
    going: bool = False
    peak_ram: int = 0
    peak_vram: dict[str, int] = field(default_factory=dict)


class Simulation:
    """A gate, a run side and a machine in simulated time: one step is one second."""

    def __init__(self, machine: SimulatedMachine, traits: Traits | None = None) -> None:
        self.machine = machine
        self.journal = MemoryJournal()
        self.now = 1000.0
        self.state = GateState(traits=traits or Traits(), boot_id=BOOT)
        self.decisions = Decisions()
        self.behaviours: dict[str, Behaviour] = {}
        self.runs: dict[str, SimulatedRun] = {}
        self.ended: dict[str, EndReport] = {}
        self.granted: list[tuple[float, Grant]] = []
        self.posted: list[ev.Event] = []
        self.ticks: list[Tick] = []
        self.returns_after_s = 0.0  # how late memory of the dead comes back
        self.is_present = True  # False: the run side is away, live runs go on
        self.starts_runs = True  # False: grants are lost
        self._number = 0
        self._kept: list[ev.Event] = []

    def submit(
        self,
        name: str,
        behaviour: Behaviour,
        *,
        source: str = "source",
        setting: Setting | None = None,
        gpus: int = 1,
        owner: str = "ada",
        **fields: object,
    ) -> str:
        """Queue a run that will behave so once it starts; its run id."""
        self._number += 1
        run_id = f"run-{self._number:05d}"
        request = Request(
            run_id=run_id,
            family=Family(owner, name, source, gpus),
            setting=setting or Setting(workers=1),
            **fields,  # type: ignore[arg-type]
        )
        self.behaviours[run_id] = behaviour
        self.posted.append(ev.Requested(self.now, request, "run-side"))
        return run_id

    def step(self, seconds: float = 1.0) -> Tick:
        """Let time pass, let the runs live, and run one tick with a fresh sample."""
        self.now += seconds
        if self.is_present:
            self.posted.append(ev.Present(self.now, "run-side"))
        for run in list(self.runs.values()):
            self._live(run)
        posted, self.posted = self.posted, []
        sample = self.machine.sample(self.now)
        happened = Happened(tuple(posted), sample, self.now, measured=True, wall=self.now)
        tick = run_tick(self.state, happened, self.decisions)
        self._record(tick)
        self.ticks.append(tick)
        return tick

    def steps(self, count: int) -> None:
        """Take so many steps of a second."""
        for _ in range(count):
            self.step()

    def until(self, condition: Callable[[], bool], most: int = 10_000) -> int:
        """Step until a condition holds; how many steps that took."""
        for number in range(1, most):
            self.step()
            if condition():
                return number
        raise AssertionError(f"not reached in {most} simulated seconds")

    def restart(self) -> None:
        """Kill the gate and fold its journal again; runs have gone on meanwhile."""
        state = GateState(traits=self.state.traits)
        self.state = apply(state, [*self.journal.replay(), ev.Restarted(self.now, BOOT)])
        self.decisions = Decisions()

    def cancel(self, run_id: str) -> None:
        """End a live run at once, as its run side would."""
        run = self.runs.get(run_id)
        if run is not None:
            self._end(run, AttemptOutcome.CANCELLED, reason="cancelled")
        else:
            self.posted.append(ev.Withdrawn(self.now, run_id))

    def lose(self, run_id: str) -> None:
        """End a live run's processes without a report."""
        run = self.runs.pop(run_id)
        for holding in (run.supervisor, run.worker):
            self.machine.kill(holding.key, self.now, self.returns_after_s)

    def _record(self, tick: Tick) -> None:
        try:
            self.journal.append([*self._kept, *tick.record], durable=True)
        except JournalError:
            self.state, later = tick.unwritten()
            self.decisions = tick.withheld()
            self._kept.extend(later)
            return
        self._kept = []
        self.state, self.decisions = tick.written(), tick.decisions
        for grant in tick.decisions.grants:
            self.granted.append((self.now, grant))
            if self.starts_runs:
                self._start(grant)

    def _start(self, grant: Grant) -> None:
        supervisor = self.machine.spawn(ram_bytes=SUPERVISOR_BYTES)
        worker = self.machine.spawn(parent_pid=supervisor.key.pid)
        request = self.state.leases[grant.run_id].request
        behaviour = self.behaviours[grant.run_id]
        self.ended.pop(grant.run_id, None)  # if it is tried again
        self.runs[grant.run_id] = SimulatedRun(
            grant, request, behaviour, self.now, supervisor, worker
        )

    def _ask_for_go(self, run: SimulatedRun) -> None:
        """A start is refused while nothing can be written down; then it is asked for again."""
        grant, key = run.grant, run.supervisor.key
        lease = self.state.leases.get(grant.run_id)
        if lease is None or lease.terms.fence != grant.fence:
            self.lose(grant.run_id)
            return
        self.posted.append(ev.Started(self.now, grant.run_id, grant.fence, key, BOOT))
        if self.journal.broken:
            run.started_at = self.now
        else:
            run.going = True

    def _live(self, run: SimulatedRun) -> None:
        if not run.going:
            self._ask_for_go(run)
        if not run.going:
            return
        age = self.now - run.started_at
        if age >= run.behaviour.lasts_s:
            self._end(run, run.behaviour.outcome)
            return
        wanted = run.behaviour.vram(age)
        lease = self.state.leases.get(run.grant.run_id)
        caps = lease.caps if lease and run.grant.enforcement is Enforcement.ENFORCED else {}
        if any(wanted > cap for cap in caps.values()):
            self._end(run, AttemptOutcome.OOM, oom_resource=VRAM, oom_evidence="own_cap")
            return
        run.worker.ram_bytes = run.behaviour.ram(age)
        run.worker.gpu_bytes.update(dict.fromkeys(run.grant.devices, wanted))
        held = run.worker.ram_bytes + run.supervisor.ram_bytes
        run.peak_ram = max(run.peak_ram, held)
        self.posted.append(
            ev.Beat(
                at=self.now,
                run_id=run.grant.run_id,
                fence=run.grant.fence,
                tree=(run.supervisor.key, run.worker.key),
                report=RunReport(ram_held_bytes=held),
                peaks=Peaks(ram_bytes=run.peak_ram, ram_meter="pss"),
                episode=run.behaviour.episodes(age),
                phase=Phase.RUNNING,
                ready=age >= run.behaviour.ready_s,
            )
        )

    def _end(self, run: SimulatedRun, outcome: AttemptOutcome, **how: str) -> None:
        del self.runs[run.grant.run_id]
        self.machine.kill(run.supervisor.key)
        self.machine.kill(run.worker.key, self.now, self.returns_after_s)
        end = EndReport(
            outcome,
            **how,  # type: ignore[arg-type]
            episodes_done=run.request.setting.episodes,
            peaks=Peaks(ram_bytes=run.peak_ram, ram_meter="pss", ram_covered=True),
            duration_s=self.now - run.started_at,
        )
        self.ended[run.grant.run_id] = end
        self.posted.append(ev.Finished(self.now, run.grant.run_id, run.grant.fence, end))
