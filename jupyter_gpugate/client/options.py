"""The options of a run, for the magic and for the terminal.

Each type converts text into a number of bytes, seconds or names, or says in one
sentence what to write instead.
"""

from __future__ import annotations

import difflib
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from jupyter_gpugate.client.sweeps import swept
from jupyter_gpugate.core.ready_url import EXAMPLE, problem_of
from jupyter_gpugate.core.run_spec import FIELD, LOCK_S, LONGEST_LOCK_S, MOST_WORKERS, NAME

_NAME: Final = re.compile(NAME)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([MG])i?B", re.IGNORECASE)
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])", re.IGNORECASE)
_DEVICE: Final = re.compile(r"[0-9]{1,9}|(?:GPU|MIG)-[\w/-]{1,92}", re.ASCII | re.IGNORECASE)
_BYTES: Final = {"m": 1 << 20, "g": 1 << 30}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


def run_name(text: str) -> str:
    """Return a run's name: 1 to 64 letters, digits, dots, underscores, hyphens."""
    if not _NAME.fullmatch(text):
        raise ArgumentTypeError(
            f"`{text}` is not a valid name for a run: use up to 64 letters, digits, dots, hyphens, "
            "underscores, and no hyphen at the beginning"
        )
    return text


def size(text: str) -> int:
    """Return the bytes of "2GB", "1500MB", "1.5GiB"; MB and MiB are both 2^20."""
    found = _SIZE.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise ArgumentTypeError(f"`{text}` is not a size: write 2GB, 1500MB or 1.5GiB, for example")
    return int(float(found[1]) * _BYTES[found[2].lower()])


def duration(text: str) -> float:
    """Return the seconds of "90s", "30m", "4h"."""
    found = _TIME.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise ArgumentTypeError(f"`{text}` is not a time: write 90s, 30m or 4h, for example")
    return float(found[1]) * _SECONDS[found[2].lower()]


def lock_time(text: str) -> float:
    """Return the seconds that a lock is to last, 2 hours at most."""
    seconds = duration(text)
    if seconds > LONGEST_LOCK_S:
        raise ArgumentTypeError(f"`{text}` is too long for a lock: 2h at most, then lock again")
    return seconds


def positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"`{text}` must be a whole number from 1 on")
    return int(text)


def workers(text: str) -> int:
    """Return a number of processes, at most `MOST_WORKERS`."""
    number = positive(text)
    if number > MOST_WORKERS:
        raise ArgumentTypeError(f"`{text}` is too many: {MOST_WORKERS} at most")
    return number


def count(text: str) -> int:
    """Return a whole number from 0 on."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"`{text}` must be a whole number from 0 on")
    return int(text)


def ready_url(text: str) -> str:
    """Return the URL of a service on this machine."""
    problem = problem_of(text)
    if problem:
        raise ArgumentTypeError(f"`{text}` {problem}")
    return text


def parameter(text: str) -> tuple[str, str]:
    """Return the name and the value of "batch=64"."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ArgumentTypeError(f"`{text}` must be NAME=VALUE, such as batch=64")
    return name.strip(), value


def names(text: str) -> list[str]:
    """Return the Python names of "x,y"."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [name for name in found if not name.isidentifier()]
    if wrong or not found:
        raise ArgumentTypeError(f"`{text}` must be names separated by commas, such as x,y")
    return found


def devices(text: str) -> str:
    """Return the numbers and UUIDs of GPUs in "2,3", without spaces."""
    found = [part.strip() for part in text.split(",")]
    if not all(map(_DEVICE.fullmatch, found)):
        raise ArgumentTypeError(
            f"`{text}` is not a GPU: write its number as in nvidia-smi, or its UUID; several as 2,3"
        )
    return ",".join(found)


def unrecognized(unknown: Iterable[str], parser: ArgumentParser) -> str:
    """Name the arguments that a parser did not recognise, with similar options."""
    known = re.findall(r"--[a-z][a-z-]*", parser.format_help())
    options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    meant = [close for word in options for close in difflib.get_close_matches(word, known, 1, 0.7)]
    guess = f"; did you mean {' and '.join(dict.fromkeys(meant))}?" if meant else ""
    return f"unrecognized arguments: {' '.join(unknown)}{guess}"


class Option(NamedTuple):
    """One option as argparse takes it."""

    flag: str
    settings: dict[str, Any]
    field: str = ""  # the field of a submit's body that gets its value unchanged
    short: str = ""  # such as -n

    def add_to(self, parser: ArgumentParser) -> None:
        """Let a parser of a terminal's command line take it."""
        parser.add_argument(*filter(None, (self.short, self.flag)), **self.settings)


def _option(flag: str, **settings: Any) -> Option:
    return Option(flag, settings)


def _of(name: str, flag: str, **settings: Any) -> Option:
    """Return the option that gives a field of a run, with the default or the choices of it."""
    field = FIELD[name]
    if field.kind is bool:
        settings["action"] = "store_true"
    elif field.choices:
        settings["choices"] = field.choices
    else:
        settings["default"] = field.default
    return Option(flag, {"dest": name, **settings}, name)


#: Of every run, whether a cell or a program.
RUN_OPTIONS: Final = (
    _of(
        "gpus",
        "--gpus",
        type=count,
        metavar="N",
        help="number of GPUs, 0 for none (default: 1 if the machine has a GPU)",
    ),
    _of(
        "device",
        "--gpu",
        type=devices,
        metavar="GPU",
        help="only this GPU: its number as in nvidia-smi, or its UUID; 2,3: only these",
    ),
    _of(
        "device_model",
        "--gpu-model",
        type=str,
        metavar="TEXT",
        help="only GPUs with this text in the name of their model, such as A100",
    ),
    _option("--hint-vram", type=size, metavar="SIZE", help="your own estimate of GPU memory: 2GB"),
    _option("--hint-ram", type=size, metavar="SIZE", help="your own estimate of RAM: 4GB"),
    _option(
        "--vram",
        type=size,
        metavar="SIZE",
        help="exactly this much GPU memory per GPU, instead of an estimate: 20GB",
    ),
    _option(
        "--ram",
        type=size,
        metavar="SIZE",
        help="exactly this much RAM, instead of an estimate: 8GB",
    ),
    _option(
        "--set",
        type=parameter,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help='a parameter, params["NAME"] in a cell; it counts for the estimate',
    ),
    _option(
        "--set-free",
        type=parameter,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter that does not change the memory needed, such as a seed",
    ),
    _option(
        "--sweep",
        type=swept,
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="a run for each value: batch=8,16,32 or seed=0..9; several make every combination",
    ),
    _option(
        "--sweep-free",
        type=swept,
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="the same for a parameter that does not change the memory needed, such as a seed",
    ),
    _of(
        "at_most",
        "--at-most",
        type=positive,
        metavar="N",
        help="at most N runs of the sweep at a time",
    ),
    _of(
        "after",
        "--after",
        type=run_name,
        action="append",
        metavar="RUN",
        help="start only after this run, or all runs of this group, have completed",
    ),
    _of("class", "--class", help=SUPPRESS),
    # Recorded, like the class: help offers neither before it has an effect.
    _of("evictable", "--evictable", help=SUPPRESS),
    _of("service", "--service", help="the run ends by being stopped, as a server does"),
    _of(
        "ready_url",
        "--ready",
        type=ready_url,
        metavar="URL",
        help=f"the service is ready when this answers: {EXAMPLE}",
    ),
    _of("exclusive", "--exclusive", help="no other run of yours on its GPUs"),
    _of(
        "max_wait_s",
        "--max-wait",
        type=duration,
        metavar="TIME",
        help="give up if it has not started by then",
    ),
    _of(
        "time_limit_s",
        "--time-limit",
        type=duration,
        metavar="TIME",
        help="stop the run after this long",
    ),
    _option(
        "--drop-env",
        type=str,
        action="append",
        default=[],
        metavar="NAME",
        help="an environment variable that the run must not see",
    ),
    _of("detach", "--detach", help="do not wait for the end"),
)

#: Of cells only.
CELL_OPTIONS: Final = (
    _of("episodes", "--episodes", type=positive, metavar="N", help="units of work (default: 1)"),
    _of("workers", "--workers", type=workers, metavar="N", help="processes (default: 1)"),
    _option(
        "--input",
        type=names,
        action="append",
        default=[],
        metavar="NAMES",
        help="variables of this notebook that are copied to the run, as in x,y",
    ),
    _option(
        "--output",
        type=names,
        action="append",
        default=[],
        metavar="NAMES",
        help="variables of the run that are copied back to this notebook",
    ),
)

#: Of programs only.
PROGRAM_OPTIONS: Final = (
    _option(
        "--memory-irrelevant",
        type=names,
        action="append",
        default=[],
        metavar="NAMES",
        help="parameters of the command that do not change the memory needed",
    ),
)

#: Of a question about a run.
ESTIMATE_OPTIONS: Final = (
    _option("--workers", type=workers, metavar="N", help="for N processes"),
    _option("--gpus", type=count, metavar="N", help="for N GPUs"),
    _option("--episodes", type=positive, metavar="N", help="for N units of work"),
    _option("--gpu", dest="device", type=devices, metavar="GPU", help="on this GPU"),
    _option("--gpu-model", dest="device_model", metavar="TEXT", help="on GPUs of this model"),
)

#: The resource of a lock.
RESOURCE: Final = _option(
    "resource",
    nargs="?",
    default="",
    metavar="GPU",
    help="a GPU's number or UUID (default: the whole machine)",
)

#: Of a lock.
LOCK_OPTIONS: Final = (
    RESOURCE,
    _option(
        "--time",
        type=lock_time,
        default=float(LOCK_S),
        metavar="TIME",
        help="how long, 2h at most (default: 30m)",
    ),
)
