"""Random histories of a machine and its users; every invariant is checked at every step."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.requests import Hints, Setting
from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import Fault, KernelProcess
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.simulation.twins import Behaviour, Simulation, ramp
from tests.kit.checked_simulation import GPU_IS_LOST, CheckedSimulation, devices
from tests.kit.reference_admission import decide_one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyter_gpugate.core.decisions import KeptWaiting
    from jupyter_gpugate.core.queued import RequestKey
    from jupyter_gpugate.core.samples import ProcessKey

#: Parts that several workers can share.
CHUNKS = 10
TRAITS = Traits(head_after_s=40, watch_wait_s=30, linger_s=10, watch_slot_s=40, settle_s=10)


@contextmanager
def seed_on_failure(seed: int) -> Iterator[None]:
    """Name the seed in whatever fails."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


class History:
    """One seed's worth of things that happen to a gate; whatever goes wrong is right again soon."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.simulation = CheckedSimulation(devices(2), TRAITS)
        self.outsiders: list[ProcessKey] = []
        self.troubles: list[tuple[float, Callable[[], None]]] = []  # until when, and its end
        self.happenings: list[tuple[int, Callable[[], None]]] = [
            (24, self.submit),
            (6, self.cancel),
            (5, self.outsider_comes),
            (6, self.outsider_goes),
            (2, self.kernel_loads),
            (2, self.memory_returns_late),
            (2, self.driver_hangs),
            (2, self.driver_names_nobody),
            (2, self.device_goes),
            (2, self.gate_is_killed),
            (2, self.disk_fills),
            (2, self.run_is_lost),
            (1, self.run_side_goes),
            (1, self.grants_reach_nobody),
            (1, self.clock_jumps),
            (2, self.somebody_locks),
            (1, self.machine_drains),
        ]

    def live(self, steps: int) -> None:
        """Let so many seconds pass, with something happening in about half of them."""
        weights = [weight for weight, _ in self.happenings]
        for _ in range(steps):
            if self.random.random() < 0.5:
                self.random.choices(self.happenings, weights)[0][1]()
            self.calm_down(self.simulation.now)
            if self.simulation.journal.broken:
                self.forget_unwritten()
            self.simulation.step()

    def calm_down(self, until: float = float("inf")) -> None:
        """End the troubles whose time has come, or all of them."""
        for trouble in [one for one in self.troubles if one[0] <= until]:
            self.troubles.remove(trouble)
            trouble[1]()

    def for_a_while(self, end: Callable[[], None]) -> None:
        """Let a trouble that has begun end some seconds later."""
        self.troubles.append((self.simulation.now + self.random.uniform(2, 25), end))

    def submit(self, copies: int = 1) -> None:
        """Queue a run of random habits, or several that are equal."""
        dice = self.random
        size = dice.choice([0, 1, 2, 4, 8, 14, 20]) * GB
        ends = [AttemptOutcome.COMPLETED] * 4 + [AttemptOutcome.FAILED, AttemptOutcome.OOM]
        behaviour = Behaviour(
            dice.uniform(3, 60),
            ram=ramp(dice.randrange(100, 4000) * MB, over_s=dice.uniform(0, 5)),
            vram=ramp(size, after_s=dice.uniform(0, 20), over_s=dice.uniform(0, 10)),
            episodes=lambda s: int(s // 5),
            outcome=dice.choice(ends),
            ready_s=dice.uniform(0, 40),
        )
        fields: dict[str, Any] = {
            "source": f"v{dice.randrange(2)}",
            "setting": Setting(
                workers=dice.choice([1, 1, 2]),
                episodes=dice.choice([1, 10]),
                runtime=dice.choice(["", "torch 2.4"]),
            ),
            "gpus": dice.choice([0, 1, 1, 1, 2]),
            "owner": dice.choice(["ada", "bob"]),
            "hints": Hints(vram_bytes=size or None) if dice.random() < 0.2 else Hints(),
            "exclusive": dice.random() < 0.06,
            "service": dice.random() < 0.15,
            "by_url": dice.random() < 0.7,
            "max_wait_s": dice.choice([None, None, 50.0]),
            **self.company(),
        }
        if fields["gpus"] == 1:
            fields["device"] = dice.choice([(), (), (), ("0",), ("GPU-1",), ("0", "1")])
        name = f"eval{dice.randrange(6)}"
        for _ in range(copies):
            self.simulation.submit(name, behaviour, **fields)

    def company(self) -> dict[str, Any]:
        """Return the group of a run, or the runs that have to complete first, if any."""
        dice, known = self.random, sorted(self.simulation.submitted)
        number = dice.randrange(3)
        group = {"group": f"group-{number}", "at_most": number + 1}
        others = {"after": tuple(dice.sample(known, min(len(known), dice.randrange(3))))}
        return {**(group if dice.random() < 0.2 else {}), **(others if dice.random() < 0.1 else {})}

    def cancel(self) -> None:
        known = [*self.simulation.state.queue, *self.simulation.runs]
        if known:
            self.simulation.cancel(self.random.choice(known))

    def outsider_comes(self) -> None:
        holding = self.simulation.machine.spawn(ram_bytes=self.random.randrange(8) * GB)
        holding.gpu_bytes[f"GPU-{self.random.randrange(2)}"] = self.random.randrange(6) * GB
        self.outsiders.append(holding.key)

    def outsider_goes(self) -> None:
        if self.outsiders:
            self.simulation.machine.kill(self.outsiders.pop())

    def kernel_loads(self) -> None:
        holding = self.simulation.machine.spawn(ram_bytes=GB)
        holding.gpu_bytes["GPU-0"] = GB
        kernel = KernelProcess(holding.key, f"nb{holding.key.pid}.ipynb", "ada")
        self.simulation.machine.kernels.append(kernel)
        self.outsiders.append(holding.key)

    def memory_returns_late(self) -> None:
        self.simulation.returns_after_s = self.random.choice([2.0, 5.0, 20.0])
        self.for_a_while(lambda: setattr(self.simulation, "returns_after_s", 0.0))

    def driver_hangs(self) -> None:
        self.simulation.machine.gpu_reader_since = self.simulation.now
        self.for_a_while(lambda: setattr(self.simulation.machine, "gpu_reader_since", None))

    def driver_names_nobody(self) -> None:
        self.simulation.machine.names_holders = False
        self.for_a_while(lambda: setattr(self.simulation.machine, "names_holders", True))

    def device_goes(self) -> None:
        machine = self.simulation.machine
        if self.random.random() < 0.5:
            machine.missing.add("GPU-1")
            self.for_a_while(machine.missing.clear)
        else:
            machine.faults["GPU-1"] = Fault(GPU_IS_LOST, "lost", self.simulation.now)
            self.for_a_while(machine.faults.clear)

    def gate_is_killed(self) -> None:
        if not self.simulation.journal.broken:
            self.simulation.restart()

    def disk_fills(self) -> None:
        journal = self.simulation.journal
        journal.broken = "no space left on device"
        self.for_a_while(lambda: setattr(journal, "broken", ""))

    def forget_unwritten(self) -> None:
        """A submit that was refused was never acknowledged."""
        for event in self.simulation.posted:
            if isinstance(event, ev.Requested):
                self.simulation.submitted.discard(event.request.run_id)

    def run_is_lost(self) -> None:
        if self.simulation.runs:
            self.simulation.lose(self.random.choice(list(self.simulation.runs)))

    def run_side_goes(self) -> None:
        self.simulation.is_present = False
        self.for_a_while(lambda: setattr(self.simulation, "is_present", True))

    def grants_reach_nobody(self) -> None:
        self.simulation.starts_runs = False
        self.for_a_while(lambda: setattr(self.simulation, "starts_runs", True))

    def clock_jumps(self) -> None:
        self.simulation.step(self.random.choice([12.0, 600.0]))

    def somebody_locks(self) -> None:
        self.simulation.posted.append(
            ev.Locked(self.simulation.now, "GPU-0", "bob", self.simulation.now + 15)
        )

    def machine_drains(self) -> None:
        self.drain(draining=True)
        self.for_a_while(lambda: self.drain(draining=False))

    def drain(self, *, draining: bool) -> None:
        self.simulation.posted.append(ev.DrainChanged(self.simulation.now, draining))


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_history_breaks_an_invariant(chunk: int, soaking: bool) -> None:
    """Whatever happens to machine, users and gate, no invariant is ever broken."""
    for seed in range(chunk, 2000 if soaking else 60, CHUNKS):
        with seed_on_failure(seed):
            History(seed).live(500)


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_equal_requests_share_the_verdict_they_would_get_one_by_one(
    chunk: int, soaking: bool
) -> None:
    """The grouped walk grants, refuses and sets aside what the plain loop does."""
    for seed in range(chunk, 400 if soaking else 60, CHUNKS):
        with seed_on_failure(seed):
            history = History(seed)
            history.live(30)
            history.calm_down()
            for _ in range(10):
                history.submit(copies=3)
            for _ in range(5):
                compare_with_one_by_one(history.simulation)
                history.simulation.steps(10)


def compare_with_one_by_one(simulation: Simulation) -> None:
    """Of equal requests the first one refused speaks for all that follow."""
    tick = Simulation.step(simulation)
    asked = (tick.decided, tick.happened.sample, tick.at)
    grants, refusals, earmarks = decide_one_by_one(*asked)
    decisions = decide(*asked)
    assert decisions.grants == grants
    assert decisions.earmarks == earmarks
    first: dict[RequestKey, KeptWaiting] = {}
    for run_id, refusal in refusals.items():
        first.setdefault(tick.decided.queue[run_id].key, refusal)
    assert decisions.kept_waiting == first


def test_the_decision_changes_nothing_that_it_was_given() -> None:
    """Deciding twice gives the same answer, and the state is as it was."""
    history = History(7)
    history.live(60)
    simulation = history.simulation
    sample = simulation.machine.sample(simulation.now)
    before = repr(simulation.state)
    once = decide(simulation.state, sample, simulation.now)
    assert decide(simulation.state, sample, simulation.now) == once
    assert repr(simulation.state) == before
