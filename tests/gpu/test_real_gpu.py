"""A real GPU and its real driver; each test is skipped where there is none."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_server import Places, Served, until

MB = 1 << 20
GB = 1 << 30


def why_not() -> str:
    """Why there is no real GPU to test on; empty where there is one that torch can use."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA driver on this machine"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if listed.returncode or "GPU" not in listed.stdout:
        return "the driver lists no GPU"
    torch = pytest.importorskip("torch")
    return "" if torch.version.cuda else "torch is a build without CUDA"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server that meets the machine's own driver."""
    places = Places(tmp_path)
    served = Served(places)
    yield served
    served.stop()
    shutil.rmtree(places.runtime, ignore_errors=True)


TOUCH = """import time, torch
x = torch.ones({mb} << 18, device="cuda")
torch.cuda.synchronize()
time.sleep(3)
print(float(x[-1]))
"""


def test_a_real_run_is_measured_and_admitted_from_that(server: Served) -> None:
    """What a torch cell takes is measured within the device's own overhead, and reused."""
    first = server.completed("touch", TOUCH.format(mb=2000))
    uuid = first["devices"][0]["uuid"]
    assert first["basis"][uuid] == "watch"
    assert 2000 * MB <= first["peaks"][uuid] <= 2000 * MB + 2 * GB
    more = server.completed("more", TOUCH.format(mb=3000))
    assert abs(more["peaks"][uuid] - first["peaks"][uuid] - 1000 * MB) <= 10 * MB
    second = server.completed("touch", TOUCH.format(mb=2000))
    assert second["basis"][uuid] == "calibrated"


def test_a_cell_that_exceeds_its_cap_crashes_itself(server: Served) -> None:
    """Torch's allocator stops the cell at its cap; the end says out of memory by its own cap."""
    hints = {"vram_bytes": 2 * GB}
    row = server.ended(server.submit("greedy", TOUCH.format(mb=6000), hints=hints))
    assert row["enforcement"] == "enforced"
    assert (row["end"], row["attempt"]) == ("oom", 2), (
        row
    )  # half as much more is too little as well
    until(lambda: not any(server.queue()["reservations"].values()), "all is given back")
