"""Named places where a test makes the gate fail: ``GPUGATE_FAIL=store.commit.after:kill9``.

An entry is ``NAME:ACTION``, several are separated by commas.  Actions: ``raise`` (an input/output
error), ``enospc`` (a full disk), ``sleep:SECONDS`` and ``kill9`` (this process, at once).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


def failpoint(name: str) -> None:
    """Fail here if ``name`` is armed; raise `OSError` where the action is an error."""
    if _armed and name in _armed:
        _armed[name]()


def arm(text: str) -> None:
    """Arm exactly the entries of ``text``; raise `ValueError` for an invalid entry."""
    _armed.clear()
    for entry in filter(None, text.split(",")):
        name, _, action = entry.partition(":")
        _armed[name] = _action(name, action)


def _action(name: str, text: str) -> Callable[[], None]:
    action, _, argument = text.partition(":")
    if action == "sleep":
        seconds = float(argument)
        return lambda: time.sleep(seconds)
    if action == "kill9":
        return lambda: os.kill(os.getpid(), signal.SIGKILL)
    if action in {"raise", "enospc"}:
        number = errno.ENOSPC if action == "enospc" else errno.EIO
        return lambda: _fail(number, name)
    raise ValueError(f"GPUGATE_FAIL: {name}:{text}: the action is raise, enospc, sleep:S or kill9")


def _fail(number: int, name: str) -> None:
    raise OSError(number, os.strerror(number), f"failpoint {name}")


arm(os.environ.get("GPUGATE_FAIL", ""))
