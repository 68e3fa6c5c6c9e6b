"""Whether a resource has a current reading, or the reason why it has none."""

from __future__ import annotations

from typing import Optional

from jupyter_gpugate.core.decisions import Check, Reason
from jupyter_gpugate.core.samples import DeviceReading, Sample
from jupyter_gpugate.core.state import GateState

#: The longest pass over all boards for which a driver is waited for.
SLOWEST_PASS_S = 20.0
#: The driver's own word for a device that is off the bus.
GPU_IS_LOST = "nvml-15"


def unread_of(
    state: GateState, sample: Sample, reading: Optional[DeviceReading], uuid: str, now: float
) -> Optional[Reason]:
    """Return the reason why this device has no usable reading."""
    if reading is None:
        gone = _reader_answers(sample, now, _patience_s(state, sample))
        return Reason(Check.MISSING if gone else Check.STALE, uuid)
    if reading.contradiction:
        return Reason(Check.UNMEASURED, uuid, who=(reading.contradiction,))
    if reading.free_bytes is not None:
        return stale(uuid, reading.taken_at, now, _patience_s(state, sample))
    fault = reading.fault
    words = (fault.text or fault.code,) if fault else ()
    lost = fault is not None and fault.code == GPU_IS_LOST
    return Reason(Check.MISSING if lost else Check.UNMEASURED, uuid, who=words)


def stale(resource: str, taken_at: Optional[float], now: float, limit_s: float) -> Optional[Reason]:
    """Return the reason why a reading of this time is too old; None for a current one."""
    if taken_at is not None and now - taken_at <= limit_s:
        return None
    age = {} if taken_at is None else {"age_ms": int(1000 * (now - taken_at))}
    return Reason(Check.STALE, resource, age)


def _patience_s(state: GateState, sample: Sample) -> float:
    """Return the greatest allowed age of a GPU reading: two passes of the driver.

    A driver that is slow because of many boards must not block every start.
    """
    took = max((h.took_s for h in sample.readers if h.name == "gpu"), default=0.0)
    return state.traits.stale_after_s + 2 * min(took, SLOWEST_PASS_S)


def _reader_answers(sample: Sample, now: float, patience_s: float) -> bool:
    """Return whether the GPU reader works: then a device that it does not list is gone.

    A reader that finds no GPU at all is asked rarely, and its answer remains valid meanwhile.
    """
    return any(
        health.name == "gpu"
        and health.fault is None
        and health.taken_at is not None
        and (not health.present or now - health.taken_at <= patience_s)
        for health in sample.readers
    )
