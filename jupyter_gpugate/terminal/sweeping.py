"""`run --sweep`: the runs of a sweep as one group, and the table of its results."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Final, Optional

from jupyter_gpugate.client.following import State
from jupyter_gpugate.client.groups import Sweep
from jupyter_gpugate.client.waiting import Verdict
from jupyter_gpugate.faces import groups
from jupyter_gpugate.terminal import follow
from jupyter_gpugate.terminal.answers import show, width
from jupyter_gpugate.terminal.exits import CANCELLED, NOT_OVER, OK, worst

#: How often the progress of a long submit is said.
_SUBMITS_S: Final = 5.0


def run(options: argparse.Namespace, sweep: Sweep) -> int:
    """Queue every run of a sweep, wait for all of them, and print their table."""
    progress = GroupProgress()
    with follow.taking_signals() as here:
        client, submitted = here.submitted_group(sweep, progress.show)
        group = submitted.group
        follow.warn_of_lost_input()
        if options.detach:
            show(options, {"group": group, "runs": submitted.run_ids}, group)
            return OK
        state, verdict = here.waited_group(client, group, progress.show)
    if options.json or state.get("status") == "ended":
        show(options, state, groups.text(state, width=width()))
    if state.get("status") != "ended":
        return _left(group, verdict)
    return worst(state["runs"])


class GroupProgress:
    """Prints on stderr how many runs of a group are where, whenever that changes.

    While the runs are being submitted it says so every few seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: Optional[str] = None
        self._said_at = clock()

    def show(self, state: State, note: str) -> None:
        """Say the state, or the note in its place."""
        line = f"{state.get('group') or state.get('run_id')} {note or groups.title(state)}"
        is_due = bool(state.get("counts")) or self._clock() - self._said_at >= _SUBMITS_S
        if line != self._said and is_due:
            self._said, self._said_at = line, self._clock()
            follow.say(line)


def _left(group: str, verdict: Verdict) -> int:
    if verdict is not Verdict.LEAVE:
        return CANCELLED
    follow.say(
        f"the runs go on; `jupyter gpugate wait {group}` waits for them, "
        f"`jupyter gpugate cancel {group}` stops them"
    )
    return NOT_OVER
