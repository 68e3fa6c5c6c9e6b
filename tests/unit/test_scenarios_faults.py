"""Locks, faults and kills in whole workloads on a simulated machine."""

from __future__ import annotations

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.endings import End
from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.core.requests import Basis, Hints, Setting
from jupyter_gpugate.core.resources import GB, MACHINE, MB
from jupyter_gpugate.core.samples import Fault
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.simulation.twins import Behaviour, ramp
from tests.kit.checked_simulation import CheckedSimulation, devices
from tests.kit.scenarios import GPU, ended, learned, why

TORCH = Setting(workers=1, runtime="torch 2.4")


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


def test_a_first_run_that_needs_more_than_half_the_device_completes() -> None:
    """Its charge is half of the device; what it takes beyond that is charged at once, and the next
    one is charged what was measured.
    """
    simulation = CheckedSimulation(devices())
    large = Behaviour(20, vram=ramp(15 * GB, after_s=3))
    first = simulation.submit("large", large, setting=TORCH)
    simulation.steps(8)
    assert simulation.granted[-1][1].charges[GPU] == 12 * GB
    assert simulation.state.leases[first].charges[GPU] == int(1.25 * 15 * GB)
    ended(simulation, first)
    assert simulation.state.ended[first].end.kind is RunEnd.COMPLETED
    simulation.submit("large", large, setting=TORCH)
    simulation.step()
    assert simulation.granted[-1][1].basis[GPU] is Basis.CALIBRATED
    assert simulation.granted[-1][1].charges[GPU] == int(1.1 * 15 * GB) + 64 * MB


def test_a_first_run_makes_way_for_neighbours_and_spreads_again_when_they_end() -> None:
    """Its cap falls by what a neighbour is promised and rises when that has ended."""
    simulation = CheckedSimulation(devices())
    learned(simulation, "small", Behaviour(10, vram=ramp(4 * GB)))
    first = simulation.submit("new", Behaviour(500, vram=ramp(2 * GB)), setting=TORCH)
    simulation.steps(3)
    caps = [simulation.state.leases[first].caps[GPU]]
    small = simulation.submit("small", Behaviour(30, vram=ramp(4 * GB)))
    simulation.steps(2)
    caps.append(simulation.state.leases[first].caps[GPU])
    simulation.until(lambda: small in simulation.ended)
    simulation.steps(2)
    caps.append(simulation.state.leases[first].caps[GPU])
    promised = next(g.charges[GPU] for _, g in simulation.granted if g.run_id == small)
    assert caps == [24 * GB - 256 * MB, 24 * GB - 256 * MB - promised, 24 * GB - 256 * MB]
    simulation.restart()
    assert simulation.state.leases[first].caps[GPU] == caps[-1]


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
