"""Errors that mean that memory ran out, and the limit that they reached."""

from __future__ import annotations

import re
import sys
from typing import Optional

from .attempt import Attempt
from .torch_memory import device_uuid
from .wording import error_text

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ASKED = re.compile(r"Tried to allocate ([\d.]+) (\w+)")
_RESERVED = re.compile(
    r"([\d.]+) (\w+) (?:is allocated by PyTorch|is reserved by PyTorch|reserved in total)"
)
_DEVICE = re.compile(r"\bGPU (\d+)")


def out_of_memory(error: BaseException, attempt: Attempt) -> Optional[dict[str, str]]:
    """Return the resource that ran out if an error, or a stated cause of it, is out of memory."""
    torch = sys.modules.get("torch")
    torch_kinds = tuple(
        kind
        for kind in (getattr(torch, "OutOfMemoryError", None), _cuda_oom())
        if isinstance(kind, type)
    )
    cause: Optional[BaseException] = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = error_text(cause)[:2000]
        if isinstance(cause, torch_kinds):
            return {"resource": "vram", "evidence": _evidence(text, attempt), "text": text}
        if isinstance(cause, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
            return {"resource": "ram", "evidence": "memory_error", "text": text}
        cause = cause.__cause__
    return None


def _cuda_oom() -> object:
    return getattr(sys.modules.get("torch.cuda"), "OutOfMemoryError", None)


def _evidence(text: str, attempt: Attempt) -> str:
    """Return ``own_cap`` if the request and torch's reserved memory exceed this run's cap."""
    asked, device, cuda = _ASKED.search(text), _DEVICE.search(text), sys.modules.get("torch.cuda")
    if asked is None or cuda is None:
        return "device_full"
    index = int(device[1]) if device else 0
    try:
        cap = attempt.caps.get(device_uuid(cuda, index, attempt))
        reported = [_at_most(*found) for found in _RESERVED.findall(text)]
        reserved = sum(reported) if reported else cuda.memory_reserved(index)
    except Exception:  # noqa: BLE001 - a failing device may raise anything
        return "device_full"
    over = cap is not None and reserved + _at_most(asked[1], asked[2]) > cap
    return "own_cap" if over else "device_full"


def _at_most(number: str, unit: str) -> float:
    """Return the greatest number of bytes that is printed like this, with two decimals."""
    return (float(number) + (0.005 if "." in number else 0)) * _UNITS.get(unit, 1)
