"""Estimates in megabytes."""

from __future__ import annotations

import math

from jupyter_gpugate.core.estimates import EstimateTerm
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.learning.calibration import from_observations
from jupyter_gpugate.core.learning.estimation import (
    estimate,
)
from jupyter_gpugate.core.requests import Family, Hints, Setting
from jupyter_gpugate.core.resources import (
    MB,
    VRAM,
)
from tests.kit.observations import FAMILY, SETTING


def mb(size: float) -> int:
    """Turn megabytes into bytes the way margins are rounded: up."""
    return math.ceil(size * MB)


def term(
    observations: list[Observation],
    setting: Setting = SETTING,
    *,
    resource: str = VRAM,
    family: Family = FAMILY,
    hint: int | None = None,
    total: int | None = None,
) -> EstimateTerm:
    """Estimate one kind of resource from observations; ``hint`` and ``total`` in bytes."""
    found = estimate(
        from_observations(observations),
        family,
        setting,
        Hints(hint, hint),
        [resource],
        device_total=total,
        ram_total=total,
    )
    return found.term(resource)
