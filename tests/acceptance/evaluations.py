"""Evaluations that hold memory of a stand-in GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fake_nvml import GB, HOLDER
from tests.kit.real_server import Served

MB = 1 << 20


def evaluation(gb: float, release: Path | None = None, ram_mb: int = 0) -> str:
    """A cell that holds so much of its GPU, and ends once a file appears."""
    wait = f"while not os.path.exists({str(release)!r}):\n    time.sleep(0.05)\n" if release else ""
    return (
        "import os, runpy, time\n"
        f"ram = bytearray({ram_mb << 20})\n"
        f"hold_gpu = runpy.run_path({str(HOLDER)!r})['hold_gpu']\n"
        f"hold_gpu(0, {int(gb * GB)})\n"
        "time.sleep(2.5)  # long enough for the gate to see it once\n"
        f"{wait}print('done')\n"
    )


def vram(numbers: dict[str, Any]) -> int:
    """The number of the one GPU among numbers by resource."""
    (value,) = [v for resource, v in numbers.items() if resource != "ram"]
    return int(value)


def holds(server: Served, run_id: str, uuid: str, held: int) -> bool:
    """Whether the gate sees a run hold just so much of a device."""
    return bool(server.run(run_id)["held"].get(uuid) == held)
