"""A process that appends to a journal and says what was acknowledged, until it is killed.

``python -m tests.integration.journal_writer PATH FAILPOINT ROUNDS`` kills a child of its own at
the failpoint, in each round after another number of appends; without a failpoint it goes on until
somebody kills it.  Every acknowledged batch is a line ``BATCH`` on its output.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
from pathlib import Path

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.gate import failpoints
from tests.kit.journal_events import opened, requested, sedimented

#: What one batch leaves in the journal.
EVENTS_OF_A_BATCH = 3
#: Some of it is long, so that the log is carried over into the file now and then.
FILLING = "x" * 20_000


def batch_of(number: int) -> list[ev.Event]:
    """Make one transaction's events; run ids tell the batches apart."""
    waits = ev.VerdictChanged(10.0, f"run-{number}", FILLING)
    return [requested(f"run-{number}"), waits, sedimented(run_id=f"run-{number}")]


def write(path: Path, first: int, failpoint: str = "", spared: int = 0) -> None:
    """Append batches for ever; die at the failpoint after ``spared`` of them."""
    journal = opened(path)
    for number in itertools.count(first):
        if failpoint and number == first + spared:
            failpoints.arm(f"{failpoint}:kill9")
        journal.append(batch_of(number), durable=number % 2 == 0)
        os.write(1, f"{number}\n".encode())


def main(path: Path, failpoint: str, rounds: int) -> None:
    """Run the rounds, each in a child; fail where one does not die by the failpoint."""
    chance = random.Random(rounds)
    for round_number in range(rounds):
        child = os.fork()
        if child == 0:
            try:
                write(path, 1000 * round_number, failpoint, chance.randrange(5))
            finally:
                os._exit(3)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"round {round_number} ended by itself")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write(Path(sys.argv[1]), 0)
    else:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
