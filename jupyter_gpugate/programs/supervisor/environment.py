"""The environment and the limits of a worker."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .caps import worker_caps


def worker_environment(
    launch: dict[str, Any], base: dict[str, str], worker: int, visible_devices: Sequence[str] = ()
) -> dict[str, str]:
    """Return a worker's environment: the run's own, tags, its devices, its share of the cap.

    ``visible_devices`` are the entries of its device mask; without them, UUIDs are used.
    """
    devices, workers = launch["devices"], launch["workers"]
    mask = list(visible_devices if len(visible_devices) == len(devices) else devices)
    caps = worker_caps(launch, launch["caps"])
    own = {"PYTHONUNBUFFERED": "1"}
    if devices or not launch.get("keeps_mask"):
        own["CUDA_VISIBLE_DEVICES"] = ",".join(mask)
        own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if devices and caps:
        own.update(framework_settings(launch, base, caps))
    return {
        **base,
        **own,
        "GPUGATE_RUN_ID": launch["run_id"],
        "GPUGATE_ATTEMPT": str(launch["attempt"]),
        "GPUGATE_WORKER": str(worker),
        "GPUGATE_WORKERS": str(workers),
        "GPUGATE_CAPS": json.dumps(caps),
        "GPUGATE_DEVICES": json.dumps(dict(zip(mask, devices))),  # UUIDs by entry of the mask
        # A run that submits another one has it see what this one's notebook sees.
        "GPUGATE_REPLACED": json.dumps({k: [value, base.get(k)] for k, value in own.items()}),
    }


def framework_settings(
    launch: dict[str, Any], base: dict[str, str], caps: dict[str, int]
) -> dict[str, str]:
    """Return variables by which JAX and TensorFlow leave memory to others; the user's own win."""
    settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    totals = launch["device_totals"]
    shares = [cap / totals[uuid] for uuid, cap in caps.items() if totals.get(uuid)]
    if shares:
        settings["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{min(1.0, *shares):.4f}"
    return {name: value for name, value in settings.items() if name not in base}


def limit(limits: dict[str, list[int]]) -> None:
    """Set soft and hard limits of this process by name, as far as it may; -1 is none."""
    for name, (soft, hard) in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:  # of another Python
            continue
        try:
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):  # only root may raise a hard limit
            most = resource.getrlimit(kind)[1]
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, (soft if 0 <= soft < most else most, most))
