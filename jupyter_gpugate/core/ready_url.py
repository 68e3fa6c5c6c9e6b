"""The URL by which a service shows that it is ready: plain HTTP on this machine's loopback."""

from __future__ import annotations

import re
from typing import Final

EXAMPLE: Final = "http://127.0.0.1:8000/health"
LONGEST: Final = 1000
MOST_PORT: Final = 65535
#: No blank and no control character, which would end the line of a request.
_PRINTED: Final = re.compile(r"[!-~]+")
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]{1,5}))?")
_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_LOOPBACK: Final = re.compile(rf"localhost|127(?:\.{_BYTE}){{3}}|\[::1\]")


def problem_of(url: str) -> str:
    """Return why a run's supervisor cannot ask this URL; "" if it can."""
    if len(url) > LONGEST or not _PRINTED.fullmatch(url):
        return f"must be a URL of at most {LONGEST} printable ASCII characters, such as {EXAMPLE}"
    scheme, _, rest = url.partition("://")
    if scheme != "http":
        return f"must begin with http://, such as {EXAMPLE}"
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority or "#" in rest:
        return f"must have neither a user nor a fragment, such as {EXAMPLE}"
    found = _AUTHORITY.fullmatch(authority)
    if found is None or not _LOOPBACK.fullmatch(found["host"]):
        return f"must name this machine by localhost, 127.0.0.1 or [::1], such as {EXAMPLE}"
    if not 0 < int(found["port"] or 0) <= MOST_PORT:
        return f"must name the port of the service, such as {EXAMPLE}"
    return ""
