"""Advice to the author of a run that waits because nothing is known of its parameters."""

from __future__ import annotations

from typing import Optional

from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.estimates import THIS, Estimate, EstimateTerm
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.resources import RAM, VRAM

#: The reasons that a better number would change.
_BY_NEED = (Check.FIT, Check.EXTERNAL_HOLDS, Check.WATCH_SLOT, Check.OVERRUN, Check.UNMEASURED)


def advised(
    message: str, check: Check, resource: Optional[str], request: Request, estimate: Estimate
) -> str:
    """Return the message of a reason, with what the author can do about an unknown need."""
    kind = RAM if resource == RAM else VRAM
    term = next((t for t in estimate.terms if t.resource == kind), None)
    if check not in _BY_NEED or term is None or not term.unknown_parameters:
        return message
    return f"{message}; {_advice(request, term)}"


def _advice(request: Request, term: EstimateTerm) -> str:
    names = term.unknown_parameters
    kind, hint = ("RAM", "--hint-ram") if term.resource == RAM else ("GPU memory", "--hint-vram")
    if request.kind == "program":
        option = f"--memory-irrelevant {','.join(names)}"
    else:
        option = " ".join(f"--set-free {name}=..." for name in names)
    them = "it does" if len(names) == 1 else "they do"
    which = ", ".join(f"{THIS} {name}" for name in names)
    return (
        f"its {kind} is not known because it was never run with {which}: use {option} if {them} "
        f"not change the memory, give a hint with {hint}, or let this run be measured"
    )
