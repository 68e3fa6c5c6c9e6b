"""Runs of which nothing is known start wherever a device is empty, on every machine."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.admission.room import rooms
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.leases import Usage
from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import BOOT, NOW, board, gate, key_of, request, sample, using


def unknown(number: int) -> str:
    """The id of a run of which nothing is known."""
    return f"run-{number}"


def started(state: GateState, seen: Sample, shares: list[float]) -> tuple[GateState, int]:
    """Start all that may start, and let each hold so much of its charges; the RAM they hold."""
    grants = decide(state, seen, NOW).grants
    state = apply(state, [ev.Granted(NOW, grant) for grant in grants])
    begun = [ev.Started(NOW, g.run_id, g.fence, key_of(g.run_id), BOOT) for g in grants]
    state = apply(state, begun)
    leases, held_ram = dict(state.leases), 0
    for grant, share in zip(grants, shares, strict=False):
        held = {resource: int(share * charge) for resource, charge in grant.charges.items()}
        usage = {r: Usage(held_bytes=b, peak_bytes=b, first_used_at=NOW) for r, b in held.items()}
        leases[grant.run_id] = using(leases[grant.run_id], usage)
        held_ram += held[RAM]
    return GateState(**{**vars(state), "leases": leases}), held_ram


@given(
    ram_gb=st.integers(8, 2048),
    devices=st.integers(1, 16),
    vram_gb=st.integers(4, 192),
    taken=st.integers(0, 16),
    others=st.floats(0, 1),
    shares=st.lists(st.floats(0, 1), min_size=16, max_size=16),
)
@settings(deadline=None)
def test_an_unknown_run_never_waits_while_a_device_is_empty(
    ram_gb: int, devices: int, vram_gb: int, taken: int, others: float, shares: list[float]
) -> None:
    """However many devices there are and whatever the unknown runs on the others hold, as long as
    others leave half of the RAM: no such run takes the RAM of the next one.
    """
    boards = [board(index, total=vram_gb * GB) for index in range(devices)]
    total = ram_gb * GB
    taken = min(taken, devices)
    early = [request(unknown(n), vram=None, ram=None, name=unknown(n)) for n in range(taken)]
    state = gate(*early, boards=boards)
    floor = rooms(state, sample(boards=boards, ram_total=total), NOW)[RAM].floor_bytes
    free = total - int(others * (total - floor - total // 2))
    state, held_ram = started(state, sample(boards=boards, ram=free, ram_total=total), shares)
    assert len(state.leases) == taken

    late = [request(unknown(n), vram=None, ram=None, name=unknown(n)) for n in range(taken, 20)]
    state = apply(state, [ev.Requested(NOW, one, "side") for one in late])
    here = [(lease, lease.terms.devices[0]) for lease in state.leases.values()]
    held = {uuid: lease.held(uuid) for lease, uuid in here}
    free_there = {b.uuid: b.total_bytes - held.get(b.uuid, 0) for b in boards}
    seen = sample(boards=boards, free=free_there, ram=free - held_ram, ram_total=total)
    grants = decide(state, seen, NOW).grants
    placed = {uuid for grant in grants for uuid in grant.devices}
    assert placed == {one.uuid for one in boards} - set(held)
    assert all(grant.basis[RAM] is Basis.WATCH for grant in grants)
