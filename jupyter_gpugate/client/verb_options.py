"""The options of the commands that find, show and stop runs; those of a run are in `options`."""

from __future__ import annotations

from typing import Any, Final

from jupyter_gpugate.client.options import Option, duration, positive, run_name

#: The words of the list for states; ends are called as in the API.
STATUSES: Final = {
    "unfinished": "unfinished",
    "waiting": "queued",
    "running": "active",
    "ended": "ended",
    **{
        end: end
        for end in ("completed", "failed", "cancelled", "expired", "rejected", "oom", "lost")
    },
}
SORTS: Final = ("newest", "oldest", "name", "took", "peak")

_WHICH: Final = "the id of a run, the beginning or the last five letters of one, or a run's name"
_WHICH_OR_GROUP: Final = f"{_WHICH}; or the id of a group"


def _option(flag: str, *, short: str = "", **settings: Any) -> Option:
    return Option(flag, settings, short=short)


#: Which runs.
RUN: Final = _option("run", metavar="RUN", help=_WHICH)
RUN_OR_GROUP: Final = _option("run", metavar="RUN", help=_WHICH_OR_GROUP)
RUNS: Final = _option("runs", nargs="+", metavar="RUN", help=_WHICH_OR_GROUP)
SOME_RUNS: Final = _option("runs", nargs="*", metavar="RUN", help=_WHICH_OR_GROUP)
YES: Final = _option("--yes", short="-y", action="store_true", help="do not ask for confirmation")


def _named(which: str) -> Option:
    return _option("--name", type=run_name, metavar="NAME", help=f"all {which} runs of this name")


RUNS_OPTIONS: Final = (
    _option("--name", type=run_name, metavar="NAME", help="only runs of this name"),
    _option("--group", type=run_name, metavar="GROUP", help="only runs of this group"),
    _option(
        "--status",
        choices=tuple(STATUSES),
        metavar="STATUS",
        help=f"only runs in this state: {', '.join(STATUSES)}",
    ),
    _option(
        "--newest",
        short="-n",
        type=positive,
        default=20,
        metavar="N",
        help="only the newest N (default: 20)",
    ),
    _option("--all", action="store_true", help="all runs, however many"),
    _option(
        "--sort",
        choices=SORTS,
        default="newest",
        help="order of the list (default: newest first)",
    ),
)

LOGS_OPTIONS: Final = (
    RUN,
    _option(
        "--follow", short="-f", action="store_true", help="go on with new output until the run ends"
    ),
    _option(
        "--lines", short="-n", type=positive, metavar="N", help="begin with the last N lines only"
    ),
)

WAIT_OPTIONS: Final = (
    RUNS,
    _option("--ready", action="store_true", help="of services: wait until they are ready"),
    _option("--timeout", type=duration, metavar="TIME", help="stop waiting after this time: 30m"),
)

CANCEL_OPTIONS: Final = (
    SOME_RUNS,
    _named("waiting and active"),
    _option("--all", action="store_true", help="all your waiting and active runs"),
    YES,
)

REMOVE_OPTIONS: Final = (SOME_RUNS, _named("ended"), YES)
