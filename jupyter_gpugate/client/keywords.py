"""The options of a run as keyword arguments: the same values as on a command line."""

from __future__ import annotations

import difflib
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jupyter_gpugate.client import options as given
from jupyter_gpugate.client.errors import SubmissionError
from jupyter_gpugate.client.options import Option
from jupyter_gpugate.client.sweeps import Swept, checked, swept

#: Keywords that are called otherwise than their options.
_WORDS: Final = {
    "--set": "parameters",
    "--set-free": "free_parameters",
    "--output": "outputs",
    "--class": "class_",
}
#: Options that are no keywords: inputs are values, and a submit from Python never waits.
_NONE: Final = frozenset({"--input", "--detach"})


def namespace(table: Sequence[Option], keywords: Mapping[str, Any]) -> Namespace:
    """Return the values of options as a command line would give them.

    Raises `TypeError` for a keyword that is none, `SubmissionError` for a wrong value.
    """
    by_word = {word_of(option): option for option in table if option.flag not in _NONE}
    unknown = [word for word in keywords if word not in by_word]
    if unknown:
        close = difflib.get_close_matches(unknown[0], by_word, 1)
        meant = f"; did you mean {close[0]}?" if close else f": use {', '.join(by_word)}"
        raise TypeError(f"{unknown[0]} is no option of this run{meant}")
    found = {}
    for word, option in by_word.items():
        value = keywords.get(word)
        found[_attribute(option)] = (
            _default(option) if value is None else _read(word, option, value)
        )
    return Namespace(**found, detach=True)


def word_of(option: Option) -> str:
    """Return the keyword of an option: `hint_vram` of `--hint-vram`."""
    return _WORDS.get(option.flag) or option.flag.lstrip("-").replace("-", "_")


def _attribute(option: Option) -> str:
    return str(option.settings.get("dest") or option.flag.lstrip("-").replace("-", "_"))


def _default(option: Option) -> Any:
    if option.settings.get("action") == "store_true":
        return False
    default = option.settings.get("default")
    return list(default) if isinstance(default, list) else default


def _read(word: str, option: Option, value: Any) -> Any:
    settings = option.settings
    if settings.get("action") == "store_true":
        if not isinstance(value, bool):
            raise SubmissionError(f"{word}: {value!r} must be True or False")
        return value
    try:
        if settings.get("type") is given.parameter:
            return _parameters(word, value)
        if settings.get("type") is swept:
            return _sweeps(word, value)
        if settings.get("action") == "append":
            return [settings["type"](name) for name in _several(value)]
        read = settings["type"](str(value)) if "type" in settings else str(value)
    except ArgumentTypeError as error:
        raise SubmissionError(f"{word}: {error}") from None
    choices = settings.get("choices")
    if choices and read not in choices:
        raise SubmissionError(f"{word}: `{read}` must be one of {', '.join(choices)}")
    return read


def _parameters(word: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        raise SubmissionError(f"{word}: {value!r} must be a dict, such as {{'batch': 64}}")
    return [given.parameter(f"{name}={one}") for name, one in value.items()]


def _sweeps(word: str, value: Any) -> list[Swept]:
    if not isinstance(value, Mapping):
        example = "{'batch': [8, 16], 'seed': '0..9'}"
        raise SubmissionError(f"{word}: {value!r} must be a dict, such as {example}")
    return [
        swept(f"{name}={one}") if isinstance(one, str) else checked(str(name), list(map(str, one)))
        for name, one in value.items()
    ]


def _several(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value]
