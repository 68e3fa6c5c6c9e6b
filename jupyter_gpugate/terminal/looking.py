"""The commands that look at the gate and the machine: `queue`, `estimate` and `doctor`."""

from __future__ import annotations

import argparse
from typing import Any

from jupyter_gpugate.client.connection import connect
from jupyter_gpugate.client.disk import held_below
from jupyter_gpugate.client.errors import GateUnreachable
from jupyter_gpugate.faces import doctor as sentences
from jupyter_gpugate.faces import tables
from jupyter_gpugate.terminal import serving
from jupyter_gpugate.terminal.answers import show, width
from jupyter_gpugate.terminal.exits import OK


def queue(options: argparse.Namespace) -> int:
    """Print active runs, waiting runs and the use of memory."""
    snapshot = connect().queue()
    show(options, snapshot, tables.queue(snapshot, width())["text/plain"])
    return OK


def estimate(options: argparse.Namespace) -> int:
    """Print the need of the newest run of a name."""
    names = ("name", "workers", "gpus", "episodes", "device", "device_model")
    asked = {name: getattr(options, name) for name in names}
    answer = connect().estimate({k: v for k, v in asked.items() if v is not None})
    show(options, answer, tables.estimate(answer, width())["text/plain"])
    return OK


def doctor(options: argparse.Namespace) -> int:
    """Print what can be measured and enforced here, with or without a gate."""
    try:
        answer = _with_disk(connect(start=False).machine())
    except GateUnreachable as error:
        if not serving.can_measure():
            raise GateUnreachable(f"{error}; {serving.TOO_OLD}") from None
        from jupyter_gpugate.gate.measure_once import read_machine

        answer = read_machine()
    show(options, answer, sentences.machine(answer, width())["text/plain"])
    return OK


def _with_disk(answer: dict[str, Any]) -> dict[str, Any]:
    """Add the size of the run directories, which the gate does not compute for every caller."""
    runs = answer.get("runs")
    if not runs:
        return answer
    held, is_whole = held_below(runs["directory"])
    return {**answer, "runs": {**runs, "held_bytes": held, "is_whole": is_whole}}
