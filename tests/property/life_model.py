"""A run, its disk, its supervisors and its gate, in a few lines each, around the table of its life.

Every action of the table takes a while here: whoever drives the model says which one is done next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport, RunEnd
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.runs import life as lf
from jupyter_gpugate.runs.life import Life
from jupyter_gpugate.runs.lifecycle import REQUEUED, apply
from tests.kit.core_builders import grant


@dataclass
class ModelGate:
    """What the gate has in its journal about the run."""

    where: str = "queued"  # granted, started, ended, unknown
    fence: int = 0
    attempts: int = 0
    unstarted: int = 0
    retried: int | None = None  # the fence of the attempt that ran out of memory first
    end: RunEnd | None = None

    def give(self) -> None:
        """Grant the run a lease."""
        self.where, self.fence, self.attempts = "granted", self.fence + 1, self.attempts + 1

    def take_back(self) -> None:
        """Put a run that has not started back into the queue; once too often ends it."""
        self.where, self.attempts, self.unstarted = "queued", self.attempts - 1, self.unstarted + 1

    def says_go(self, fence: int) -> bool:
        """Whether the supervisor of this fence may run user code."""
        if self.where == "granted" and fence == self.fence:
            self.where = "started"
            return True
        return False

    def withdraw(self) -> bool:
        """Take the run out of the queue; False if it has started."""
        if self.where == "started":
            return False
        self.finish(RunEnd.CANCELLED)
        return True

    def decline(self, fence: int, end: RunEnd | None) -> None:
        """Take a grant back."""
        if self.where == "granted" and fence == self.fence:
            self.take_back() if end is None else self.finish(end)

    def finished(self, fence: int | None, outcome: AttemptOutcome) -> None:
        """Record the end of an attempt."""
        if self.where in {"granted", "started"} and fence == self.fence:
            if outcome is AttemptOutcome.OOM and self.retried is None:
                self.where, self.retried = "queued", fence
            elif outcome not in REQUEUED:
                self.finish(RunEnd(outcome.value))
            elif outcome is AttemptOutcome.NOT_STARTED and self.unstarted:
                self.finish(RunEnd.FAILED)
            elif outcome is AttemptOutcome.NOT_STARTED:
                self.take_back()
            else:
                self.where = "queued"

    def finish(self, end: RunEnd) -> None:
        """End the run, unless it has ended."""
        if self.where != "ended":
            self.where, self.end = "ended", end


@dataclass(frozen=True)
class Launched(lf.Start):
    """A supervisor runs, and the run side is about to hear of it."""


@dataclass
class Attempt:
    """The directory of an attempt, and its supervisor."""

    fence: int
    is_alive: bool = False
    has_run: bool = False  # user code
    begun: bool = False
    stop: bool = False
    outcome: AttemptOutcome | None = None

    def end(self, outcome: AttemptOutcome | None) -> None:
        """End the supervisor, with a record of how or without."""
        self.is_alive, self.outcome = False, outcome


@dataclass
class Model:
    """One run on one machine."""

    gate: ModelGate = field(default_factory=ModelGate)
    life: Life = field(default_factory=Life)
    folders: dict[int, Attempt] = field(default_factory=dict)
    supervisors: list[Attempt] = field(default_factory=list)
    tasks: list[list[lf.Action]] = field(default_factory=list)
    summary: lf.Ending | None = None  # on the disk
    seen: list[tuple[lf.Event, Life, tuple[lf.Action, ...]]] = field(default_factory=list)

    def feed(self, event: lf.Event, task: list[lf.Action] | None = None) -> None:
        """Apply an event; what follows is done before the rest of the task that brought it."""
        before = self.life
        self.life, actions = apply(before, event)
        self.seen.append((event, before, actions))
        others: list[lf.Action] = []
        for action in actions:
            if isinstance(action, (lf.Start, lf.Follow)):
                self.tasks.append([action])
            else:
                others.append(action)
        if task is not None:
            task[:0] = others
        elif others:
            self.tasks.append(others)

    @property
    def alive(self) -> list[Attempt]:
        return [one for one in self.supervisors if one.is_alive]

    def ready(self) -> list[list[lf.Action]]:
        """The tasks whose next action can be over by now."""
        waits = bool(self.alive)
        return [t for t in self.tasks if not (isinstance(t[0], lf.Follow) and waits)]

    def finish_action(self, task: list[lf.Action], *, fails: bool = False) -> None:
        """Do the next action of a task, and hand its result to the table."""
        action = task.pop(0)
        handler = getattr(self, f"_do_{type(action).__name__.lower()}")
        handler(action, task, fails)
        self.tasks = [task for task in self.tasks if task]

    def _do_start(self, action: lf.Start, task: list[lf.Action], fails: bool) -> None:
        number = action.grant.attempt
        if fails:
            self.feed(lf.NotBegun("no space", passing=bool(number % 2)), task)
            return
        self.launch(action)
        task.insert(0, Launched(action.grant))

    def _do_launched(self, action: Launched, task: list[lf.Action], _fails: bool) -> None:
        self.feed(lf.Begun(ProcessKey(100 + action.grant.fence, 1)), task)

    def launch(self, action: lf.Start) -> None:
        """Make the directory of an attempt, and start its supervisor."""
        number, old = action.grant.attempt, self.folders.get(action.grant.attempt)
        assert old is None or not old.begun, f"attempt {number} has begun before"
        assert not self.alive, "the supervisor of another attempt lives"
        self.folders[number] = Attempt(action.grant.fence, is_alive=True)
        self.supervisors.append(self.folders[number])

    def _do_follow(self, _action: lf.Follow, task: list[lf.Action], _fails: bool) -> None:
        folder = self.folders[self.life.attempts]
        lost = folder.outcome is None
        folder.outcome = folder.outcome or AttemptOutcome.LOST
        fence = self.life.fence
        self.gate.finished(fence, folder.outcome)
        is_retried = fence is not None and self.gate.retried == fence
        report = EndReport(folder.outcome, folder.outcome.value)
        stop = Stop.of(StopKind.KILLED) if lost else None
        self.feed(lf.Over(report, {}, {}, stop, is_retried), task)

    def _do_setaside(self, _action: lf.SetAside, task: list[lf.Action], fails: bool) -> None:
        if not fails:
            del self.folders[self.life.attempts]
        self.feed(lf.PutAside(done=not fails), task)

    def _do_decline(self, action: lf.Decline, task: list[lf.Action], _fails: bool) -> None:
        self.gate.decline(action.grant.fence, action.end)
        self.feed(lf.GivenBack(action.grant.fence), task)

    def _do_withdraw(self, action: lf.Withdraw, task: list[lf.Action], _fails: bool) -> None:
        if self.gate.withdraw():
            self.feed(lf.Withdrawn(action.reason), task)

    def _do_stop(self, _action: lf.Stop, _task: list[lf.Action], _fails: bool) -> None:
        if self.life.supervisor is not None:
            self.folders[self.life.attempts].stop = True

    def _do_kill(self, _action: lf.Kill, _task: list[lf.Action], _fails: bool) -> None:
        for supervisor in self.alive:
            supervisor.end(None)

    def _do_recordend(self, _action: lf.RecordEnd, task: list[lf.Action], fails: bool) -> None:
        assert self.life.end is not None
        if not fails:
            self.summary = self.life.end
            self.feed(lf.Stored(), task)
        self.feed(lf.Recorded({"end": self.life.end.end.value}), task)

    # -- what others do -------------------------------------------------------------------------

    def supervisor_asks(self, supervisor: Attempt) -> None:
        """A supervisor writes itself down, and asks the gate to go."""
        supervisor.begun = True
        if supervisor.stop:
            supervisor.end(AttemptOutcome.CANCELLED)
        elif not supervisor.has_run:
            supervisor.has_run = self.gate.says_go(supervisor.fence)
            if not supervisor.has_run:
                supervisor.end(AttemptOutcome.NOT_STARTED)

    def hear_gate(self, *, again: bool = False) -> None:
        """Bring the gate's news to the run side, or bring what it has heard again."""
        gate = self.gate
        if gate.where == "granted" and (again or gate.fence not in self.life.fences):
            given = replace(grant(fence=gate.fence), attempt=gate.attempts)
            self.feed(lf.Granted(given))
        if gate.where == "ended" and gate.end is not None and self.life.status == lf.QUEUED:
            self.feed(lf.Dismissed(gate.end, "told by the gate"))

    def register(self) -> None:
        """Exchange with the gate which runs each side has."""
        if self.gate.where == "unknown" and self.life.status == lf.QUEUED:
            self.gate.where = "queued"
        if self.gate.where != "unknown" and self.life.ended and self.summary is not None:
            self.gate.finish(self.summary.end)

    def restart_run_side(self, *, started: bool) -> None:
        """Begin again from the disk; a start that was under way is done, or is not."""
        for task in self.tasks:
            if started and type(task[0]) is lf.Start:
                self.launch(task[0])
        self.tasks = []
        attempts = max(self.folders, default=0)
        self.life = Life(attempts, ended=self.summary is not None, stored=self.summary is not None)
        if attempts and self.summary is None:
            folder = self.folders[attempts]
            process = ProcessKey(100 + folder.fence, 1) if folder.is_alive else None
            self.feed(lf.Found(folder.fence, process, folder.begun, {}))
        self.register()
