"""Services on a simulated machine: they load alone, become ready, and calibrate while they live."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.estimates import EstimateTerm, Origin
from jupyter_gpugate.core.explaining.snapshot import snapshot
from jupyter_gpugate.core.learning.needs import needs_of
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.requests import Basis, Chosen, Family, Hints, Request, Setting
from jupyter_gpugate.core.resources import GB, MB, RAM, VRAM
from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.gate.simulation.twins import Behaviour, ramp
from tests.kit.checked_simulation import CheckedSimulation, devices
from tests.kit.scenarios import GPU, why

HINTS = Hints(2 * GB, GB)
#: A run that stays.
STAYS = Behaviour(math.inf, vram=ramp(GB))


def server(ready_s: float = 30, vram: int = 4 * GB) -> Behaviour:
    """A service that takes its memory within ten seconds, and answers after ``ready_s``."""
    return Behaviour(math.inf, vram=ramp(vram, over_s=10), ready_s=ready_s)


def serve(
    simulation: CheckedSimulation, behaviour: Behaviour | None = None, **fields: object
) -> str:
    """Submit a service with a URL, unless the fields say otherwise."""
    given = {"service": True, "by_url": True, "hints": HINTS, **fields}
    return simulation.submit("server", behaviour or server(), **given)


def is_ready(simulation: CheckedSimulation, run_id: str) -> bool:
    """Whether a service has become ready."""
    lease = simulation.state.leases.get(run_id)
    return lease is not None and not lease.is_loading


# -- row 167: while it loads, nothing else starts there -------------------------------------------


def test_nothing_else_starts_on_the_device_of_a_service_that_loads() -> None:
    """From the grant until it is ready; runs without a GPU, and on other devices, start."""
    simulation = CheckedSimulation(devices())
    service = serve(simulation)
    simulation.step()
    assert service in simulation.state.leases  # granted and not even started
    other = simulation.submit("other", STAYS, hints=HINTS)
    second = serve(simulation)
    without = simulation.submit("cpu", STAYS, gpus=0)
    simulation.step()
    assert without in simulation.state.leases
    assert why(simulation, other) is why(simulation, second) is Check.LOADING
    (reason,) = simulation.decisions.reasons_of(simulation.state.queue[other].key)
    assert (reason.resource, reason.who) == (GPU, (service,))
    assert simulation.until(lambda: other in simulation.state.leases) > 20
    assert is_ready(simulation, service)
    assert second in simulation.state.leases
    assert not is_ready(simulation, second)


def test_services_of_one_tick_load_one_after_the_other() -> None:
    """On one device; with two, each loads on its own."""
    simulation = CheckedSimulation(devices())
    first, second = serve(simulation), serve(simulation)
    simulation.step()
    assert (first in simulation.state.leases, why(simulation, second)) == (True, Check.LOADING)
    simulation = CheckedSimulation(devices(2))
    both = {serve(simulation), serve(simulation)}
    simulation.step()
    assert both == set(simulation.state.leases)


def test_a_run_goes_to_the_device_where_nothing_loads() -> None:
    """Though it had more room on the other."""
    simulation = CheckedSimulation(devices(2))
    service = serve(simulation)
    simulation.step()
    other = simulation.submit("other", STAYS, hints=HINTS)
    simulation.step()
    assert simulation.state.leases[other].terms.devices != (
        simulation.state.leases[service].terms.devices
    )


def test_a_service_that_ends_while_it_loads_lets_others_start() -> None:
    """Stopped or failed, it loads no more."""
    simulation = CheckedSimulation(devices())
    service = serve(simulation, server(ready_s=math.inf))
    simulation.steps(20)
    other = simulation.submit("other", STAYS, hints=HINTS)
    simulation.steps(5)
    assert why(simulation, other) is Check.LOADING
    simulation.cancel(service)
    simulation.until(lambda: other in simulation.state.leases)


def test_a_head_has_its_earmark_while_a_service_loads() -> None:
    """RAM that is set aside for it is not given to others meanwhile."""
    simulation = CheckedSimulation(devices(), Traits(head_after_s=30))
    holder = simulation.submit("holder", STAYS, hints=Hints(20 * GB, GB))
    simulation.step()
    large = simulation.submit("large", STAYS, hints=Hints(10 * GB, 40 * GB))
    service = serve(simulation, server(ready_s=100), hints=Hints(GB, GB))
    simulation.until(lambda: service in simulation.state.leases)
    simulation.steps(40)
    assert why(simulation, large) is Check.LOADING
    (mark,) = simulation.decisions.earmarks
    assert (mark.run_id, mark.check, mark.devices) == (large, Check.FIT, (GPU,))
    assert mark.bytes_by_resource[RAM] > 40 * GB
    eager = simulation.submit("eager", STAYS, gpus=0, hints=Hints(None, 30 * GB))
    simulation.step()
    assert why(simulation, eager) is Check.FIT
    simulation.cancel(holder)
    simulation.until(lambda: large in simulation.state.leases)
    assert is_ready(simulation, service)


def test_a_run_of_unknown_need_heads_no_device_while_a_service_loads() -> None:
    """What it waits for may be the watch slot, for which nothing is set aside."""
    simulation = CheckedSimulation(devices(), Traits(head_after_s=30))
    serve(simulation, server(ready_s=100))
    unknown = simulation.submit("unknown", STAYS)
    simulation.steps(50)
    assert why(simulation, unknown) is Check.LOADING
    assert simulation.decisions.earmarks == ()


def test_the_snapshot_shows_whether_a_service_is_ready() -> None:
    """And says nothing of it for other runs."""
    simulation = CheckedSimulation(devices(2))
    service = serve(simulation)
    simulation.submit("other", STAYS, hints=HINTS)
    simulation.step()

    def shown() -> dict[str, tuple[bool, bool | None]]:
        sample = simulation.machine.sample(simulation.now)
        here = snapshot(simulation.state, sample, simulation.decisions, simulation.now)
        return {row.name: (row.service, row.ready) for row in here.running}

    assert shown() == {"server": (True, False), "other": (False, None)}
    simulation.until(lambda: is_ready(simulation, service))
    assert shown()["server"] == (True, True)


@pytest.mark.parametrize("is_late", [False, True])
def test_loading_and_ready_survive_a_restart_of_the_gate(*, is_late: bool) -> None:
    """A service that loads loads on, and one that was ready stays so, whatever it says then."""
    simulation = CheckedSimulation(devices())
    service = serve(simulation)
    simulation.until(lambda: is_ready(simulation, service) if is_late else bool(simulation.runs))
    if is_late:
        simulation.runs[service].behaviour = server(ready_s=math.inf)
    simulation.restart()
    assert is_ready(simulation, service) == is_late
    other = simulation.submit("other", STAYS, hints=HINTS)
    simulation.step()
    assert (other in simulation.state.leases) == is_late
    if not is_late:
        assert why(simulation, other) is Check.LOADING


# -- when it is ready without a URL ---------------------------------------------------------------


def ready_after(behaviour: Behaviour, **fields: object) -> int:
    """The seconds until a service without a URL is ready."""
    simulation = CheckedSimulation(devices(), Traits(watch_slot_s=600))
    service = serve(simulation, behaviour, by_url=False, **fields)
    return simulation.until(lambda: is_ready(simulation, service))


def test_without_a_url_a_peak_that_stands_still_shows_that_it_is_ready() -> None:
    """For 60 seconds, counted from the last rise; a little more of it is no rise."""
    still = ready_after(server(ready_s=math.inf))
    assert 70 <= still <= 75  # it takes its memory for ten seconds
    stairs = Behaviour(math.inf, vram=lambda s: int(1 + s // 50) * GB if s < 200 else 4 * GB)
    assert 210 <= ready_after(stairs) <= 216
    creeping = Behaviour(math.inf, vram=lambda s: 4 * GB + int(s) * 100_000)
    assert ready_after(creeping) <= 65


def test_a_device_that_is_not_used_yet_is_no_peak_that_stands_still() -> None:
    """Until ten minutes have passed: then it is judged by its RAM alone."""
    late = Behaviour(math.inf, vram=ramp(4 * GB, after_s=300))
    assert 360 <= ready_after(late) <= 366
    never = Behaviour(math.inf)
    assert 600 <= ready_after(never) <= 606
    assert ready_after(never, gpus=0) <= 66


def test_where_no_holder_is_named_its_ram_shows_it() -> None:
    """The driver lists no processes, so that no peak of the device is known."""
    simulation = CheckedSimulation(devices())
    simulation.machine.names_holders = False
    service = serve(simulation, server(), by_url=False)
    assert simulation.until(lambda: is_ready(simulation, service)) <= 75


def test_with_a_url_the_url_alone_decides() -> None:
    """A peak that stands still may be that of a server that still compiles."""
    simulation = CheckedSimulation(devices())
    service = serve(simulation, server(ready_s=200))
    assert simulation.until(lambda: is_ready(simulation, service)) > 200


# -- row 163: it calibrates -----------------------------------------------------------------------


def estimate(simulation: CheckedSimulation, resource: str = VRAM) -> EstimateTerm:
    """What the next service like it would need."""
    family, fields = Family("ada", "server", "source", 1), {"service": True}
    asked = Request("next", family, Setting(workers=1), **fields)  # type: ignore[arg-type]
    state = simulation.state
    _, estimates = needs_of(state.calibration, asked, state.inventory, state.driver)
    return estimates[0][1].term(resource)


@pytest.mark.parametrize("end", ["cancelled", "failed", "lost", "lives"])
def test_a_service_that_was_ready_has_shown_its_need(end: str) -> None:
    """However it ends, and before it ends; it counts once."""
    simulation = CheckedSimulation(devices())
    service = serve(simulation, hints=Hints())
    simulation.until(lambda: is_ready(simulation, service))
    assert estimate(simulation).origin is Origin.MEASURED
    simulation.steps(30)
    finish(simulation, service, end)
    term = estimate(simulation)
    assert (term.origin, term.peak_bytes, term.n) == (Origin.MEASURED, 4 * GB, 1)
    assert estimate(simulation, RAM).n == 1


def finish(simulation: CheckedSimulation, service: str, end: str) -> None:
    """Let a service end so, and the gate see it."""
    if end == "lost":
        simulation.lose(service)
        simulation.steps(20)
    elif end == "cancelled":
        simulation.cancel(service)
    elif end == "failed":
        run = simulation.runs[service]
        run.behaviour = replace(run.behaviour, lasts_s=0, outcome=AttemptOutcome.FAILED)
    simulation.steps(2)


def test_a_service_that_was_never_ready_shows_a_lower_bound() -> None:
    """Stopped while it loads, it has not shown its need."""
    simulation = CheckedSimulation(devices())
    service = serve(simulation, server(ready_s=math.inf), hints=Hints())
    simulation.steps(20)
    simulation.cancel(service)
    simulation.steps(2)
    term = estimate(simulation)
    assert (term.need_bytes, term.lower_bound_bytes) == (None, 4 * GB)


def test_a_device_that_is_unused_when_the_service_is_ready_is_judged_at_its_end() -> None:
    """It may load its model at the first request: next to nothing is no need before that."""
    simulation = CheckedSimulation(devices())
    lazy = replace(server(), vram=ramp(4 * GB, after_s=60))
    service = serve(simulation, lazy, hints=Hints())
    simulation.until(lambda: is_ready(simulation, service))
    assert estimate(simulation).need_bytes is None
    assert estimate(simulation, RAM).n == 1
    simulation.steps(60)
    simulation.cancel(service)
    simulation.steps(2)
    assert estimate(simulation).peak_bytes == 4 * GB


def test_growth_after_ready_counts_at_the_end() -> None:
    """The later observation of a run replaces the earlier one, also after a restart."""
    simulation = CheckedSimulation(devices())
    grows = replace(server(), vram=lambda s: 4 * GB if s < 60 else 6 * GB)
    service = serve(simulation, grows, hints=Hints())
    simulation.until(lambda: is_ready(simulation, service))
    assert estimate(simulation).peak_bytes == 4 * GB
    simulation.steps(60)
    simulation.cancel(service)
    simulation.steps(2)
    assert (estimate(simulation).peak_bytes, estimate(simulation).n) == (6 * GB, 1)


def test_a_service_that_ran_out_of_memory_later_teaches_both() -> None:
    """What it needed to become ready, and that this was not enough."""
    simulation = CheckedSimulation(devices())
    service = serve(simulation, hints=Hints())
    simulation.until(lambda: is_ready(simulation, service))
    lease = simulation.state.leases[service]
    end = EndReport(AttemptOutcome.OOM, oom_resource=VRAM, oom_evidence="device_full", ready=True)
    del simulation.runs[service]
    simulation.posted.append(ev.Finished(simulation.now, service, lease.terms.fence, end))
    simulation.steps(2)
    term = estimate(simulation)
    assert (term.origin, term.n) == (Origin.MEASURED, 1)
    assert term.need_bytes == 6 * GB


def test_the_next_one_is_calibrated_and_a_choice_of_it_is_saturated() -> None:
    """A second copy needs no watching; of one that fills its choice, the peak is the need."""
    simulation = CheckedSimulation(devices())
    chosen = Chosen(8 * GB, None)
    service = serve(simulation, server(vram=8 * GB - 50 * MB), chosen=chosen)
    simulation.until(lambda: is_ready(simulation, service))
    second = serve(simulation, server(vram=8 * GB - 50 * MB))
    simulation.step()
    lease = simulation.state.leases[second]
    assert lease.terms.basis[GPU] is Basis.CALIBRATED
    assert lease.terms.charges[GPU] == 8 * GB - 50 * MB
