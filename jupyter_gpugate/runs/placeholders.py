"""Parameters and chosen amounts in the arguments of a command: ``{batch}``, ``{vram_fraction}``.

``{name}`` is replaced where ``name`` is a parameter of the run, except after a ``$``, and
``{{name}}`` stands for it.  With a chosen amount the arguments are templates as a whole, in which
``{{`` and ``}}`` stand for braces; without one all other braces are passed on as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
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
Parameters = Mapping[str, str]
NO_PARAMETERS: Final[Parameters] = MappingProxyType({})


class UnknownTotalError(ValueError):
    """The memory of a granted device is unknown, so that no fraction of it can be computed."""


def refuse_wrong_placeholders(body: Mapping[str, Any]) -> None:
    """Refuse a command with a placeholder that cannot be replaced."""
    chosen, parameters = _amounts(body.get("chosen")), body.get("parameters") or {}
    for number, argument in enumerate(body.get("argv") or ()):
        for found in _PARTS.finditer(argument):
            problem = _problem(found, chosen, parameters)
            if problem:
                shown = argument[:_SHOWN_CHARS]
                message = f"argv: argument {number} ({shown!r}): {problem}"
                raise Refused(400, "bad_request", message, field="argv", argument=number)


def filled(
    argv: Sequence[str], chosen: Chosen | None, grant: Grant, parameters: Parameters = NO_PARAMETERS
) -> list[str]:
    """Return the arguments with the values of parameters and the amounts of the grant.

    Raises `UnknownTotalError`.
    """
    amounts = _amounts(chosen)
    if not amounts:
        return _with_parameters(argv, parameters)
    values = {name: _value(name, amounts, grant) for name in NAMES}

    def replacement(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0][0]
        return parameters[name] if name in parameters else values[name]()

    return [_PARTS.sub(replacement, argument) for argument in argv]


def is_placeholder(argument: str, parameters: Parameters) -> bool:
    """Return whether an argument is the value of a parameter and nothing else."""
    return argument[:1] == "{" and argument[-1:] == "}" and argument[1:-1] in parameters


def _with_parameters(argv: Sequence[str], parameters: Parameters) -> list[str]:
    if not parameters:
        return list(argv)
    names = "|".join(map(re.escape, parameters))
    wanted = re.compile(rf"(\{{\{{(?:{names})\}}\}})|(?<!\$)\{{({names})\}}")

    def replacement(found: re.Match[str]) -> str:
        return found[1][1:-1] if found[1] else parameters[found[2]]

    return [wanted.sub(replacement, argument) for argument in argv]


def _amounts(chosen: Chosen | None) -> dict[str, int]:
    return {name: amount for name, amount in (chosen or {}).items() if amount is not None}


def _problem(found: re.Match[str], chosen: Mapping[str, int], parameters: Parameters) -> str:
    """Return why a part of an argument cannot be replaced; "" if it can."""
    name = found["name"]
    needs = NAMES.get(name) if name is not None else None
    if name in parameters:
        twice = f"{found[0]} may be the parameter or the chosen amount: rename the parameter"
        return twice if needs in chosen else ""
    if needs is not None:
        is_of_shell = not chosen and found.string[: found.start()].endswith("$")
        missing = f"{found[0]} needs a chosen amount: add {_OPTIONS[needs]} SIZE"
        return "" if needs in chosen or is_of_shell else missing
    if not chosen or found[0] in ("{{", "}}"):
        return ""
    known = ", ".join(f"{{{name}}}" for name in (*NAMES, *parameters))
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
