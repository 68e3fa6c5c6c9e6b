"""Observations in a line each, for the tests of calibration and estimation."""

from __future__ import annotations

from typing import Any

from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.parameters import without_words
from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.requests import Enforcement, Family, Setting
from jupyter_gpugate.core.resources import MB, VRAM

FAMILY = Family(owner="ada", name="resnet-val", source_hash="one", gpus=1)
EDITED = Family(owner="ada", name="resnet-val", source_hash="two", gpus=1)
A100 = "A100-SXM4-80GB"
SETTING = Setting(workers=1, episodes=100, device_model=A100, runtime="torch 2.4 driver 550")


def ran(peak_mb: float, *, resource: str = VRAM, **fields: Any) -> Observation:
    """Make a complete observation; of ``fields`` those of a setting go into the setting.

    ``charge_mb`` and ``cap_mb`` are megabytes, and a cap is enforced.
    """
    setting = {k: fields.pop(k) for k in tuple(fields) if k in Setting.__dataclass_fields__}
    if "parameters" in setting:
        setting["parameters"] = tuple(sorted(setting["parameters"].items()))
    if "charge_mb" in fields:
        fields["charge_bytes"] = int(fields.pop("charge_mb") * MB)
    if "cap_mb" in fields:
        fields["cap_bytes"] = int(fields.pop("cap_mb") * MB)
        fields["enforcement"] = Enforcement.ENFORCED
    return Observation(
        family=fields.pop("family", FAMILY),
        setting=with_setting(**setting),
        resource=resource,
        peak_bytes=int(peak_mb * MB),
        complete=fields.pop("complete", True),
        at=fields.pop("at", 0.0),
        **fields,
    )


def failed(peak_mb: float, **fields: Any) -> Observation:
    """Make the observation of an attempt that did not complete: a lower bound."""
    return ran(peak_mb, complete=False, outcome=AttemptOutcome.FAILED, **fields)


def ran_out(at_mb: float, **fields: Any) -> Observation:
    """Make the observation of an attempt that ran out of memory at so many megabytes."""
    at_bytes = int(at_mb * MB)
    return ran(at_mb, complete=False, outcome=AttemptOutcome.OOM, oom_at_bytes=at_bytes, **fields)


def with_setting(**fields: Any) -> Setting:
    """Make the tests' usual setting with some of its fields changed.

    Values of parameters are written as a user does.
    """
    return without_words(Setting(**{**vars(SETTING), **fields}))
