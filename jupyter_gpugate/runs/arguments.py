"""The arguments of a command as parameters: options by name, everything else by position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from jupyter_gpugate.core.parameters import parsed_number

#: Positional arguments with a name of their own; a file pattern may expand to thousands.
MOST_POSITIONS: Final = 16


def parameters_of(argv: Sequence[str], irrelevant: Collection[str]) -> dict[str, str]:
    """Return the parameters of a command line by name, less those that are irrelevant.

    ``--batch 8``, ``--batch=8`` and ``batch=8`` are the parameter ``batch``; a repeated option has
    all its values.  ``irrelevant`` has names of parameters, or whole words.
    """
    left_out = {plain_name(name) for name in irrelevant}
    found: dict[str, list[str]] = {}
    for name, value in _pairs([word for word in argv[1:] if word not in irrelevant]):
        if name not in left_out:
            found.setdefault(name, []).append(value)
    return {name: "\0".join(values) for name, values in found.items()}


def merged(given: Mapping[str, str], arguments: Mapping[str, str]) -> dict[str, str]:
    """Join the parameters that were set with those of the command line; both count."""
    clashes = {f"--{name}" if name in given else name: v for name, v in arguments.items()}
    return {**given, **clashes}


def plain_name(name: str) -> str:
    """Return the name of an option as that of a parameter."""
    return name.lstrip("-").replace("-", "_")


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest, position = list(reversed(words)), 0
    while rest:
        word = rest.pop()
        name, equals, value = word.partition("=")
        if _is_option(word):
            if not equals and rest and not _is_option(rest[-1]):
                value = rest.pop()
            yield plain_name(name), value
        elif equals and name.isidentifier():
            yield name, value
        else:
            position += 1
            place = str(position) if position <= MOST_POSITIONS else "others"
            yield f"argument_{place}", word


def _is_option(word: str) -> bool:
    return word.startswith("-") and word.strip("-") != "" and parsed_number(word) is None
