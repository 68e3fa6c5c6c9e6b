"""Chosen amounts of memory in the arguments of a command: ``{vram_fraction}`` and the like.

Only the arguments of a run with a chosen amount are templates, in which ``{{`` and ``}}`` stand for
braces.  The arguments of any other run are passed on as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.runs.record import Refused

MB: Final = 1 << 20
#: Steps of a fraction of a device: it is rounded down to one of them.
_STEPS: Final = 10**6
#: Placeholders, and the chosen amount that each one needs.
NAMES: Final = {
    "vram_fraction": "vram_bytes",
    "vram_bytes": "vram_bytes",
    "vram_mb": "vram_bytes",
    "ram_bytes": "ram_bytes",
}
_OPTIONS: Final = {"vram_bytes": "--vram", "ram_bytes": "--ram"}
_PARTS: Final = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_SHOWN_CHARS: Final = 80

Chosen = Mapping[str, Any]


class UnknownTotalError(ValueError):
    """The memory of a granted device is unknown, so that no fraction of it can be computed."""


def refuse_wrong_placeholders(body: Mapping[str, Any]) -> None:
    """Refuse a command with a placeholder that cannot be replaced."""
    chosen = _amounts(body.get("chosen"))
    for number, argument in enumerate(body.get("argv") or ()):
        for found in _PARTS.finditer(argument):
            problem = _problem(found, chosen)
            if problem:
                shown = argument[:_SHOWN_CHARS]
                message = f"argv: argument {number} ({shown!r}): {problem}"
                raise Refused(400, "bad_request", message, field="argv", argument=number)


def filled(argv: Sequence[str], chosen: Chosen | None, grant: Grant) -> list[str]:
    """Return the arguments with the amounts of the grant; raise `UnknownTotalError`."""
    amounts = _amounts(chosen)
    if not amounts:
        return list(argv)
    values = {name: _value(name, amounts, grant) for name in NAMES}

    def replacement(found: re.Match[str]) -> str:
        name = found["name"]
        return found[0][0] if name is None else values[name]()

    return [_PARTS.sub(replacement, argument) for argument in argv]


def _amounts(chosen: Chosen | None) -> dict[str, int]:
    return {name: amount for name, amount in (chosen or {}).items() if amount is not None}


def _problem(found: re.Match[str], chosen: Mapping[str, int]) -> str:
    """Return why a part of an argument cannot be replaced; "" if it can."""
    name = found["name"]
    needs = NAMES.get(name) if name is not None else None
    if needs is not None:
        is_of_shell = not chosen and found.string[: found.start()].endswith("$")
        missing = f"{found[0]} needs a chosen amount: add {_OPTIONS[needs]} SIZE"
        return "" if needs in chosen or is_of_shell else missing
    if not chosen or found[0] in ("{{", "}}"):
        return ""
    known = ", ".join(f"{{{name}}}" for name in NAMES)
    what = f"{found[0]} is no placeholder" if name is not None else f"a single {found[0]}"
    return f"{what}: known are {known}; write {{{{ and }}}} for braces"


def _value(name: str, amounts: Mapping[str, int], grant: Grant) -> Callable[[], str]:
    def value() -> str:
        amount = amounts[NAMES[name]]
        if name == "vram_mb":
            return str(amount // MB)
        return _fraction(amount, grant) if name == "vram_fraction" else str(amount)

    return value


def _fraction(amount: int, grant: Grant) -> str:
    """Return the part of the device as a decimal, rounded down; of several devices the least."""
    totals = list(_totals(grant))
    if not totals:
        raise UnknownTotalError("no device was granted")
    return f"{min(amount * _STEPS // total for total in totals) / _STEPS:.6f}"


def _totals(grant: Grant) -> Iterator[int]:
    for uuid in grant.devices:
        total = grant.device_totals.get(uuid)
        if not total:
            raise UnknownTotalError(f"the total memory of {uuid} is unknown")
        yield total
