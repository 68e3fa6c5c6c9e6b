"""Values of parameters as the gate knows them: numbers as they are, words by their digests.

A word is as private as an environment; whether two are equal is all that an estimate has to know
of them.  A number is needed to fit a line.  Names are kept: the estimate lists them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Optional

from jupyter_gpugate.core.requests import Setting

#: Longer numbers are more likely keys or identifiers than amounts.
MOST_DIGITS: Final = 15
_EXACT: Final = 1e15
_DIGEST = re.compile(r"#[0-9a-f]{24}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_SHOWN_NUMBER = re.compile(r"=[+-]?\d+(\.\d+)?(e[+-]?\d{1,3})?", re.ASCII)


def shown(name: str, value: str) -> str:
    """Return the value of a parameter for the gate: ``=8`` for a number, else a digest."""
    number = parsed_number(value)
    return digest_of(name, value) if number is None else f"={_plain(number)}"


def parsed_number(text: str) -> Optional[float]:
    """Read a number as a user writes it; None for a word."""
    if not _NUMBER.fullmatch(text) or sum(map(str.isdigit, text)) > MOST_DIGITS:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def number_of(shown_value: str) -> Optional[float]:
    """Return the number that the gate knows; None for a word."""
    if not _SHOWN_NUMBER.fullmatch(shown_value):
        return None
    number = float(shown_value[1:])
    return number if math.isfinite(number) else None


def digest_of(name: str, value: str) -> str:
    """Return the digest of a parameter's value; it depends on the parameter's name as well."""
    text = f"{name}\0{value}".encode("utf-8", "surrogatepass")
    return f"#{hashlib.blake2b(text, digest_size=12, person=b'gpugate-setting').hexdigest()}"


def is_shown(value: str) -> bool:
    """Return whether a text is a value as the gate may know it."""
    return bool(_DIGEST.fullmatch(value)) or number_of(value) is not None


def without_words(setting: Setting) -> Setting:
    """Return the setting with digests in the place of words, as of an older or careless sender."""
    pairs = tuple(_private(setting.parameters))
    return setting if pairs == setting.parameters else replace(setting, parameters=pairs)


def scrubbed(data: Any) -> Any:
    """Return JSON data in which every setting has digests in the place of words."""
    if isinstance(data, list):
        return [scrubbed(one) for one in data]
    if not isinstance(data, dict):
        return data
    clean = {key: scrubbed(value) for key, value in data.items()}
    pairs = clean.get("parameters")
    if "workers" in clean and isinstance(pairs, list) and all(map(_is_pair, pairs)):
        clean["parameters"] = [list(pair) for pair in _private((n, v) for n, v in pairs)]
    return clean


def _plain(number: float) -> str:
    """Write equal numbers alike: 8, 8.0 and 0.8e1."""
    small = abs(number) < _EXACT
    return str(int(number)) if small and number.is_integer() else repr(number)


def _private(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((name, value if is_shown(value) else shown(name, value)) for name, value in pairs)


def _is_pair(pair: Any) -> bool:
    two = isinstance(pair, list) and len(pair) == 2  # noqa: PLR2004 - name and value
    return two and all(isinstance(word, str) for word in pair)
