"""The command that runs a gate in the foreground: `serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from jupyter_gpugate.terminal.exits import OK, UNAVAILABLE

TOO_OLD: Final = "a gate needs Python 3.10 or newer; kernels may be older"


def serve(argv: Sequence[str]) -> int:
    """Run the service until it ends; its options are its own."""
    if not can_measure():
        sys.stderr.write(f"{TOO_OLD}\n")
        return UNAVAILABLE
    from jupyter_gpugate.client.connection import connect
    from jupyter_gpugate.client.enclosing_run import attempt_above
    from jupyter_gpugate.server import service

    if attempt_above() is not None and not {"-h", "--help"} & set(argv):
        # A gate in a run would end with it: one is started outside, and this one is not needed.
        connect()
        sys.stderr.write("jupyter gpugate: the gate is running outside of this run\n")
        return OK
    return service.main(list(argv)) or OK


def can_measure() -> bool:
    """Return whether this Python can host a gate."""
    return sys.version_info >= (3, 10)
