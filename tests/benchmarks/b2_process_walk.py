"""B2: what one walk over the process table costs, beside psutil and beside a walk written in C.

The walkers are processes of their own and walk the same crowd, each once a turn, in a shuffled
order, so that none always follows the same one; the oldest of the crowd is replaced before each
turn.  A cost is the median CPU time of one walk, a ratio the median of the turns' ratios; a whole
reading of the machine, RAM and cgroups included, is timed beside them.  The system calls of a walk
are counted by strace where that is allowed, else in the walker.  Ratios of a machine whose own
fixed loop varied by more than 1.3x between turns mean nothing: they are void.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from operator import truediv
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeAlias, cast

SIZES: Final = (300, 1_000, 4_000)
SMALL: Final = (300,)
OWNERS: Final = 8
CHURN: Final = 10  # processes replaced between two readings, which are a second apart in life
STEADY: Final = 1.3
BARS: Final = {"of_floor": 1.5, "of_psutil": 0.2, "calls_per_process": 1.3}

_HERE: Final = Path(__file__).resolve().parent
_WARM_UP: Final = 3


def run(sizes: Sequence[int] = SIZES, rounds: int = 41, churn: int = CHURN) -> dict[str, Any]:
    """Measure crowds of these sizes.

    Returns JSON data: per size the costs in milliseconds and what became of each bar (None: void);
    ``passed`` is None where any bar is void.  Raises `RuntimeError` without a C compiler.
    """
    with tempfile.TemporaryDirectory() as scratch:
        floor, crowd = (_compile(name, Path(scratch)) for name in ("b2_walk", "b2_crowd"))
        results = [_measure(size, rounds, churn, floor, crowd) for size in sizes]
    verdicts = [bar["passed"] for result in results for bar in result["bars"].values()]
    passed = False if False in verdicts else None if None in verdicts else True
    return {"bench": "B2", "owners": OWNERS, "churn": churn, "sizes": results, "passed": passed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="one crowd of 300, for CI")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--walker", choices=sorted(_WALKERS), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.walker is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _serve(_WALKERS[chosen.walker]())
        return 0
    result = run(SMALL) if chosen.small else run()
    print(json.dumps(result, indent=2) if chosen.json else _table(result))
    return 1 if result["passed"] is False else 0


def _measure(
    size: int, rounds: int, churn: int, floor: Path, crowd_program: Path
) -> dict[str, Any]:
    calibration: list[float] = []
    with ExitStack() as stack:
        crowd = stack.enter_context(_running([str(crowd_program), str(size), str(OWNERS)]))
        crowd.hear()
        commands = {name: _walker_command(name) for name in ("ours", "psutil", "reading")}
        commands["floor"] = [str(floor)]
        walkers = {name: stack.enter_context(_running(line)) for name, line in commands.items()}
        costs: dict[str, list[float]] = {name: [] for name in walkers}
        turns, order = list(walkers), random.Random(2)
        seen = 0
        for _ in range(_WARM_UP + rounds):
            crowd.ask(str(churn))
            calibration.append(_fixed_loop())
            for name in turns:
                rows, _, nanoseconds = (int(word) for word in walkers[name].ask("walk").split())
                costs[name].append(nanoseconds / 1e6)
                seen = rows if name == "ours" else seen
            order.shuffle(turns)
        meter, calls = _count_calls(crowd, churn)
    costs = {name: cost[_WARM_UP:] for name, cost in costs.items()}
    return _judge(seen, costs, _spread(calibration[_WARM_UP:]), meter, calls / seen)


def _judge(
    seen: int, costs: dict[str, list[float]], spread: float, meter: str, calls: float
) -> dict[str, Any]:
    values = {
        f"of_{peer}": statistics.median(map(truediv, costs["ours"], costs[peer]))
        for peer in ("floor", "psutil")
    }
    values["calls_per_process"] = calls
    void = spread > STEADY
    bars = {
        name: {
            "value": round(value, 3),
            "bar": BARS[name],
            # A count does not vary with the machine's mood.
            "passed": None if void and name != "calls_per_process" else value <= BARS[name],
        }
        for name, value in values.items()
    }
    return {
        "processes": seen,
        "ms": {name: round(statistics.median(cost), 3) for name, cost in costs.items()},
        "spread": round(spread, 3),
        "calls_by": meter,
        "bars": bars,
    }


def _table(result: dict[str, Any]) -> str:
    heads = ["processes", "ours ms", "psutil ms", "C ms", "reading ms", "spread"]
    heads += [f"{name} <= {bar}" for name, bar in BARS.items()]
    rows = [heads]
    for size in result["sizes"]:
        cost = size["ms"]
        times = [f"{cost[name]:.2f}" for name in ("ours", "psutil", "floor", "reading")]
        verdicts = [f"{bar['value']:.2f} {_WORDS[bar['passed']]}" for bar in size["bars"].values()]
        rows.append([str(size["processes"]), *times, f"{size['spread']:.2f}x", *verdicts])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    counted = ", ".join(sorted({size["calls_by"] for size in result["sizes"]}))
    return "\n".join([*lines, f"calls by {counted}; B2: {_WORDS[result['passed']]}"])


_WORDS: Final = {True: "pass", False: "FAIL", None: "void"}


# -- the walkers, each in a process of its own ------------------------------------------------

#: Walks once and returns what it found, and how many system calls that took where it counts them.
_Walk: TypeAlias = Callable[[], "tuple[Sized, int]"]


class _Peer(NamedTuple):
    """A program that answers each line on its stdin with one line."""

    stdin: IO[str]
    stdout: IO[str]

    def ask(self, line: str) -> str:
        self.stdin.write(f"{line}\n")
        self.stdin.flush()
        return self.hear()

    def hear(self) -> str:
        answer = self.stdout.readline()
        if not answer:
            raise BrokenPipeError("it ended early")
        return answer


@contextmanager
def _running(command: Sequence[str]) -> Iterator[_Peer]:
    """Run a program until the end of the block, which it notices by the end of its stdin."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield _Peer(cast("IO[str]", process.stdin), cast("IO[str]", process.stdout))


def _walker_command(name: str) -> list[str]:
    return [sys.executable, "-m", __spec__.name, "--walker", name]


def _serve(walk: _Walk) -> None:
    """Answer every line with "PROCESSES CALLS CPU_NANOSECONDS", in one write each."""
    while os.read(0, 64):
        before = time.process_time_ns()
        rows, calls = walk()
        spent = time.process_time_ns() - before
        os.write(1, f"{len(rows)} {calls} {spent}\n".encode())


def _ours() -> _Walk:
    from jupyter_gpugate.gate.machine.process_table import ProcessTable

    table = ProcessTable()

    return lambda: (table.walk(), 0)


def _reading() -> _Walk:
    from jupyter_gpugate.gate.machine.reader import MachineReader

    reader = MachineReader()

    return lambda: (reader.read().processes, 0)


def _counted() -> _Walk:
    """As ours, with the number of system calls."""
    walk, calls = _ours(), [0]

    def counted(function: Callable[..., Any], more: Callable[[Any], int]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            answer = function(*arguments)
            calls[0] += 1 + more(answer)
            return answer

        return call

    for name in ("open", "read", "pread", "close", "stat"):
        setattr(os, name, counted(getattr(os, name), lambda _answer: 0))
    # open, fstat, close, and a call for each 32 KiB of entries of about 24 bytes
    listdir = counted(os.listdir, lambda names: 3 + len(names) * 24 // 32_768)
    os.listdir = listdir

    def walk_counting() -> tuple[Sized, int]:
        calls[0] = 0
        rows, _ = walk()
        return rows, calls[0]

    return walk_counting


def _psutil() -> _Walk:
    import psutil

    facts = ["ppid", "uids", "create_time", "memory_info"]

    return lambda: ([found.info for found in psutil.process_iter(facts)], 0)


_WALKERS: Final = {"ours": _ours, "reading": _reading, "counted": _counted, "psutil": _psutil}


# -- counts, calibration, compiler ------------------------------------------------------------


def _count_calls(crowd: _Peer, churn: int, readings: int = 5) -> tuple[str, int]:
    """Return how it was counted, and the least number of system calls of one walk.

    The least, since whatever else comes and goes on the machine can only add some.
    """
    strace = shutil.which("strace")
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "calls")
        if strace is not None:
            try:
                with _running([strace, "-o", str(log), *_walker_command("ours")]) as walker:
                    _read_churning(walker, crowd, churn, readings)
                return "strace", _calls_logged(log.read_text(encoding="utf-8"), readings)
            except BrokenPipeError:  # tracing is not allowed here
                pass
    with _running(_walker_command("counted")) as walker:
        counts = _read_churning(walker, crowd, churn, readings)
    return "count", min(counts)


def _read_churning(walker: _Peer, crowd: _Peer, churn: int, readings: int) -> list[int]:
    counts = []
    for _ in range(_WARM_UP + readings):
        crowd.ask(str(churn))
        counts.append(int(walker.ask("walk").split()[1]))
    return counts[_WARM_UP:]


def _calls_logged(log: str, readings: int) -> int:
    """Count the calls between two answers, less those that ask and answer."""
    answers = [n for n, line in enumerate(log.splitlines()) if re.match(r"write\(1, ", line)]
    between = [later - earlier - 2 for earlier, later in itertools.pairwise(answers)]
    return min(between[-readings:])


def _fixed_loop() -> float:
    before = time.process_time()
    sum(number * number for number in range(200_000))
    return time.process_time() - before


def _spread(times: Sequence[float]) -> float:
    """The ninth decile over the first: one hiccup among many turns does not move a median."""
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return deciles[-1] / deciles[0]


def _compile(name: str, folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("this benchmark needs a C compiler")
    program = folder / name
    source = _HERE / f"{name}.c"
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return program


if __name__ == "__main__":
    sys.exit(main())
