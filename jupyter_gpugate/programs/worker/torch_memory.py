"""Limits on torch's allocator, and reports of the memory that it has reserved."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from time import sleep
from typing import Any

from .attempt import Attempt
from .events import Events
from .wording import error_text

#: Seconds between two looks for caps that have changed.
_LOOK_S = 1.0


def cap_torch(cuda: Any, attempt: Attempt, warn: Callable[[str], None]) -> None:
    """Limit torch's allocator in this process as soon as the cell's own code starts CUDA."""

    def limit() -> None:
        attempt.renew_caps()
        _limit(cuda, attempt, warn)
        if attempt.caps_change:
            threading.Thread(target=follow, name="gpugate-caps", daemon=True).start()

    def follow() -> None:
        while True:
            sleep(_LOOK_S)
            if attempt.renew_caps():
                _limit(cuda, attempt, warn)

    queue = getattr(cuda, "_lazy_call", None)
    if queue is None:
        warn("the memory cap could not be set: this torch has no way to wait for CUDA's start")
    elif attempt.caps:
        queue(limit)


def _limit(cuda: Any, attempt: Attempt, warn: Callable[[str], None]) -> None:
    """Set the limit of each device that has a cap."""
    try:
        for index in range(cuda.device_count()):
            cap = attempt.caps.get(device_uuid(cuda, index, attempt))
            if cap is not None:
                total = cuda.get_device_properties(index).total_memory
                cuda.set_per_process_memory_fraction(min(1.0, max(0, cap) / total), index)
    except Exception as error:  # noqa: BLE001 - a missing cap must not end the run
        warn(f"the memory cap could not be set: {error_text(error)}")


def device_uuid(cuda: Any, index: int, attempt: Attempt) -> str:
    """Return the driver's UUID of a visible device, from torch or from its place in the mask."""
    uuid = getattr(cuda.get_device_properties(index), "uuid", None)
    name = "" if uuid is None else f"GPU-{uuid}"
    if name in attempt.launch["devices"]:
        return name
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = mask[index].strip() if index < len(mask) else ""
    found = attempt.devices.get(entry, entry)
    return found if found in attempt.launch["devices"] else name


def report_torch_memory(attempt: Attempt, events: Events) -> None:
    """Send the current and the greatest reserved memory of torch, if the cell has started CUDA."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return
    try:
        devices = [(device_uuid(cuda, i, attempt), i) for i in range(cuda.device_count())]
        peaks = {uuid: cuda.max_memory_reserved(i) for uuid, i in devices if uuid}
        held = {uuid: cuda.memory_reserved(i) for uuid, i in devices if uuid}
    except Exception as error:  # noqa: BLE001 - a broken device must not end the run here
        events.warn(f"torch's memory could not be read: {error_text(error)}")
        return
    # Only the driver knows what a context costs; nothing here asks it.
    events.send("torch", vram_peak=peaks, vram_held=held, overhead={})
