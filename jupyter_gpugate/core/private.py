"""Digests of parameter values, which are as private as an environment.

Observations are matched by whether parameters are equal, which a digest shows.  Names are kept: the
estimate lists the parameters that do not matter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jupyter_gpugate.core.requests import Setting

_DIGEST = re.compile(r"#[0-9a-f]{24}")


def digest_of(name: str, value: str) -> str:
    """Return the digest of a parameter's value; it depends on the parameter's name as well."""
    text = f"{name}\0{value}".encode("utf-8", "surrogatepass")
    return f"#{hashlib.blake2b(text, digest_size=12, person=b'gpugate-setting').hexdigest()}"


def is_digest(value: str) -> bool:
    """Return whether a text is such a digest."""
    return _DIGEST.fullmatch(value) is not None


def without_values(setting: Setting) -> Setting:
    """Return the setting with digests in the place of values, as of an older or careless sender."""
    pairs = tuple(_private(setting.parameters))
    return setting if pairs == setting.parameters else replace(setting, parameters=pairs)


def scrubbed(data: Any) -> Any:
    """Return JSON data in which every setting has digests in the place of values."""
    if isinstance(data, list):
        return [scrubbed(one) for one in data]
    if not isinstance(data, dict):
        return data
    clean = {key: scrubbed(value) for key, value in data.items()}
    pairs = clean.get("parameters")
    if "workers" in clean and isinstance(pairs, list) and all(map(_is_pair, pairs)):
        clean["parameters"] = [list(pair) for pair in _private((n, v) for n, v in pairs)]
    return clean


def _private(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((n, value if is_digest(value) else digest_of(n, value)) for n, value in pairs)


def _is_pair(pair: Any) -> bool:
    two = isinstance(pair, list) and len(pair) == 2  # noqa: PLR2004 - name and value
    return two and all(isinstance(word, str) for word in pair)
