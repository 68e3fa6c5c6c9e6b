"""Whether runs that ask for a GPU have ever used one."""

from __future__ import annotations

from jupyter_gpugate.core.evidence import Calibration
from jupyter_gpugate.core.requests import Family
from jupyter_gpugate.core.resources import VRAM

#: One attempt without GPU memory may be a mistake.
LEAST_ATTEMPTS = 2


def idle_attempts(calibration: Calibration, family: Family) -> int:
    """Return how many complete attempts left the GPU unused; 0 if any attempt has used it."""
    tracks = calibration.tracks(family.owner, family.name)
    of_family = (t for t in tracks if t.resource == VRAM and t.family == family)
    observed = [observation for track in of_family for observation in track.observations]
    if any(one.bound_bytes or one.elsewhere_bytes for one in observed):
        return 0
    return sum(one.complete for one in observed)


def advice(calibration: Calibration, family: Family) -> tuple[str, ...]:
    """Advise the author of such runs; empty if there is nothing to say."""
    idle = idle_attempts(calibration, family) if family.gpus else 0
    if idle < LEAST_ATTEMPTS:
        return ()
    used = "their GPU" if family.gpus == 1 else "their GPUs"
    said = f"{idle} complete attempts of such runs used no memory of {used}"
    return (f"{said}: with --gpus 0 the run gets no GPU and need not wait for one",)
