"""Sentences and texts that several modules report."""

from __future__ import annotations

from collections.abc import Sequence

#: Characters of an error's message, and of each part of its traceback.
_MOST = 256 << 10


def error_text(error: BaseException) -> str:
    """Return an error's class and message on one line, as Python prints them."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - any class may have a broken __str__
        return type(error).__name__


def shortened(text: str) -> str:
    """Shorten a text that is too long to report."""
    left_out = len(text) - _MOST
    if left_out <= 0:
        return text
    half = _MOST // 2
    return f"{text[:half]}\n... {left_out:,} more characters ...\n{text[-half:]}"


def listed(names: Sequence[str]) -> str:
    """List the first three names, and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004
    return ", ".join(names[:3]) + more
