"""The URL by which a service shows that it is ready: plain HTTP on this machine's loopback."""

from __future__ import annotations

import re
from typing import Final

EXAMPLE: Final = "http://127.0.0.1:8000/health"
LONGEST: Final = 1000
_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_LOOPBACK: Final = rf"(localhost|127(\.{_BYTE}){{3}}|\[::1\])"
_PORT: Final = (
    r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
)
#: No blank and no control character, which would end the line of a request, and no fragment.
PATTERN: Final = rf"^http://{_LOOPBACK}:{_PORT}([/?][!\"$-~]*)?$"


def problem_of(url: str) -> str:
    """Return why a run's supervisor cannot ask this URL; "" if it can."""
    if len(url) <= LONGEST and re.fullmatch(PATTERN[1:-1], url):
        return ""
    return f"{_what_is_wrong(url)}, such as {EXAMPLE}"


def _what_is_wrong(url: str) -> str:
    if len(url) > LONGEST or not re.fullmatch(r"[!-~]+", url):
        return f"must be a URL of at most {LONGEST} printable ASCII characters"
    scheme, _, rest = url.partition("://")
    if scheme != "http":
        return "must begin with http://"
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority or "#" in rest:
        return "must have neither a user nor a fragment"
    if not re.fullmatch(rf"{_LOOPBACK}(:[0-9]*)?", authority):
        return "must name this machine by localhost, 127.0.0.1 or [::1]"
    return "must name the port of the service"
