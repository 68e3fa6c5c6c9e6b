"""The commands that follow runs which go on without them: `logs` and `wait`."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Optional

from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.errors import Interrupted, SubmissionError
from jupyter_gpugate.client.finding import expanded, find_run
from jupyter_gpugate.client.following import RunFollower, State
from jupyter_gpugate.client.stream import OutputStream
from jupyter_gpugate.faces import card, words
from jupyter_gpugate.terminal.answers import show
from jupyter_gpugate.terminal.exits import FAILED, NOT_OVER, OK, worst
from jupyter_gpugate.terminal.follow import Progress, say, write

#: Runs that are followed at the same time; each needs a connection to the gate.
_AT_ONCE: Final = 32
_STEP_S: Final = 0.1


def logs(options: argparse.Namespace) -> int:
    """Print the output of a run, and go on until its end if that is asked for."""
    client = connect()
    run_id = find_run(client, options.run)
    if options.follow and options.json:
        raise SubmissionError("--follow prints the output as it comes: it cannot be one JSON value")
    if options.json:
        text = "".join(_pieces(client, run_id))
        show(options, {"run_id": run_id, "output": _last(text, options.lines)}, "")
        return OK
    if options.follow:
        return _followed(client, run_id, options.lines)
    if not _printed(client, run_id, options.lines):
        state = client.run(run_id).body or {}
        reasons = state.get("reasons") or ()
        why = f": {words.why(reasons[0])}" if reasons else ""
        say(f"{run_id} has no output; {card.title(state)}{why}")
    return OK


def wait(options: argparse.Namespace) -> int:
    """Wait until all runs have ended, or are ready; an interrupt leaves them alone."""
    client = connect()
    wanted = expanded(client, options.runs)
    run_ids = list(dict.fromkeys(find_run(client, word) for word in wanted))
    until = time.monotonic() + options.timeout if options.timeout else None
    ended: dict[str, State] = {}

    def is_over(state: State) -> bool:
        return state.get("status") == "ended" or bool(options.ready and state.get("ready"))

    def tell(state: State) -> None:
        ended[str(state["run_id"])] = state
        if not options.json:
            show(options, {}, f"{state['run_id']} {card.title(state)}")

    try:
        _all_over(client, run_ids, until, tell, is_over)
    except KeyboardInterrupt:
        left = len(run_ids) - len(ended)
        go_on = "the run goes on" if left == 1 else f"{left} runs go on"
        raise Interrupted(f"{go_on} without this terminal") from None
    states = [ended[run_id] for run_id in run_ids if run_id in ended]
    if options.json:
        show(options, states, "")
    if len(states) < len(run_ids):
        not_yet = "ended or become ready" if options.ready else "ended"
        left = len(run_ids) - len(states)
        say(f"{left} of {len(run_ids)} runs have not {not_yet} yet; they go on")
        return NOT_OVER
    is_gone = any(state.get("service") and state["status"] == "ended" for state in states)
    return worst(states) or (FAILED if options.ready and is_gone else OK)


def _all_over(
    client: Client,
    run_ids: list[str],
    until: Optional[float],
    tell: Callable[[State], None],
    is_over: Callable[[State], bool],
) -> None:
    """Call ``tell`` with the first state of each run that is over, until the time has passed."""
    waiting = deque(run_ids)
    followers: dict[str, RunFollower] = {}
    try:
        while (waiting or followers) and (until is None or time.monotonic() < until):
            while waiting and len(followers) < _AT_ONCE:
                run_id = waiting.popleft()
                followers[run_id] = RunFollower(Client(client.socket_path), run_id)
            for run_id, follower in list(followers.items()):
                state = follower.next(timeout_s=_STEP_S / len(followers))
                if state is not None and is_over(state):
                    followers.pop(run_id).close()
                    tell(state)
    finally:
        for follower in followers.values():
            follower.close()


def _followed(client: Client, run_id: str, lines: Optional[int]) -> int:
    start = 0
    if lines is not None:
        text, start = _so_far(client, run_id)
        write(_last(text, lines))
    follower = RunFollower(Client(client.socket_path), run_id)
    stream = OutputStream(Client(client.socket_path), run_id, write, start)
    progress, state, ended = Progress(), State(), False
    try:
        while not ended:
            state = follower.next() or state
            ended = state.get("status") == "ended"
            note = follower.trouble and f"{follower.trouble}; the run goes on"
            if state and (note or state.get("status") != "active"):
                progress.show(state, note if not ended else "")
    except KeyboardInterrupt:
        raise Interrupted("the run goes on without this terminal") from None
    finally:
        follower.close()
        stream.close(to_the_end=ended)
    return OK


def _printed(client: Client, run_id: str, lines: Optional[int]) -> bool:
    """Print the output so far; return whether there is any."""
    found = False
    pieces = _pieces(client, run_id)
    for text in pieces if lines is None else (_last("".join(pieces), lines),):
        found = found or bool(text)
        write(text)
    return found


def _pieces(client: Client, run_id: str) -> Iterator[str]:
    for piece in _answers(client, run_id):
        yield piece["text"]


def _so_far(client: Client, run_id: str) -> tuple[str, int]:
    """Return the output so far, and the byte after it."""
    pieces = list(_answers(client, run_id))
    return "".join(piece["text"] for piece in pieces), pieces[-1]["next"] if pieces else 0


def _answers(client: Client, run_id: str) -> Iterator[dict[str, Any]]:
    start = 0
    while True:
        piece = client.output(run_id, start)
        if not piece["text"]:
            return
        yield piece
        start = piece["next"]


def _last(text: str, lines: Optional[int]) -> str:
    if lines is None:
        return text
    parts = text.split("\n")
    return "\n".join(parts[-lines - (not parts[-1]) :])
