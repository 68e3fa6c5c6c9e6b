"""What the gate does with whole workloads on a simulated machine, second by second."""

from __future__ import annotations

import pytest

from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.parameters import shown
from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.requests import Basis, Setting
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.simulation.twins import Behaviour, ramp
from tests.kit.checked_simulation import CheckedSimulation, devices
from tests.kit.scenarios import GPU, ended, learned, why


def test_the_second_run_is_admitted_from_the_first_ones_peak() -> None:
    """An unknown eval starts on watch, and from its second run on at what it was measured at."""
    simulation = CheckedSimulation(devices())
    behaviour = Behaviour(20, vram=ramp(10 * GB))
    learned(simulation, "resnet", behaviour)
    simulation.submit("resnet", behaviour)
    simulation.step()
    first, second = (grant for _, grant in simulation.granted)
    assert first.basis == {RAM: Basis.WATCH, GPU: Basis.WATCH}
    assert first.charges[GPU] == 12 * GB  # half of 24 GB
    assert second.basis == {RAM: Basis.CALIBRATED, GPU: Basis.CALIBRATED}
    assert second.charges[GPU] == 10 * GB + 1024 * MB + 64 * MB  # peak + 10 % + 64 MB


def test_two_of_three_start_in_one_tick_and_the_third_when_one_ends() -> None:
    """On 24 GB, of three evals of 10 GB two start together and the third by itself later."""
    simulation = CheckedSimulation(devices())
    behaviour = Behaviour(30, vram=ramp(10 * GB))
    learned(simulation, "resnet", behaviour)
    learned(simulation, "resnet", behaviour)  # 10 GB + 7 % + 64 MB: two of them fit
    simulation.granted.clear()
    runs = [simulation.submit("resnet", behaviour) for _ in range(3)]
    simulation.step()
    assert [grant.run_id for _, grant in simulation.granted] == runs[:2]
    reason = simulation.decisions.reasons_of(simulation.state.queue[runs[2]].key)[0]
    assert reason.check is Check.FIT
    assert reason.numbers["reserved_bytes"] == 2 * simulation.granted[0][1].charges[GPU]
    assert reason.numbers["free_bytes"] == 24 * GB
    assert reason.numbers["floor_bytes"] == 256 * MB
    simulation.until(lambda: runs[2] in simulation.ended)


def test_two_devices_take_one_run_each() -> None:
    """With two equal devices the first two runs are put on different ones."""
    simulation = CheckedSimulation(devices(2))
    behaviour = Behaviour(30, vram=ramp(10 * GB))
    learned(simulation, "resnet", behaviour)
    simulation.granted.clear()
    for _ in range(2):
        simulation.submit("resnet", behaviour)
    simulation.step()
    assert {grant.devices for _, grant in simulation.granted} == {("GPU-0",), ("GPU-1",)}


@pytest.mark.parametrize("known", [True, False], ids=["calibrated", "unknown"])
def test_slow_loaders_are_never_over_admitted(known: bool) -> None:
    """Of 128 runs whose memory appears after a minute, never more are live than fit."""
    simulation = CheckedSimulation(devices(), Traits(max_queued=200))
    behaviour = Behaviour(150, vram=ramp(5 * GB, after_s=60, over_s=10))
    if known:
        learned(simulation, "slow", behaviour)
    for _ in range(128):
        simulation.submit("slow", behaviour)
    most = 0
    for _ in range(600):
        simulation.step()
        most = max(most, len(simulation.runs))
        used = simulation.machine.used(GPU, simulation.now)
        assert used <= 24 * GB - 256 * MB
    assert 1 <= most <= 4  # 4 x (5 GB + margin) fit into 24 GB


def test_room_follows_what_others_take_and_what_lingers() -> None:
    """A run that has used 2 of its 10 GB keeps 8 promised; others' growth and a dead process's
    memory lower the room until they are seen gone.
    """
    simulation = CheckedSimulation(devices())
    simulation.returns_after_s = 8
    learned(simulation, "big", Behaviour(10, vram=ramp(10 * GB)))
    held = {"gb": 2}
    growing = Behaviour(40, vram=lambda _s: held["gb"] * GB)
    first = simulation.submit("big", growing)
    simulation.steps(12)  # the last run's memory is back by now
    lease = simulation.state.leases[first]
    need = 10 * GB + 1024 * MB + 64 * MB
    assert lease.reservation(GPU) == need - 2 * GB
    outsider = simulation.machine.spawn()
    outsider.gpu_bytes[GPU] = 5 * GB
    waiting = simulation.submit("big", growing)
    simulation.step()
    reason = simulation.decisions.reasons_of(simulation.state.queue[waiting].key)[0]
    # 24 - 2 held - 5 external = 17 free; the floor follows the outsider's rise of 5 GB, at most
    # a tenth of the device
    assert reason.numbers["free_bytes"] == 17 * GB
    assert reason.numbers["floor_bytes"] == int(0.10 * 24 * GB)
    assert reason.numbers["reserved_bytes"] == need - 2 * GB
    simulation.machine.kill(outsider.key)
    simulation.until(lambda: first in simulation.ended)
    # Its 2 GB are not back yet: attributed to the run that is gone, and no room for anybody.
    shares = simulation.state.attribution.resources[GPU]
    assert {h.name: b for h, b in shares.by_holder.items()}.get(first) == 2 * GB
    simulation.until(lambda: not any(k[0] == first for k in simulation.state.lingering), most=40)


def test_memory_that_never_comes_back_becomes_external() -> None:
    """What a gone run left is its own for the time to linger, and then nobody's."""
    simulation = CheckedSimulation(devices(), Traits(linger_s=30))
    simulation.returns_after_s = 10_000
    run_id = simulation.submit("leaky", Behaviour(10, vram=ramp(4 * GB)))
    simulation.until(lambda: run_id in simulation.ended)
    simulation.steps(5)
    assert simulation.state.lingering
    simulation.steps(30)
    assert not simulation.state.lingering
    assert simulation.state.attribution.resources[GPU].external_bytes == 4 * GB


def test_a_needs_estimate_does_not_creep_when_allocators_fill_their_cap() -> None:
    """Of thirty runs that take all they are given, the first may take all of the device, and each
    of the others needs just that.
    """
    simulation = CheckedSimulation(devices())
    charges = []
    for _ in range(30):
        run_id = simulation.submit("greedy", Behaviour(20))
        simulation.step()
        cap = simulation.granted[-1][1].caps[GPU]
        charges.append(simulation.granted[-1][1].charges[GPU])
        simulation.behaviours[run_id] = filling = Behaviour(20, vram=ramp(cap))
        simulation.runs[run_id].behaviour = filling
        ended(simulation, run_id)
        simulation.step()
    assert charges[0] == 12 * GB
    assert set(charges[1:]) == {24 * GB - 256 * MB}


def test_seeds_do_not_make_an_eval_unknown() -> None:
    """A hundred seeds of one eval: the third is fitted, all later ones are level."""
    simulation = CheckedSimulation(devices())
    for seed in range(100):
        setting = Setting(workers=1, parameters=(("seed", shown("seed", str(seed))),))
        run_id = simulation.submit("seeds", Behaviour(5, vram=ramp(3 * GB)), setting=setting)
        ended(simulation, run_id)
        simulation.step()
    bases = [grant.basis[GPU] for _, grant in simulation.granted]
    assert bases[:2] == [Basis.WATCH] * 2
    assert set(bases[2:]) == {Basis.CALIBRATED}
    term = simulation.granted[-1][1].charges[GPU]
    assert term <= 3 * GB + int(0.1 * 3 * GB) + 64 * MB


def test_an_edited_cell_is_watched_with_its_past_as_the_prior() -> None:
    """After an edit the old need counts as a prior: twice it is the provisional charge."""
    simulation = CheckedSimulation(devices())
    learned(simulation, "edited", Behaviour(10, vram=ramp(2 * GB)), source="before")
    simulation.submit("edited", Behaviour(10, vram=ramp(2 * GB)), source="after")
    simulation.step()
    grant = simulation.granted[-1][1]
    prior = 2 * GB + (2 * GB + 9) // 10 + 64 * MB
    assert grant.basis[GPU] is Basis.WATCH
    assert abs(grant.charges[GPU] - 2 * prior) <= 2


def test_only_one_unmeasured_run_settles_on_a_device_at_a_time() -> None:
    """The second unmeasured run starts once the first has settled, at a lower charge."""
    simulation = CheckedSimulation(devices())
    episodic = Setting(workers=1, episodes=20)
    behaviour = Behaviour(900, vram=ramp(2 * GB, after_s=5), episodes=lambda s: int(s // 30))
    first = simulation.submit("one", behaviour, setting=episodic)
    second = simulation.submit("two", behaviour, setting=episodic)
    simulation.step()
    assert why(simulation, second) is Check.WATCH_SLOT
    steps = simulation.until(lambda: second in simulation.runs)
    lease = simulation.state.leases[first]
    assert 60 <= steps <= 200
    assert lease.charges[GPU] == int(1.25 * 2 * GB) + 256 * MB
    assert lease.caps[GPU] == 24 * GB - 256 * MB  # a settled run keeps its larger cap


def test_eight_new_runs_start_at_once_on_eight_empty_devices() -> None:
    """Together they are charged half of the machine's 256 GB of RAM; a quarter each kept the fourth
    one waiting.
    """
    simulation = CheckedSimulation(devices(8), ram_bytes=256 * GB)
    for number in range(8):
        simulation.submit(f"new-{number}", Behaviour(100, vram=ramp(GB)))
    simulation.step()
    grants = [grant for _, grant in simulation.granted]
    assert len({grant.devices for grant in grants}) == 8
    assert {grant.charges[RAM] for grant in grants} == {16 * GB}


def test_twenty_new_runs_that_use_next_to_nothing_follow_each_other_in_seconds() -> None:
    """With 22 GB free, three fit at a quarter of the RAM each; every wave makes room for the next
    as soon as it has shown that it holds 26 MB.
    """
    simulation = CheckedSimulation(ram_bytes=23 * GB)  # of which the system has one
    cell = Behaviour(600, ram=ramp(26 * MB), episodes=int)
    setting = Setting(workers=1, episodes=600)
    runs = [simulation.submit("new", cell, setting=setting, gpus=0) for _ in range(20)]
    simulation.step()
    assert [grant.charges[RAM] for _, grant in simulation.granted] == [23 * GB // 4] * 3
    assert simulation.until(lambda: set(runs) == set(simulation.runs)) <= 90
    settled = simulation.state.leases[runs[0]].charges[RAM]
    assert settled == int(1.25 * (26 + 12) * MB) + 256 * MB  # its supervisor's 12 MB count as well


def test_zero_use_is_not_settled_use_but_gives_the_slot_up() -> None:
    """A watch run that uses no GPU keeps its charge; after ten minutes its slot passes on."""
    simulation = CheckedSimulation(devices(), Traits(watch_slot_s=600))
    idle = simulation.submit("idle", Behaviour(5000, vram=ramp(0)))
    other = simulation.submit("other", Behaviour(100, vram=ramp(GB)))
    simulation.steps(590)
    assert why(simulation, other) is Check.WATCH_SLOT
    simulation.until(lambda: other in simulation.runs or why(simulation, other) is Check.FIT, 400)
    assert simulation.state.leases[idle].charges[GPU] == 12 * GB


def test_a_run_over_its_charge_is_charged_what_it_takes() -> None:
    """An overrun is charged 1.25 times what is held, and no unmeasured run starts beside it."""
    simulation = CheckedSimulation(devices())
    learned(simulation, "grows", Behaviour(10, vram=ramp(2 * GB)))
    run_id = simulation.submit("grows", Behaviour(300, vram=ramp(6 * GB, after_s=3)))
    simulation.steps(8)
    assert simulation.state.leases[run_id].charges[GPU] == int(1.25 * 6 * GB)
    unknown = simulation.submit("unknown", Behaviour(10))
    simulation.step()
    assert why(simulation, unknown) is Check.OVERRUN


def test_small_runs_do_not_starve_a_large_one() -> None:
    """After head_after_s room is set aside for the oldest run, and it starts."""
    simulation = CheckedSimulation(devices(), Traits(head_after_s=60))
    learned(simulation, "large", Behaviour(10, vram=ramp(18 * GB)))
    learned(simulation, "small", Behaviour(10, vram=ramp(4 * GB)))
    small = Behaviour(40, vram=ramp(4 * GB))
    for _ in range(5):
        simulation.submit("small", small)
        simulation.steps(8)
    large = simulation.submit("large", Behaviour(10, vram=ramp(18 * GB)))
    for second in range(400):
        if second % 8 == 0:
            simulation.submit("small", small)
        simulation.step()
        if large in simulation.runs:
            break
    assert large in simulation.runs
    assert second < 60 + 60


def test_a_run_that_could_not_fit_even_alone_is_told_who_holds_the_memory() -> None:
    """Nothing is set aside for a run that external holders keep out."""
    simulation = CheckedSimulation(devices(), Traits(head_after_s=5))
    learned(simulation, "large", Behaviour(10, vram=ramp(18 * GB)))
    simulation.machine.spawn().gpu_bytes[GPU] = 10 * GB
    large = simulation.submit("large", Behaviour(10, vram=ramp(18 * GB)))
    simulation.steps(10)
    assert why(simulation, large) is Check.EXTERNAL_HOLDS
    assert simulation.decisions.earmarks == ()


def test_an_exclusive_run_waits_for_its_device_and_then_keeps_it() -> None:
    """It waits until no lease lives there, nothing new starts meanwhile, then it is alone."""
    simulation = CheckedSimulation(devices())
    learned(simulation, "small", Behaviour(10, vram=ramp(2 * GB)))
    small = Behaviour(40, vram=ramp(2 * GB))
    running = simulation.submit("small", small)
    simulation.steps(3)
    alone = simulation.submit("small", small, exclusive=True)
    simulation.step()
    later = simulation.submit("small", small)
    simulation.steps(2)
    assert why(simulation, alone) is Check.EXCLUSIVE
    assert why(simulation, later) is Check.EXCLUSIVE
    simulation.until(lambda: alone in simulation.runs)
    assert running in simulation.ended
    simulation.steps(2)
    assert why(simulation, later) is Check.EXCLUSIVE
    simulation.until(lambda: later in simulation.runs)
    assert alone in simulation.ended


def test_an_exclusive_run_does_not_starve_behind_small_ones() -> None:
    """Not even in the seconds in which the last run's memory is not back yet."""
    simulation = CheckedSimulation(devices())
    simulation.returns_after_s = 6
    learned(simulation, "small", Behaviour(10, vram=ramp(2 * GB)))
    learned(simulation, "large", Behaviour(10, vram=ramp(20 * GB)))
    simulation.steps(10)
    small = Behaviour(25, vram=ramp(2 * GB))
    simulation.submit("small", small)
    simulation.steps(5)
    alone = simulation.submit("large", Behaviour(10, vram=ramp(20 * GB)), exclusive=True)
    for _ in range(60):
        simulation.submit("small", small)
        simulation.step()
    assert alone in simulation.ended or alone in simulation.runs


def test_a_large_need_of_ram_alone_does_not_starve() -> None:
    """A run without GPUs heads the RAM like any other its device."""
    simulation = CheckedSimulation(traits=Traits(head_after_s=60), ram_bytes=64 * GB)
    learned(simulation, "large", Behaviour(10, ram=ramp(45 * GB)), gpus=0)
    learned(simulation, "small", Behaviour(10, ram=ramp(10 * GB)), gpus=0)
    small = Behaviour(40, ram=ramp(10 * GB))
    for _ in range(4):
        simulation.submit("small", small, gpus=0)
        simulation.steps(8)
    large = simulation.submit("large", Behaviour(10, ram=ramp(45 * GB)), gpus=0)
    for second in range(200):
        if second % 8 == 0:
            simulation.submit("small", small, gpus=0)
        simulation.step()
        if large in simulation.runs:
            break
    assert large in simulation.runs


def test_what_failed_teaches_a_lower_bound_and_no_need() -> None:
    """After a failure the next run is watched again, at no less than 1.5 times what was seen."""
    simulation = CheckedSimulation(devices())
    failing = Behaviour(10, vram=ramp(10 * GB), outcome=AttemptOutcome.FAILED)
    learned(simulation, "fails", failing)
    simulation.submit("fails", failing)
    simulation.step()
    grant = simulation.granted[-1][1]
    assert (grant.basis[GPU], grant.charges[GPU]) == (Basis.WATCH, 15 * GB)


@pytest.mark.parametrize("stranger", [0, GB])
def test_a_guess_beyond_the_device_gets_all_that_others_leave(stranger: int) -> None:
    """Twice the workers may share what one worker holds: the run starts, and is measured."""
    simulation = CheckedSimulation(devices())
    learned(simulation, "wide", Behaviour(10, vram=ramp(20 * GB)))
    simulation.step()
    simulation.machine.spawn().gpu_bytes[GPU] = stranger
    simulation.submit("wide", Behaviour(10, vram=ramp(20 * GB)), setting=Setting(workers=3))
    simulation.step()
    grant = simulation.granted[-1][1]
    assert grant.basis[GPU] is Basis.CALIBRATED
