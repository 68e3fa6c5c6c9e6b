"""B6: what an idle gate costs a Jupyter server: CPU, memory and wake-ups.

Two servers stand idle side by side, one with the extension and one without, on a machine with some
hundreds of sleeping processes.  The difference is the gate's, its GPU reader included: a machine
with a GPU wakes twice a second more, once in that reader and once for its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from tests.benchmarks.measure import WORDS, bar, passed, save, table
from tests.kit.real_server import Places, Served, extensions

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS: Final = 60.0
PROCESSES: Final = 300
WARM_UP_S: Final = 10.0
OFF: Final = extensions(jupyter_gpugate=False)


class Cost(NamedTuple):
    """Of a server and its children, summed: CPU seconds, bytes, wake-ups."""

    cpu_s: float
    rss_bytes: int
    wakes: int


def run(seconds: float = SECONDS, processes: int = PROCESSES) -> dict[str, Any]:
    """Watch two idle servers for a while; JSON data."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, ExitStack() as crowd:
        sleepers = [subprocess.Popen(["sleep", "100000"]) for _ in range(processes)]
        for sleeper in sleepers:
            crowd.callback(sleeper.kill)
        gated_places, bare_places = Places(Path(scratch, "a")), Places(Path(scratch, "b"))
        gated = Served(gated_places)
        crowd.callback(gated.stop)
        bare = Served(bare_places, OFF, ready="/api")
        crowd.callback(bare.stop)
        time.sleep(WARM_UP_S)  # imports and first readings are no part of being idle
        before = [_cost(server.process.pid) for server in (gated, bare)]
        time.sleep(seconds)
        after = [_cost(server.process.pid) for server in (gated, bare)]
        for places in (gated_places, bare_places):
            crowd.callback(shutil.rmtree, places.runtime, ignore_errors=True)
    return _judged(before, after, seconds, processes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    result = run(chosen.seconds)
    save("b6", result)
    if chosen.json:
        print(json.dumps(result, indent=2))
        return 1 if result["passed"] is False else 0
    rows = [["B6: idle, beyond the bare server", "value", "bar", ""]]
    rows += [
        [name.replace("_", " "), f"{one['value']:.2f}", f"{one['bar']:g}", WORDS[one["passed"]]]
        for name, one in result["bars"].items()
    ]
    print(table(rows))
    return 1 if result["passed"] is False else 0


def _judged(
    before: list[Cost], after: list[Cost], seconds: float, processes: int
) -> dict[str, Any]:
    def more(field: str) -> float:
        """What the gated server used between the two looks beyond the bare one."""
        gated, bare = (
            getattr(late, field) - getattr(early, field)
            for early, late in zip(before, after, strict=True)
        )
        return float(gated - bare)

    bars = {
        "percent_of_a_core": bar(100 * more("cpu_s") / seconds, 2.0),
        "MiB": bar((after[0].rss_bytes - after[1].rss_bytes) / (1 << 20), 60.0),
        "wake_ups_a_second": bar(more("wakes") / seconds, 3.0),
    }
    return {
        "bench": "B6",
        "seconds": seconds,
        "processes": processes,
        "bars": bars,
        "passed": passed(list(bars.values())),
    }


def _cost(pid: int) -> Cost:
    server = psutil.Process(pid)
    cpu, rss, wakes = 0.0, 0, 0
    for process in (server, *server.children(recursive=True)):
        rss += process.memory_full_info().uss
        for task in process.threads():
            cpu += _cpu_s(process.pid, task.id)
            wakes += _voluntary_switches(process.pid, task.id)
    return Cost(cpu, rss, wakes)


def _cpu_s(pid: int, thread: int) -> float:
    """By the scheduler's own clock: times in ticks charge a whole one to whoever runs at its edge,
    which a process that a timer wakes always does.
    """
    path = Path(f"/proc/{pid}/task/{thread}/schedstat")
    return int(path.read_text().split()[0]) / 1e9 if os.access(path, os.R_OK) else 0.0


def _voluntary_switches(pid: int, thread: int) -> int:
    path = Path(f"/proc/{pid}/task/{thread}/status")
    if not os.access(path, os.R_OK):
        return 0
    for line in path.read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
