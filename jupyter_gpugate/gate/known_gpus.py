"""The GPUs that a gate knows, for requests that arrive while the driver still starts."""

from __future__ import annotations

from jupyter_gpugate.core.admission.masks import Mask, visible
from jupyter_gpugate.gate.loop import GateLoop

#: A GPU reader that starts is waited for so long before a machine counts as one without a GPU.
GPUS_KNOWN_S = 20.0


async def default_gpus(gate: GateLoop, mask: Mask) -> tuple[int, bool]:
    """Return the default number of devices of a run, and whether the gate manages any device.

    That is one where its notebook sees one.
    """
    known = await come_to_know_gpus(gate)
    inventory = gate.state.inventory
    in_mask = visible(mask, inventory)
    usable = [u for u, d in inventory.items() if not d.mig_enabled and not d.unified]
    gpus = int(any(in_mask is None or uuid in in_mask for uuid in usable))
    return gpus, not known or not _has_none_to_manage(gate)


def _has_none_to_manage(gate: GateLoop) -> bool:
    """Whether the driver, if there is one, has answered and lists no memory of its own."""
    readers = [health for health in gate.sample.readers if health.name == "gpu"]
    is_well = all(health.fault is None for health in readers)
    return is_well and all(device.unified for device in gate.state.inventory.values())


async def come_to_know_gpus(gate: GateLoop) -> bool:
    """Wait until the GPUs are known; return False if the driver takes too long.

    A driver that is slow to start must not make a machine seem to have no GPU.
    """
    deadline = gate.now() + GPUS_KNOWN_S
    while not _gpus_known(gate) and gate.now() < deadline:
        await gate.changed(gate.version, deadline - gate.now())
    return _gpus_known(gate)


def _gpus_known(gate: GateLoop) -> bool:
    if gate.state.inventory:
        return True
    readers = [health for health in gate.sample.readers if health.name == "gpu"]
    return any(not health.present or health.taken_at is not None for health in readers)
