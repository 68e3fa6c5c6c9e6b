"""Sweeps: the values that an option names, and the runs that several of them make."""

from __future__ import annotations

import itertools
import math
import re
import secrets
import string
import time
import uuid
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jupyter_gpugate.client.errors import SubmissionError
from jupyter_gpugate.core.run_spec import MOST_IN_GROUP
from jupyter_gpugate.programs.worker.attempt import parsed

_RANGE: Final = re.compile(r"([+-]?\d{1,15})\.\.([+-]?\d{1,15})")
_EXAMPLES: Final = "such as batch=8,16,32 or seed=0..9"

#: A parameter and its values.
Swept = tuple[str, list[str]]
Point = dict[str, str]


def swept(text: str) -> Swept:
    """Return the name and the values of "batch=8,16,32" or "seed=0..9", both ends included."""
    name, equals, listed = text.partition("=")
    if not equals or not name.strip() or not listed.strip():
        raise ArgumentTypeError(f"`{text}` must be NAME=VALUES, {_EXAMPLES}")
    values = [value for part in listed.split(",") for value in _values(text, part.strip())]
    return checked(name.strip(), values)


def checked(name: str, values: Sequence[str]) -> Swept:
    """Return a parameter with its values; each of them may stand there only once."""
    if not values:
        raise ArgumentTypeError(f"`{name}` has no values: list them, {_EXAMPLES}")
    twice = next((value for value, n in Counter(map(parsed, values)).items() if n > 1), None)
    if twice is not None:
        raise ArgumentTypeError(f"`{name}` has the value {twice} more than once: list it once")
    return name, list(values)


def points(options: Namespace) -> list[Point]:
    """Return every combination of the values of a sweep; none without a sweep.

    Raises `SubmissionError` for a parameter that has values twice, and for too many runs.
    """
    sweeps: list[Swept] = [*options.sweep, *options.sweep_free]
    if not sweeps:
        return []
    names = Counter(name for name, _ in sweeps)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise SubmissionError(f"--sweep {twice} is given more than once: list all values in one")
    fixed = {name for name, _ in [*options.set, *options.set_free]}
    both = next((name for name in names if name in fixed), None)
    if both is not None:
        raise SubmissionError(f"--sweep {both}: --set gives {both} one value as well: omit one")
    count = math.prod(len(values) for _, values in sweeps)
    if count > MOST_IN_GROUP:
        raise SubmissionError(
            f"--sweep: {count:,} runs are too many, the maximum is {MOST_IN_GROUP}"
        )
    combined = itertools.product(*(values for _, values in sweeps))
    return [dict(zip(names, combination)) for combination in combined]


def refuse_without_placeholders(argv: Sequence[str], swept_points: Sequence[Point]) -> None:
    """Refuse to sweep a parameter that the command does not contain."""
    text = "\n".join(argv)
    for name in swept_points[0] if swept_points else ():
        plain = text.replace(f"{{{{{name}}}}}", "")
        if f"{{{name}}}" not in plain:
            raise SubmissionError(
                f"--sweep {name}: the command does not contain {{{name}}}, so every run would be "
                f"the same: put {{{name}}} where the value belongs"
            )


def bodies(
    body: Mapping[str, Any], swept_points: Sequence[Point], group: str
) -> Iterator[dict[str, Any]]:
    """Return the bodies of a group's submits, one for each point of the sweep."""
    for point in swept_points:
        yield {
            **body,
            "parameters": {**body.get("parameters", {}), **point},
            "group": group,
            "group_size": len(swept_points),
            "idempotency_key": str(uuid.uuid4()),
        }


def new_group() -> str:
    """Return an id for a group that is submitted now: the time in UTC and five random letters."""
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(5))
    return f"g{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{letters}"


def _values(text: str, part: str) -> Sequence[str]:
    if not part:
        raise ArgumentTypeError(f"`{text}` has an empty value: write it {_EXAMPLES}")
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    first, last = int(found[1]), int(found[2])
    if first > last:
        raise ArgumentTypeError(f"`{part}` counts down: write {last}..{first}")
    if last - first >= MOST_IN_GROUP:
        raise ArgumentTypeError(
            f"`{part}` has {last - first + 1:,} values, the maximum of a sweep is {MOST_IN_GROUP}"
        )
    return [str(number) for number in range(first, last + 1)]
