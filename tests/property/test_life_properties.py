"""Whatever happens to a run in whatever order, its life keeps its promises."""

from __future__ import annotations

from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.runs import life as lf
from tests.property.life_model import Attempt, Model

#: How an attempt ends whose user code ran.
ENDS = [o for o in AttemptOutcome if o not in {AttemptOutcome.NOT_STARTED, AttemptOutcome.LOST}]
#: What happens next, and how often compared with the others.
WEIGHTS = {
    "action": 10,
    "grant": 5,
    "news": 5,
    "supervisor": 5,
    "end": 3,
    "expiry": 2,
    "kill": 1,
    "cancel": 1,
    "other": 1,
    "gate": 0.3,
    "run side": 0.5,
}
STEPS = 40
#: More steps than any run needs to its end.
ENOUGH = 60


class Walk:
    """A run to which things happen at random, and the promises that are checked at each step."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.model = Model()
        self.checked = 0
        self.ended: lf.Life | None = None
        self.is_cancelled = False  # since the run side was last started
        self.used: set[int] = set()  # the fences of its starts since then

    def step(self) -> None:
        """Let something happen that can happen now."""
        model, what = self.model, self.random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        if what == "action" and model.ready():
            fails = self.random.random() < 1 / 4
            model.finish_action(self.random.choice(model.ready()), fails=fails)
        elif what == "grant" and model.gate.where == "queued":
            model.gate.give()
        elif what == "expiry" and model.gate.where == "granted":
            model.gate.finished(model.gate.fence, AttemptOutcome.NOT_STARTED)
        elif what == "news":
            model.hear_gate(again=self.random.random() < 1 / 4)
        elif what == "supervisor" and model.alive:
            model.supervisor_asks(model.alive[0])
        elif what == "end" and model.alive and model.alive[0].has_run:
            self.end_supervisor(model.alive[0])
        elif what == "kill" and model.alive:
            model.alive[0].end(None)
        else:
            self.step_from_outside(what)

    def end_supervisor(self, supervisor: Attempt) -> None:
        """Let a supervisor end; the gate may hear of it from there, before its run side."""
        outcome = self.random.choice(ENDS)
        supervisor.end(outcome)
        if self.random.random() < 1 / 2:
            self.model.gate.finished(supervisor.fence, outcome)

    def step_from_outside(self, what: str) -> None:
        """Let a user, a kernel or a restart come in between."""
        model = self.model
        if what == "cancel":
            self.is_cancelled = self.is_cancelled or not model.life.ended
            model.feed(lf.CancelAsked())
        elif what == "other":
            others: list[lf.Event] = [lf.Forsaken(), lf.Detached(), lf.OverTime()]
            model.feed(self.random.choice(others))
        elif what == "gate":
            if model.gate.where != "ended" and self.random.random() < 1 / 2:
                model.gate.where = "unknown"  # its journal is lost
            model.register()
        elif what == "run side":
            model.restart_run_side(started=self.random.random() < 1 / 2)
            self.is_cancelled = False
            self.used = set()
            if model.summary is None:
                self.ended = None  # the disk never took the end

    def fair_step(self) -> None:
        """Let everybody do what is theirs to do; nobody helps a cancelled run to its end."""
        model = self.model
        model.register()
        if model.gate.where == "queued" and not self.is_cancelled:
            model.gate.give()
        model.hear_gate()
        for task in model.ready()[:1]:
            model.finish_action(task)
        for supervisor in model.alive:
            if supervisor.has_run and not supervisor.stop and not self.is_cancelled:
                supervisor.end(AttemptOutcome.COMPLETED)
            else:
                model.supervisor_asks(supervisor)

    # -- the promises ---------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that holds after each step."""
        life = self.model.life
        if self.ended is not None:
            assert life.status == lf.ENDED, "an ended run stays ended"
            assert life.end in (self.ended.end, None), "and stays as it ended"
        elif life.ended:
            self.ended = life
        assert len(self.model.alive) <= 1, "attempts do not overlap"
        ran = [one.fence for one in self.model.supervisors if one.has_run]
        assert len(ran) == len(set(ran)), "user code runs once per grant"
        assert life.cancelled or not self.is_cancelled, "a cancel is remembered"
        for event, before, actions in self.model.seen[self.checked :]:
            check_step(event, before, actions)
            fences = {a.grant.fence for a in actions if isinstance(a, lf.Start)}
            assert not fences & self.used, "a grant is used once"
            self.used |= fences
        self.checked = len(self.model.seen)

    def check_the_end(self) -> None:
        """Everything that holds once all have done what is theirs to do."""
        life, model = self.model.life, self.model
        assert life.status == lf.ENDED, "a run ends"
        assert not model.tasks, "nothing is left to do"
        assert not model.alive, "nothing of it lives"
        assert (life.course, life.waiting, life.returning) == (None, (), ()), "no grant is kept"
        assert model.gate.where in {"ended", "unknown"}, "the gate has heard of it"


def check_step(event: lf.Event, before: lf.Life, actions: tuple[lf.Action, ...]) -> None:
    """What holds of one transition."""
    starts = [action for action in actions if isinstance(action, lf.Start)]
    assert len(starts) <= 1, "one start at a time"
    assert not starts or not before.cancelled, "a cancelled run does not start"
    assert not starts or not before.is_decided, "nor does one whose end is decided"
    if isinstance(event, lf.Over) and event.report.outcome is AttemptOutcome.LOST:
        is_over = any(isinstance(action, lf.RecordEnd) for action in actions)
        assert before.is_decided or is_over, "a lost run is never started again"


@given(seed=st.integers(0, 2**40))
@settings(max_examples=1500, deadline=None, phases=[Phase.generate])
def test_a_run_keeps_its_promises(seed: int) -> None:
    """Grants, starts, cancels, losses, ends and restarts in any order break none of them, and
    every run comes to its end: a cancelled one without the help of its code or of the gate.
    """
    walk = Walk(seed)
    for _ in range(walk.random.randrange(STEPS)):
        walk.step()
        walk.check()
    for _ in range(ENOUGH):
        walk.fair_step()
        walk.check()
    walk.check_the_end()
