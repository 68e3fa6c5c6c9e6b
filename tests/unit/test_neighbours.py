"""Everybody who holds memory of a device counts in placement, whoever it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.admission.room import rooms
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import KernelProcess, ProcessKey, Sample
from jupyter_gpugate.core.state import GateState
from tests.kit.core_builders import NOW, beat, board, gate, key_of, process, request, sample, start

STRANGER, KERNEL = ProcessKey(70, 7), ProcessKey(80, 8)
BOARDS = [board(0), board(1)]


def there(held: int, *keys: ProcessKey, listed: bool = True) -> Sample:
    """Processes that hold so much of GPU 0 each; the last key may be a notebook's."""
    rows = [(key.pid, held) for key in keys]
    return sample(
        boards=BOARDS,
        free={"GPU-0": 24 * GB - held * len(keys)},
        processes=[process(key, private=GB) for key in (*keys, ProcessKey(1, 0))],
        lists={"GPU-0": rows if listed else []},
        kernels=(KernelProcess(KERNEL, "eval.ipynb", "ada"),) if KERNEL in keys else (),
    )


def counted(state: GateState, seen: Sample) -> int:
    """The neighbours that a run on GPU 0 would have after this sample."""
    after, _ = apply_sample(state, seen, NOW)
    return rooms(after, seen, NOW)["GPU-0"].neighbours


@pytest.mark.parametrize("key", [STRANGER, KERNEL])
def test_a_process_that_holds_more_than_a_context_is_a_neighbour(key: ProcessKey) -> None:
    """A stranger's as well as a notebook's; what holds next to nothing is none."""
    state = gate(boards=BOARDS)
    assert counted(state, there(257 * MB, key)) == 1
    assert counted(state, there(256 * MB, key)) == 0
    assert counted(state, there(300 * MB, STRANGER, KERNEL)) == 2


def test_memory_that_no_process_accounts_for_is_a_neighbour() -> None:
    """Somebody holds it; where the driver may keep that much for itself, nobody need to."""
    state = gate(boards=BOARDS)
    hidden = there(GB, STRANGER, listed=False)
    assert counted(state, hidden) == 1
    unclear = [replace(one, driver_reserved_bytes=None) for one in hidden.devices]
    assert counted(state, replace(hidden, devices=tuple(unclear))) == 0


def test_a_run_counts_once_where_it_was_placed_and_where_else_it_holds_memory() -> None:
    """Its lease is the neighbour; on a device that it was not given, its memory is."""
    state = start(gate(request(), boards=BOARDS))
    state = apply(state, [beat(state)])
    own = key_of("run")
    assert counted(state, there(2 * GB, own)) == 1
    elsewhere = start(gate(request(), boards=BOARDS), charges={"GPU-1": 2 * GB})
    assert counted(apply(elsewhere, [beat(elsewhere)]), there(2 * GB, own)) == 1


def test_the_gpu_of_an_idle_stranger_is_not_preferred_to_an_empty_one() -> None:
    """Though it is the tighter fit: for runs whose need is known and for those that are watched."""
    for vram in (2 * GB, None):
        seen = there(600 * MB, STRANGER)
        state, _ = apply_sample(gate(request(vram=vram), boards=BOARDS), seen, NOW)
        (granted,) = decide(state, seen, NOW).grants
        assert granted.devices == ("GPU-1",)


def test_a_run_has_the_strangers_of_its_device_for_neighbours() -> None:
    """Its observation counts all holders beside it, from the next sample on."""
    state = start(gate(request(), boards=BOARDS))
    state = apply(state, [beat(state)])
    for at in (NOW + 1, NOW + 2):
        state, _ = apply_sample(state, there(300 * MB, STRANGER, KERNEL), at)
    live = state.leases["run"].live
    assert live is not None
    assert live.measured.neighbours == 2
