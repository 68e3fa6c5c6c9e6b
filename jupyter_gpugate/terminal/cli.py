"""``jupyter gpugate VERB``: run, queue, estimate, cancel, doctor and serve from a terminal."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Optional

from jupyter_gpugate._version import __version__

if TYPE_CHECKING:
    from jupyter_gpugate.client.errors import GateError
    from jupyter_gpugate.client.waiting import Verdict

OK: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
UNAVAILABLE: Final = 69
NOT_OVER: Final = 75
CANCELLED: Final = 130

_EXIT_CODES: Final = """\
exit codes of `run`: that of the command itself (128 + N for signal N); 1 if the run failed in
another way; 2 for a mistake in the command line; 69 if no gate is available; 75 if the run goes on
without this terminal, as it does after SIGTERM, SIGHUP, or a single interrupt at a terminal; 130 if
it was cancelled."""


_RUN_HELP: Final = "run a command once its memory is free, and wait for its end"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one verb and return the process's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a run prints more than some locales can say
        sys.stdout.reconfigure(errors="backslashreplace")
    if words[:1] == ["serve"]:
        return _serve(words[1:])
    own, command = _split(words)
    parser = _parser()
    options, unknown = parser.parse_known_args(own)
    if unknown:
        _refuse(unknown, getattr(options, "parser", parser), words, command)
    options.command = command
    from jupyter_gpugate.client.errors import GateError
    from jupyter_gpugate.client.submission import SubmissionError

    try:
        code: int = options.verb(options)
    except SubmissionError as error:
        return _complain(options, str(error), "bad_input", MISUSED)
    except GateError as error:
        message = error.message if options.json else str(error)
        return _complain(options, message, error.code, _code_of(error), error.detail)
    except KeyboardInterrupt as error:
        return _complain(options, f"interrupted: {error}".rstrip(": "), "interrupted", CANCELLED)
    return code


def _refuse(
    unknown: list[str], parser: argparse.ArgumentParser, words: list[str], command: list[str]
) -> None:
    from jupyter_gpugate.client.options import unrecognized

    hint = "; put -- before the command" if words[:1] == ["run"] and not command else ""
    parser.error(unrecognized(unknown, parser) + hint)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Everything behind the first ``--`` is the command of a run and none of our business."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    from jupyter_gpugate.client import options as given

    parser = argparse.ArgumentParser(
        prog="jupyter gpugate",
        description="Starts a run when the memory that it needs is measured to be free.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, function: Any, words: str, **settings: Any) -> argparse.ArgumentParser:
        settings = {"description": words, "allow_abbrev": False, **settings}
        made = verbs.add_parser(name, help=words, **settings)
        made.add_argument("--json", action="store_true", help="print JSON instead of text")
        made.set_defaults(verb=function, parser=made)
        return made

    run = verb(
        "run",
        _run,
        _RUN_HELP,
        description=f"{_RUN_HELP}; the command's standard input is empty",
        usage="jupyter gpugate run NAME [options] -- COMMAND [ARGUMENT ...]",
        epilog=_EXIT_CODES,
    )
    run.add_argument("name", type=given.run_name, help="measurements are stored under this name")
    for option in (*given.RUN_OPTIONS, *given.PROGRAM_OPTIONS):
        run.add_argument(option.flag, **option.settings)
    verb("queue", _queue, "show active runs, waiting runs with reasons, and the use of memory")
    estimate = verb("estimate", _estimate, "show the need of a run and the origin of each number")
    estimate.add_argument("name", type=given.run_name, help="the run's name")
    for option in given.ESTIMATE_OPTIONS:
        estimate.add_argument(option.flag, **option.settings)
    cancel = verb("cancel", _cancel, "stop runs with all their processes")
    cancel.add_argument("run_ids", nargs="+", metavar="RUN_ID")
    release = verb("release", _release, "remove a lock on a GPU, or on the machine")
    release.add_argument(given.RESOURCE.flag, **given.RESOURCE.settings)
    verb("doctor", _doctor, "show what can be measured and enforced here, and why not")
    verbs.add_parser("serve", help="run a gate in the foreground; see `serve --help`")
    return parser


# -- the verbs --------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from jupyter_gpugate.client import submission
    from jupyter_gpugate.terminal import follow

    if not options.command:
        raise submission.SubmissionError("no command: jupyter gpugate run NAME -- COMMAND ...")
    body = submission.program(options, options.command)
    with follow.taking_signals() as here:
        client, answer = here.submitted(body)
        run_id = str(answer["run_id"])
        follow.warn_of_lost_input()
        if options.detach:
            _print(options, answer, run_id)
            return OK
        progress = follow.Progress()
        state, verdict = here.waited(client, run_id, progress.show, streams=not options.json)
    if options.json:
        _print(options, state, "")
    if state.get("status") != "ended":
        return _left(run_id, verdict)
    return exit_code(state)


def _queue(options: argparse.Namespace) -> int:
    from jupyter_gpugate.client.connection import connect
    from jupyter_gpugate.faces import tables

    snapshot = connect().queue()
    _print(options, snapshot, tables.queue(snapshot)["text/plain"])
    return OK


def _estimate(options: argparse.Namespace) -> int:
    from jupyter_gpugate.client.connection import connect
    from jupyter_gpugate.faces import tables

    asked = {name: getattr(options, name) for name in ("name", "workers", "gpus", "episodes")}
    answer = connect().estimate({k: v for k, v in asked.items() if v is not None})
    _print(options, answer, tables.estimate(answer)["text/plain"])
    return OK


def _release(options: argparse.Namespace) -> int:
    from jupyter_gpugate.client.connection import connect
    from jupyter_gpugate.faces import tables

    answer = connect().unlock(options.resource)
    _print(options, answer, tables.unlocked(answer))
    return OK


def _cancel(options: argparse.Namespace) -> int:
    from jupyter_gpugate.client.connection import connect
    from jupyter_gpugate.client.errors import GateError
    from jupyter_gpugate.faces import tables
    from jupyter_gpugate.terminal.follow import say

    client = connect()
    answers: dict[str, Mapping[str, Any]] = {}
    failed = False
    for run_id in dict.fromkeys(options.run_ids):
        try:
            answers[run_id] = client.cancel(run_id)
        except GateError as error:
            failed = True
            answers[run_id] = _error(error.message, error.code, error.detail)
            if not options.json:
                named = "" if run_id in str(error) else f"{run_id}: "
                say(f"jupyter gpugate: {named}{error}")
        else:
            if not options.json:
                _print(options, {}, tables.cancelled(run_id, answers[run_id]))
    if options.json:
        _print(options, answers, "")
    return FAILED if failed else OK


def _doctor(options: argparse.Namespace) -> int:
    from jupyter_gpugate.client.connection import connect
    from jupyter_gpugate.client.errors import GateUnreachable
    from jupyter_gpugate.faces import doctor

    try:
        answer = _with_disk(connect(start=False).machine())
    except GateUnreachable as error:
        if not _can_measure():
            raise GateUnreachable(f"{error}; {_TOO_OLD}") from None
        from jupyter_gpugate.gate.measure_once import read_machine

        answer = read_machine()
    _print(options, answer, doctor.machine(answer)["text/plain"])
    return OK


def _with_disk(answer: dict[str, Any]) -> dict[str, Any]:
    """Add the size of the run directories, which the gate does not compute for every caller."""
    from jupyter_gpugate.client.disk import held_below

    runs = answer.get("runs")
    if not runs:
        return answer
    held, is_whole = held_below(runs["directory"])
    return {**answer, "runs": {**runs, "held_bytes": held, "is_whole": is_whole}}


def _serve(argv: list[str]) -> int:
    if not _can_measure():
        print(_TOO_OLD, file=sys.stderr)
        return UNAVAILABLE
    from jupyter_gpugate.client.connection import connect
    from jupyter_gpugate.client.enclosing_run import attempt_above
    from jupyter_gpugate.server import service

    if attempt_above() is not None and not {"-h", "--help"} & set(argv):
        # A gate in a run would end with it: one is started outside, and this one is not needed.
        connect()
        print("jupyter gpugate: the gate is running outside of this run", file=sys.stderr)
        return OK
    return service.main(argv) or OK


_TOO_OLD: Final = "a gate needs Python 3.10 or newer; kernels may be older"


def _can_measure() -> bool:
    return sys.version_info >= (3, 10)


# -- waiting ----------------------------------------------------------------------------------


def _left(run_id: str, verdict: Verdict) -> int:
    if verdict.value == "leave":
        from jupyter_gpugate.terminal.follow import say

        say(f"the run goes on; `jupyter gpugate cancel {run_id}` stops it")
        return NOT_OVER
    return CANCELLED


def exit_code(state: Mapping[str, Any]) -> int:
    """Return the command's own exit code if it is known, else one for its kind of end."""
    end, code = state.get("end"), state.get("exit_code")
    if end == "failed" and code:
        return int(code) if code > 0 else 128 - int(code)
    return {"completed": OK, "cancelled": CANCELLED}.get(str(end), FAILED)


# -- printing ---------------------------------------------------------------------------------


def _print(options: argparse.Namespace, answer: Mapping[str, Any], text: str) -> None:
    from jupyter_gpugate.terminal.follow import write

    write(f"{json.dumps(answer, indent=2) if options.json else text}\n")


def _complain(
    options: argparse.Namespace,
    message: str,
    code: str,
    exit_with: int,
    detail: Optional[Mapping[str, Any]] = None,
) -> int:
    if options.json:
        print(json.dumps(_error(message, code, detail)))
    else:
        print(f"jupyter gpugate: {message}", file=sys.stderr)
    return exit_with


def _error(message: str, code: str, detail: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    return {"error": code, "message": message, "detail": dict(detail or {})}


def _code_of(error: GateError) -> int:
    from jupyter_gpugate.client.errors import GateUnreachable

    if isinstance(error, GateUnreachable):
        return UNAVAILABLE
    return MISUSED if error.status in (400, 413) else FAILED
