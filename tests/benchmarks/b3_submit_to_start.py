"""B3: from a submit to the first line of the user's code, when the run fits.

Each begins when the one before it has ended.  The limit is the same supervisor, interpreter and
shell started by hand, from a run directory that is ready, with a socket that says "go" at once.
Both go in turn, one eval again and again; beside them, without a bar, a cell that is edited before
each submit, whose source must be read anew, the former layout started by hand, whose programs are
single files in each attempt, and the peers that may be installed (task-spooler, Slurm), which start
a plain Python.
"""

from __future__ import annotations

import argparse
import http.server
import json
import shutil
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jupyter_gpugate.client.connection import Client
from tests.benchmarks.measure import STEADY, WORDS, bar, cpu_ms, fixed_loop, save, spread_of, table
from tests.kit.real_server import Places, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Starts a run that writes into a file when it began; what it returns tells when it has ended.
Job: TypeAlias = "Callable[[Path], Callable[[], bool]]"

RUNS: Final = 200
MOST_OF_LIMIT: Final = 1.5
RUN_V1: Final = Path(__file__).parents[1] / "data" / "run-v1"


def run(runs: int = RUNS) -> dict[str, Any]:
    """Submit so many runs one after the other; JSON data with medians in milliseconds."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        places = Places(Path(scratch))
        gate = subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpugate", "serve", "--user"],
            env=_environ(places),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(places.socket.exists, "the gate listens")
            jobs = _jobs(places)
            result = _measured(jobs, runs)
        finally:
            gate.terminate()
            gate.wait()
            shutil.rmtree(places.runtime, ignore_errors=True)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    result = run(chosen.runs)
    save("b3", result)
    if chosen.json:
        print(json.dumps(result, indent=2))
    else:
        rows = [["B3: ms to the first line", "median"]]
        rows += [[name, f"{ms:.0f}"] for name, ms in result["ms"].items()]
        limit = result["bars"]["of_limit"]
        print(table(rows))
        print(
            f"gate / limit {limit['value']:.2f} (bar {limit['bar']}): {WORDS[limit['passed']]}; "
            f"spread {result['spread']:.2f}x (void above {STEADY})"
        )
    return 1 if result["passed"] is False else 0


def _measured(jobs: dict[str, Job], runs: int) -> dict[str, Any]:
    """Times from the call to what the first line of the run wrote, job after job."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    loops = []
    for number in range(runs + 2):
        loops.append(cpu_ms(fixed_loop))
        for name, job in jobs.items():
            with tempfile.TemporaryDirectory() as folder:
                mark = Path(folder, "mark")
                begun = time.clock_gettime(time.CLOCK_BOOTTIME)
                is_over = job(mark)
                until(mark.exists, name)
                times[name].append(1000 * (float(mark.read_text()) - begun))
                until(is_over, f"{name} has ended")
        del number
    medians = {name: statistics.median(some[2:]) for name, some in times.items()}
    spread = spread_of(loops)
    ratio = bar(medians["gate"] / medians["by hand"], MOST_OF_LIMIT, spread=spread)
    return {
        "bench": "B3",
        "runs": runs,
        "ms": {name: round(ms, 1) for name, ms in medians.items()},
        "spread": round(spread, 3),
        "bars": {"of_limit": ratio},
        "passed": ratio["passed"],
    }


#: Writes when it began into the file that its parameter names.
SOURCE: Final = """import os, time
now = time.clock_gettime(time.CLOCK_BOOTTIME)
with open(params["mark"] + ".new", "w") as file:
    file.write(repr(now))
os.rename(params["mark"] + ".new", params["mark"])
"""


def _environ(places: Places) -> dict[str, str]:
    """Return an environment as users have it: Python may keep what it compiles."""
    return {k: v for k, v in places.environ().items() if k != "PYTHONDONTWRITEBYTECODE"}


def _jobs(places: Places) -> dict[str, Job]:
    client = Client(places.socket)
    first = places.root / "first"
    run_id = client.submit(_body("b3", SOURCE, first))["run_id"]
    until(lambda: _is_over(client, run_id), "the first run ends")
    by_hand = _ByHand(places, run_id)

    def submitted(body: dict[str, Any]) -> Callable[[], bool]:
        return partial(_is_over, client, client.submit(body)["run_id"])

    def gate(mark: Path) -> Callable[[], bool]:
        return submitted(_body("b3", SOURCE, mark))

    def edited(mark: Path) -> Callable[[], bool]:
        return submitted(_body("edited", f"{SOURCE}\n{mark.parent.name!r}\n", mark))

    jobs: dict[str, Job] = {
        "gate": gate,
        "by hand": by_hand.start,
        "by hand, single files": by_hand.start_single_files,
        "gate, edited": edited,
    }
    for name, command in (("task-spooler", "tsp"), ("srun", "srun")):
        if shutil.which(command):
            jobs[name] = partial(_peer, command)
    return jobs


def _is_over(client: Client, run_id: str) -> bool:
    return (client.run(run_id).body or {}).get("status") == "ended"


def _peer(command: str, mark: Path) -> Callable[[], bool]:
    code = f"params = {{'mark': {str(mark)!r}}}\n{SOURCE}"
    process = subprocess.Popen([command, sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    return lambda: process.poll() is not None


def _body(name: str, source: str, mark: Path) -> dict[str, Any]:
    parameters = {"mark": str(mark)}
    return {
        "name": name,
        "source": source,
        "parameters": parameters,
        "memory_irrelevant": list(parameters),
    }


class _ByHand:
    """Starts supervisors from copies of one attempt, with a gate that is nothing but "go"."""

    def __init__(self, places: Places, run_id: str) -> None:
        self._template = places.runs / run_id
        self._programs = places.runs / "programs"
        self._spare = places.root / "by-hand"
        self._spare.mkdir()
        (self._template / "env.json").write_text(json.dumps(_environ(places)))
        self._socket = places.runtime / "go.sock"
        self._server = _Server(str(self._socket), _Go)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._number = 0

    def start(self, mark: Path) -> Callable[[], bool]:
        attempt, launch = self._attempt(mark)
        program = self._programs / launch["programs"] / "gpugate_programs" / "supervisor"
        return self._started(program / "__main__.py", attempt)

    def start_single_files(self, mark: Path) -> Callable[[], bool]:
        attempt, _ = self._attempt(mark)
        for name in ("supervisor.py", "worker.py"):
            shutil.copy(RUN_V1 / "attempts" / "1" / name, attempt)
        return self._started(attempt / "supervisor.py", attempt)

    def _attempt(self, mark: Path) -> tuple[Path, dict[str, Any]]:
        """Make the directory of the next attempt; return it with its instructions."""
        self._number += 1
        attempt = self._spare / str(self._number) / "attempts" / "1"
        attempt.mkdir(parents=True)
        shutil.copy(self._template / "env.json", self._spare / str(self._number))
        old = self._template / "attempts" / "1"
        launch: dict[str, Any] = json.loads((old / "launch.json").read_text())
        launch |= {"socket": str(self._socket), "run_id": f"by-hand-{self._number}"}
        launch["parameters"] = {"mark": str(mark)}
        (attempt / "launch.json").write_text(json.dumps(launch))
        (attempt / "cell.py").write_text(SOURCE)
        (attempt / "episodes").mkdir(exist_ok=True)
        return attempt, launch

    def _started(self, program: Path, attempt: Path) -> Callable[[], bool]:
        supervisor = [sys.executable, "-I", "-S", str(program), str(attempt)]
        process = subprocess.Popen(supervisor, start_new_session=True)
        return lambda: process.poll() is not None


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class _Go(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answers = {"started": {"verdict": "go"}, "finished": {"recorded": True}}
        message = self.path.rpartition("/")[2]
        body = json.dumps(
            answers.get(message, {"verdict": "continue", "reason": "", "next_in": 2.0})
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "supervisor"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
        """A benchmark prints its table and nothing else."""


if __name__ == "__main__":
    sys.exit(main())
