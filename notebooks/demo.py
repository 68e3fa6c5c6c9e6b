"""The demonstration that ``make demo`` runs.

It starts a Jupyter server in directories of its own, runs the first tutorial there, starts two
evaluations that do not fit at once, and measures one that touches a known amount of memory.  The
last line of its output is one JSON object: the basis of that evaluation's first and second start,
and its measured memory.

GPUGATE_DEMO_RAM_MB   RAM that the measured evaluation touches (600)
GPUGATE_DEMO_VRAM_MB  GPU memory that it touches, if there is a GPU (2000)
GPUGATE_DEMO_STANDIN  1: simulate a GPU
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from demo_screen import Teller, heading, note, terminal
from demo_server import API, PATIENCE_S, DemoError, Places, Server, until

HERE = Path(__file__).resolve().parent
TUTORIAL = "01-first-run.ipynb"
MB = 1 << 20
#: Memory of an interpreter and the margin of an estimate, beside the known amount.
BESIDE_MB = 500
#: Each of the two that do not fit at once asks for this part of the usable memory.
SHARE = 0.6


class Amounts(NamedTuple):
    """Memory that the measured evaluation touches, in MB; no VRAM if no GPU can be measured."""

    ram_mb: int
    vram_mb: int


def main() -> int:
    """Run the whole demonstration and return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both end it in the same orderly way
        signal.signal(number, signal.default_int_handler)
    try:
        result = _with_a_server()
    except KeyboardInterrupt:
        print("\ninterrupted: every process of the demonstration has ended", file=sys.stderr)
        return 130
    except DemoError as error:
        print(f"\nthe demonstration failed: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result), flush=True)
    return 0


def _with_a_server() -> dict[str, Any]:
    wanted = Amounts(_wish("GPUGATE_DEMO_RAM_MB", 600), _wish("GPUGATE_DEMO_VRAM_MB", 2000))
    pretends = os.environ.get("GPUGATE_DEMO_STANDIN") == "1"
    with ExitStack() as stack:
        places = Places()
        stack.callback(places.remove)
        for name in (TUTORIAL, "cuda_memory.py"):
            shutil.copy(HERE / name, places.notebooks)
        driver = _stand_in(places) if pretends else {}
        heading("A Jupyter server with a gate of its own")
        server = Server(places, driver)
        stack.callback(server.stop)
        print(f"at {server.url}, in {places.root}; your own settings and runs are untouched.\n")
        amounts = _possible(server, wanted, pretends=pretends)
        _tutorial(server)
        _two_at_once(server, amounts)
        return _measured_twice(server, amounts, pretends=pretends)


# -- before the first run --------------------------------------------------------------------------


def _wish(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable) or str(otherwise)
    if not text.isdecimal() or int(text) < 1:
        raise DemoError(f"{variable}={text} must be a whole number of MB from 1 on")
    return int(text)


def _stand_in(places: Places) -> dict[str, str]:
    """Build a driver that simulates a GPU; return the variables that select it."""
    sys.path.insert(0, str(HERE.parent))
    from tests.fake_nvml import GB, HOLDER, StandIn

    try:
        driver = StandIn(places.root / "driver")
    except (RuntimeError, subprocess.CalledProcessError) as error:
        raise DemoError(str(error)) from error
    driver.gpu(total=24 * GB, name="STAND-IN for a GPU")
    shutil.copy(HOLDER, places.notebooks / "stand_in_memory.py")
    return driver.env()


def _possible(server: Server, wanted: Amounts, *, pretends: bool) -> Amounts:
    """Show what can be measured here; raise `DemoError` if too little memory is usable."""
    until(lambda: _gpus_looked_for(server), "the gate has looked for GPUs", PATIENCE_S)
    terminal(server, "doctor")
    if pretends:
        note(
            "The GPU is a STAND-IN: a library replaces the driver. All amounts of its memory below "
            "are simulated; the decisions of the gate are real."
        )
    room = server.ask("GET", f"{API}/queue")["room_bytes"]
    gpus = {name: size for name, size in room.items() if name != "ram"}
    amounts = wanted if gpus else wanted._replace(vram_mb=0)
    needed = {"RAM": (room.get("ram", 0), amounts.ram_mb + BESIDE_MB)}
    if gpus:
        needed["GPU memory"] = (max(gpus.values()), amounts.vram_mb + BESIDE_MB)
    for what, (there, need_mb) in needed.items():
        if there < need_mb * MB:
            raise DemoError(f"it needs {need_mb:,} MB of {what}, {there // MB:,} MB are usable")
    return amounts


def _gpus_looked_for(server: Server) -> bool:
    readers = server.ask("GET", f"{API}/machine")["readers"]
    return any(r["name"] == "gpu" and r["age_s"] is not None for r in readers)


# -- the parts -------------------------------------------------------------------------------------


def _tutorial(server: Server) -> None:
    heading("The first tutorial")
    note(f"notebooks/{TUTORIAL}, cell by cell, in a kernel that this server has started.")
    read: Any = nbformat.read
    notebook = read(server.places.notebooks / TUTORIAL, as_version=4)
    Teller(server, TUTORIAL, notebook.cells).tell()


def _two_at_once(server: Server, amounts: Amounts) -> None:
    heading("Two evaluations that do not fit at once")
    room = server.ask("GET", f"{API}/queue")["room_bytes"]
    ram = room.pop("ram")
    if amounts.vram_mb:
        share = int(SHARE * max(room.values()) / MB)
        options = f"--hint-vram {share}MB --hint-ram 300MB"
    else:
        share = int(SHARE * ram / MB)
        options = f"--gpus 0 --hint-ram {share}MB"
    note(
        f"The hint of each is {share:,} MB, six tenths of the memory that is usable now; the gate "
        "adds a margin. Both will use far less, to spare this machine, but memory that is reserved "
        "for a run stays reserved."
    )
    done = server.places.notebooks / "first-may-end"
    first = (
        f"%%gated_eval first {options} --detach\nfrom pathlib import Path\nimport time\n\n"
        f'while not Path("{done.name}").exists():\n    time.sleep(0.1)'
    )
    second = f'%%gated_eval second {options}\nimport time\n\nprint("my turn")\ntime.sleep(2)'
    teller = Teller(server, "two.ipynb", _cells("%load_ext jupyter_gpugate", first, second))
    waited: list[bool] = []

    def meanwhile() -> None:
        waited.append(True)
        until(lambda: _runs(server, "first")[0]["phase"] == "running", "it runs", PATIENCE_S)
        note("The second one waits, and its card says why. Meanwhile, in a terminal:")
        terminal(server, "queue")
        note("Now the first one ends, and the second one starts by itself:")
        done.touch()

    teller.when_waiting = meanwhile
    teller.tell()
    if not waited:
        raise DemoError("both fitted at once, because memory became free in between; try again")


def _measured_twice(server: Server, amounts: Amounts, *, pretends: bool) -> dict[str, Any]:
    heading("An unknown evaluation, and the same again")
    body = (
        f'import time\n\nblock = bytearray(b"x") * ({amounts.ram_mb} << 20)  # every page of it\n'
    )
    options = "--gpus 0"
    if amounts.vram_mb:
        source = "stand_in_memory" if pretends else "cuda_memory"
        body = f"from {source} import hold_gpu\n{body}hold_gpu(0, {amounts.vram_mb} << 20)\n"
        options = "--gpus 1"
    cell = (
        f"%%gated_eval known --episodes 4 {options}\n{body}"
        "for e in episodes:\n    time.sleep(1)\n    e.keep(e.index)"
    )
    cells = _cells("%load_ext jupyter_gpugate", cell, "%gpu_estimate known", cell)
    Teller(server, "known.ipynb", cells).tell()
    first, second = _runs(server, "known")
    bases = [_by_kind(run["basis"]) for run in (first, second)]
    measured = _measured(server, second["run_id"])
    if set(bases[1].values()) != {"calibrated"} or set(measured) != set(bases[1]):
        raise DemoError(f"the second run did not start by measured numbers: {bases}, {measured}")
    note("The first run was measured; the second one started by that measurement.")
    return {
        "first": {"basis": bases[0]},
        "second": {"basis": bases[1], "measured_bytes": measured},
    }


def _runs(server: Server, name: str) -> list[dict[str, Any]]:
    """Every run of a name, the oldest first."""
    rows = server.ask("GET", f"{API}/runs?name={name}&sort=oldest")["runs"]
    return [server.ask("GET", f"{API}/runs/{row['run_id']}") for row in rows]


def _measured(server: Server, run_id: str) -> dict[str, int]:
    """Return the peaks that the gate has stored of one run, in bytes."""
    learned = server.ask("GET", f"{API}/calibrations")["calibrations"].values()
    observations = [o for tracks in learned for track in tracks for o in track["observations"]]
    return {o["resource"]: o["peak_bytes"] for o in observations if o["run_id"] == run_id}


def _by_kind(by_resource: Mapping[str, Any]) -> dict[str, Any]:
    """Name the one device of a run ``vram``."""
    return {name if name == "ram" else "vram": value for name, value in by_resource.items()}


def _cells(*sources: str) -> list[Any]:
    made: Any = nbformat.v4
    return [made.new_code_cell(source) for source in sources]


if __name__ == "__main__":
    sys.exit(main())
