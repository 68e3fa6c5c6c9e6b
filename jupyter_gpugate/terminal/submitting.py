"""The command that submits: `run`."""

from __future__ import annotations

import argparse
import contextlib

from jupyter_gpugate.client import submission, sweeps
from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateError, SubmissionError
from jupyter_gpugate.client.groups import Sweep
from jupyter_gpugate.client.waiting import Verdict
from jupyter_gpugate.terminal import follow, sweeping
from jupyter_gpugate.terminal.answers import show
from jupyter_gpugate.terminal.exits import CANCELLED, NOT_OVER, OK, exit_code


def run(options: argparse.Namespace) -> int:
    """Queue a command, or the newest run of a name again, and wait for the end."""
    body = _body(options)
    points = sweeps.points(options)
    if points:
        try:
            return sweeping.run(options, Sweep(body, points))
        except GateError as error:
            raise _in_words_of_a_terminal(error, options.name) from None
    with follow.taking_signals() as here:
        try:
            client, answer = here.submitted(body)
        except GateError as error:
            raise _in_words_of_a_terminal(error, options.name) from None
        run_id = str(answer["run_id"])
        if answer.get("repeats"):
            follow.say(_repeated(client, run_id, str(answer["repeats"])))
        follow.warn_of_lost_input()
        if options.detach:
            show(options, answer, run_id)
            return OK
        progress = follow.Progress()
        state, verdict = here.waited(client, run_id, progress.show, streams=not options.json)
    if options.json:
        show(options, state, "")
    if state.get("status") != "ended":
        return _left(run_id, verdict)
    return exit_code(state)


def _body(options: argparse.Namespace) -> submission.Body:
    if options.command is None:
        return submission.again(options)
    if not options.command:
        raise SubmissionError("no command: jupyter gpugate run NAME -- COMMAND ...")
    return submission.program(options, options.command)


def _in_words_of_a_terminal(error: GateError, name: str) -> Exception:
    if error.code != "nothing_to_repeat":
        return error
    return SubmissionError(
        f"no run is named {name} yet, so there is none to repeat: give a command, as in "
        f"`jupyter gpugate run {name} -- COMMAND ...`; `jupyter gpugate runs` lists your runs"
    )


def _repeated(client: Client, run_id: str, earlier: str) -> str:
    """Say what is repeated; the run is queued, so a gate that does not answer now is no failure."""
    command = ""
    with contextlib.suppress(GateError):
        command = str((client.run(run_id).body or {}).get("command") or "")
    what = f"the command of {earlier}: {command}" if command else f"the source of {earlier}"
    return f"{run_id} repeats {what}"


def _left(run_id: str, verdict: Verdict) -> int:
    if verdict.value == "leave":
        follow.say(
            f"the run goes on; `jupyter gpugate logs -f {run_id}` follows it, "
            f"`jupyter gpugate cancel {run_id}` stops it"
        )
        return NOT_OVER
    return CANCELLED
