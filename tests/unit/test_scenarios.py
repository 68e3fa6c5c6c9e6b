"""What the gate does with whole workloads on a simulated machine, second by second."""

from __future__ import annotations

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.endings import End
from jupyter_gpugate.core.reports import AttemptOutcome, RunEnd
from jupyter_gpugate.core.requests import Basis, Hints, Setting
from jupyter_gpugate.core.resources import GB, MACHINE, MB, RAM
from jupyter_gpugate.core.samples import Fault
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.simulation.twins import Behaviour, ramp
from tests.kit.checked_simulation import CheckedSimulation, devices

GPU = "GPU-0"
TORCH = Setting(workers=1, runtime="torch 2.4")


def why(simulation: CheckedSimulation, run_id: str) -> Check | None:
    """The dominant reason that a run waits for."""
    queued = simulation.state.queue.get(run_id)
    reasons = simulation.decisions.reasons_of(queued.key) if queued else ()
    return reasons[0].check if reasons else None


def ended(simulation: CheckedSimulation, run_id: str) -> None:
    """Step until a run has ended."""
    simulation.until(lambda: run_id in simulation.ended)


def learned(
    simulation: CheckedSimulation, name: str, behaviour: Behaviour, **fields: object
) -> None:
    """Run an eval once, so that the next one is calibrated."""
    ended(simulation, simulation.submit(name, behaviour, **fields))
    simulation.step()


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
    """Thirty runs of a framework that takes all it is given do not raise its need."""
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
    assert max(charges[1:]) <= charges[0]
    assert len(set(charges[2:])) == 1


def test_seeds_do_not_make_an_eval_unknown() -> None:
    """A hundred seeds of one eval: from the fourth on the parameter is known not to matter."""
    simulation = CheckedSimulation(devices())
    for seed in range(100):
        setting = Setting(workers=1, parameters=(("seed", str(seed)),))
        run_id = simulation.submit("seeds", Behaviour(5, vram=ramp(3 * GB)), setting=setting)
        ended(simulation, run_id)
        simulation.step()
    bases = [grant.basis[GPU] for _, grant in simulation.granted]
    assert bases[0] is Basis.WATCH
    assert set(bases[1:]) == {Basis.CALIBRATED}
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
    assert lease.terms.caps[GPU] == 12 * GB  # a settled run keeps its larger cap


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


def test_locks_and_drains_admit_nothing() -> None:
    """A lock closes its device, or the machine; a drain closes the machine; both open again."""
    simulation = CheckedSimulation(devices(2))
    simulation.step()
    simulation.posted.append(ev.Locked(simulation.now, GPU, "bob", simulation.now + 3600))
    first = simulation.submit("a", Behaviour(10))
    simulation.step()
    assert simulation.granted[-1][1].devices == ("GPU-1",)
    assert first in simulation.runs
    simulation.posted.append(ev.Locked(simulation.now, MACHINE, "root", simulation.now + 20))
    second = simulation.submit("b", Behaviour(10), gpus=0)
    simulation.steps(3)
    assert why(simulation, second) is Check.LOCK
    simulation.posted.append(ev.DrainChanged(simulation.now, draining=True, reason="upgrade"))
    simulation.steps(25)  # the lock has run out
    assert why(simulation, second) is Check.DRAIN
    simulation.posted.append(ev.DrainChanged(simulation.now, draining=False))
    simulation.until(lambda: second in simulation.runs)


def test_a_hanging_driver_holds_gpu_runs_and_nobody_else() -> None:
    """Without fresh GPU readings GPU runs wait with that reason; RAM-only runs go on."""
    simulation = CheckedSimulation(devices())
    simulation.step()
    simulation.machine.gpu_reader_since = simulation.now
    simulation.steps(5)
    gpu = simulation.submit("gpu", Behaviour(10))
    ram = simulation.submit("ram", Behaviour(10), gpus=0)
    simulation.steps(2)
    assert why(simulation, gpu) is Check.STALE
    assert ram in simulation.runs
    simulation.machine.gpu_reader_since = None
    simulation.until(lambda: gpu in simulation.runs, most=5)


def test_a_device_that_is_gone_is_missing_and_not_forgotten() -> None:
    """A GPU that was there and is gone keeps its runs waiting; it never becomes no GPU."""
    simulation = CheckedSimulation(devices())
    simulation.step()
    simulation.machine.missing.add(GPU)
    run_id = simulation.submit("gpu", Behaviour(10))
    simulation.steps(2)
    assert why(simulation, run_id) is Check.MISSING
    simulation.restart()
    simulation.steps(2)
    assert why(simulation, run_id) is Check.MISSING
    simulation.machine.missing.clear()
    simulation.machine.faults[GPU] = Fault("nvml-15", "GPU is lost", simulation.now)
    simulation.steps(2)
    assert why(simulation, run_id) is Check.MISSING
    simulation.machine.faults.clear()
    simulation.until(lambda: run_id in simulation.runs)


def test_the_declared_ledger_is_in_force_only_where_nothing_is_measured() -> None:
    """With usable_vram_bytes an unmeasurable GPU admits by the sum of declared numbers."""
    simulation = CheckedSimulation(devices(), Traits(usable_vram_bytes={GPU: 20 * GB}))
    simulation.step()
    simulation.machine.faults[GPU] = Fault("NOT_SUPPORTED", "no memory info", simulation.now)
    hints = Hints(vram_bytes=8 * GB)
    runs = [simulation.submit(f"r{n}", Behaviour(30), hints=hints) for n in range(3)]
    silent = simulation.submit("silent", Behaviour(30))
    simulation.step()
    assert [run in simulation.runs for run in runs] == [True, True, False]
    assert simulation.granted[0][1].basis[GPU] is Basis.DECLARED
    assert why(simulation, runs[2]) is Check.FIT
    assert why(simulation, silent) is Check.UNMEASURED


def test_a_gate_that_is_killed_goes_on_where_it_was() -> None:
    """After a restart live runs are still charged, and queued ones stand in their order."""
    simulation = CheckedSimulation(devices())
    behaviour = Behaviour(60, vram=ramp(10 * GB))
    learned(simulation, "resnet", behaviour)
    runs = [simulation.submit("resnet", behaviour) for _ in range(5)]
    simulation.steps(5)
    before = simulation.state
    simulation.restart()
    assert list(simulation.state.queue) == list(before.queue)
    assert set(simulation.state.leases) == set(before.leases)
    assert simulation.state.leases[runs[0]].usage[GPU].peak_bytes == 10 * GB
    simulation.until(lambda: set(runs) <= set(simulation.ended), most=600)


def test_a_full_disk_refuses_submits_and_harms_no_run() -> None:
    """While nothing can be written, submits and grants do not exist; ends count and are kept."""
    simulation = CheckedSimulation(devices())
    first = simulation.submit("a", Behaviour(10, vram=ramp(GB)))
    simulation.steps(2)
    simulation.journal.broken = "no space left on device"
    refused = simulation.submit("b", Behaviour(10))
    simulation.submitted.discard(refused)
    simulation.steps(15)
    assert refused not in simulation.state.queue
    assert first in simulation.ended
    assert first not in simulation.state.leases
    simulation.journal.broken = ""
    later = simulation.submit("a", Behaviour(10, vram=ramp(GB)))
    simulation.step()
    assert simulation.granted[-1][1].run_id == later
    assert simulation.granted[-1][1].basis[GPU] is Basis.CALIBRATED


def test_a_run_that_hits_its_own_cap_is_given_more_the_next_time() -> None:
    """An unknown run of 16 GB is capped at half the device; its second run is charged 1.5 times
    that, completes, and the third is charged what was measured.
    """
    simulation = CheckedSimulation(devices())
    large = Behaviour(20, vram=ramp(16 * GB, after_s=3))
    first = simulation.submit("large", large, setting=TORCH)
    ended(simulation, first)
    assert simulation.state.ended[first].end.kind is RunEnd.OOM
    second = simulation.submit("large", large, setting=TORCH)
    ended(simulation, second)
    simulation.step()
    assert simulation.granted[-1][1].charges[GPU] == 18 * GB
    assert simulation.state.ended[second].end.kind is RunEnd.COMPLETED
    third = simulation.submit("large", large, setting=TORCH)
    simulation.step()
    assert simulation.granted[-1][1].run_id == third
    assert simulation.granted[-1][1].basis[GPU] is Basis.CALIBRATED
    assert 16 * GB < simulation.granted[-1][1].charges[GPU] <= 18 * GB


def test_a_run_whose_processes_are_gone_is_lost_and_charged_until_then() -> None:
    """Its heartbeats stop: for 15 s the charge stands, then it is lost, and others start."""
    simulation = CheckedSimulation(devices())
    learned(simulation, "big", Behaviour(10, vram=ramp(18 * GB)))
    run_id = simulation.submit("big", Behaviour(500, vram=ramp(18 * GB)))
    simulation.steps(5)
    simulation.lose(run_id)
    waits = simulation.submit("big", Behaviour(10, vram=ramp(18 * GB)))
    simulation.steps(10)
    assert why(simulation, waits) is Check.FIT
    simulation.until(lambda: waits in simulation.runs, most=20)
    assert simulation.state.ended[run_id].end.kind is RunEnd.LOST


def test_grants_that_reach_nobody_go_back_once_and_then_fail() -> None:
    """A grant that is not started in time is tried again in its place, and then never."""
    simulation = CheckedSimulation(devices())
    simulation.starts_runs = False
    run_id = simulation.submit("a", Behaviour(10))
    simulation.steps(35)
    assert [grant.run_id for _, grant in simulation.granted] == [run_id, run_id]
    simulation.until(lambda: run_id in simulation.state.ended, most=40)
    ended_so = simulation.state.ended[run_id]
    assert ended_so.end == End(RunEnd.FAILED, "never_started")


def test_requests_of_an_absent_run_side_are_parked_in_their_place() -> None:
    """They are granted nothing while it is away, and go on where they stood."""
    simulation = CheckedSimulation(devices())
    blocker = simulation.submit("one", Behaviour(60, vram=ramp(GB)), exclusive=True)
    simulation.step()
    waits = simulation.submit("two", Behaviour(10))
    simulation.is_present = False
    simulation.until(lambda: blocker in simulation.ended)
    simulation.steps(5)
    assert why(simulation, waits) is Check.PARKED
    simulation.is_present = True
    simulation.until(lambda: waits in simulation.runs, most=3)


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
