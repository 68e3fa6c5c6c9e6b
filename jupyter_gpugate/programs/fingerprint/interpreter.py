"""Module path and version of the Python that a command names."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence

_TIMEOUT_S = 30.0
_MOST_BYTES = 1 << 20
_SCRIPT = "import json,sys; print(json.dumps([sys.path[1:], list(sys.version_info[:3])]))"


def path_and_version(interpreter: str, path: Sequence[str], version: str) -> tuple[list[str], str]:
    """Return an interpreter's module path and version; for this one those that are given.

    An interpreter that does not answer has the given path and an empty version.
    """
    if interpreter == sys.executable:
        return list(path), version
    try:
        own_path, numbers = json.loads(_output_of([interpreter, "-c", _SCRIPT]))
        return list(map(str, own_path)), ".".join(map(str, numbers))
    except (OSError, ValueError, TypeError, RecursionError):
        return list(path), ""


def _output_of(argv: Sequence[str]) -> bytes:
    """Return what a program prints; `ValueError` for one that fails, hangs or does not end."""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        timer = threading.Timer(_TIMEOUT_S, process.kill)
        timer.start()
        try:
            output = process.stdout.read(_MOST_BYTES) if process.stdout else b""
            if len(output) == _MOST_BYTES:
                process.kill()
            process.wait()
        finally:
            timer.cancel()
    if process.returncode != 0:
        raise ValueError(f"{argv[0]} does not report its module path")
    return output
