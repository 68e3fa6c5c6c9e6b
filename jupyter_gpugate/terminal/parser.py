"""The verbs of `jupyter gpugate` with their options; each is imported when it is called."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, Final, NamedTuple, cast

from jupyter_gpugate._version import __version__
from jupyter_gpugate.client import options as given
from jupyter_gpugate.client import verb_options as asked
from jupyter_gpugate.client.options import Option
from jupyter_gpugate.terminal.exits import EXIT_CODES, EXIT_CODES_OF_WAIT

_DESCRIPTION: Final = "Starts a run when the memory that it needs is measured to be free."
_EPILOG: Final = """\
`jupyter gpugate VERB --help` shows the options of a verb. RUN is the id of a run, the beginning or
the last five letters of it, or a name: it means the one unfinished run of that name or, where none
is unfinished, the newest one, which can be looked at but not cancelled. `show`, `wait`, `cancel`
and `rm` take the id of a group as well: the runs of a --sweep."""
_RUN: Final = """\
Queues a command, starts it once its memory is free, and waits for its end; the command's standard
input is empty. Without a command, the newest run of this name is submitted again: the same source
or command with the same options, except for those that are given, in the present environment."""
_LOGS: Final = "Prints the output of a run so far. Ctrl-C ends --follow, and not the run."
_WAIT: Final = "Waits until all these runs have ended, and prints how each did."
_TOP: Final = """\
Shows the queue as `queue` does, and draws it again every second until Ctrl-C, which leaves all runs
alone. With --json, every second has a line of its own."""
_CANCEL: Final = """\
Stops runs with all their processes. --name and --all show the runs and ask once; without a terminal
they need --yes."""
_REMOVE: Final = """\
Removes ended runs with their directories: their source, output and results. What has been measured
stays known. --name shows the runs and asks once; without a terminal it needs --yes."""


class Verb(NamedTuple):
    """A verb, the function that carries it out, and its options."""

    name: str
    home: str  # module and function
    help: str
    options: Sequence[Option] = ()
    settings: Mapping[str, Any] = MappingProxyType({})

    def carry_out(self, options: argparse.Namespace) -> int:
        """Import the function and call it."""
        module, _, name = self.home.partition(".")
        home = importlib.import_module(f"jupyter_gpugate.terminal.{module}")
        return cast("Callable[[argparse.Namespace], int]", getattr(home, name))(options)


def _name(words: str) -> Option:
    return Option("name", {"type": given.run_name, "metavar": "NAME", "help": words})


VERBS: Final = (
    Verb(
        "run",
        "submitting.run",
        "run a command once its memory is free and wait for its end; or repeat a run by its name",
        (
            _name("the name of the run, under which measurements are stored"),
            *given.RUN_OPTIONS,
            *given.PROGRAM_OPTIONS,
        ),
        {
            "description": _RUN,
            "usage": "jupyter gpugate run NAME [options] [-- COMMAND [ARGUMENT ...]]",
            "epilog": EXIT_CODES,
        },
    ),
    Verb(
        "queue",
        "looking.queue",
        "show active runs, waiting runs with reasons, and the use of memory",
    ),
    Verb("top", "top.top", "show the queue and keep it up to date", (), {"description": _TOP}),
    Verb("runs", "listing.list_runs", "list runs, ended ones too", asked.RUNS_OPTIONS),
    Verb(
        "show",
        "listing.show_run",
        "show one run: its state, why it waits or ended, its attempts, its files; or a group",
        (asked.RUN_OR_GROUP,),
    ),
    Verb(
        "logs",
        "watching.logs",
        "print the output of a run",
        asked.LOGS_OPTIONS,
        {"description": _LOGS},
    ),
    Verb(
        "wait",
        "watching.wait",
        "wait until runs have ended",
        asked.WAIT_OPTIONS,
        {"description": _WAIT, "epilog": EXIT_CODES_OF_WAIT},
    ),
    Verb(
        "estimate",
        "looking.estimate",
        "show the need of a run and the origin of each number",
        (_name("the run's name"), *given.ESTIMATE_OPTIONS),
    ),
    Verb(
        "cancel",
        "stopping.cancel",
        "stop runs with all their processes",
        asked.CANCEL_OPTIONS,
        {
            "description": _CANCEL,
            "usage": "jupyter gpugate cancel (RUN ... | --name NAME | --all) [options]",
        },
    ),
    Verb(
        "rm",
        "stopping.remove",
        "remove ended runs and their directories",
        asked.REMOVE_OPTIONS,
        {
            "description": _REMOVE,
            "usage": "jupyter gpugate rm (RUN ... | --name NAME) [options]",
        },
    ),
    Verb(
        "release",
        "stopping.release",
        "remove a lock on a GPU, or on the machine",
        (given.RESOURCE,),
    ),
    Verb("doctor", "looking.doctor", "show what can be measured and enforced here, and why not"),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs; what it returns has the `Verb` and its own parser."""
    made = argparse.ArgumentParser(prog="jupyter gpugate", description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument("--version", action="version", version=__version__)
    verbs = made.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        settings = {"description": f"{verb.help[0].upper()}{verb.help[1:]}.", "allow_abbrev": False}
        own = verbs.add_parser(verb.name, help=verb.help, **{**settings, **verb.settings})
        own.add_argument("--json", action="store_true", help="print JSON instead of text")
        for option in verb.options:
            option.add_to(own)
        own.set_defaults(verb=verb, parser=own)
    verbs.add_parser("serve", help="run a gate in the foreground; see `serve --help`")
    return made
