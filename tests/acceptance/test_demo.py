"""What ``make demo`` runs: its story, the numbers on its last line, and what is left of it."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.real_server import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "notebooks" / "demo.py"
MB = 1 << 20
#: A real GPU would take part in the story, and no test may hold memory of it.
without_a_gpu = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="this machine has a GPU"
)


class Demo:
    """One demonstration as a process, and what it has printed."""

    def __init__(self, folder: Path, **environ: str) -> None:
        folder.mkdir()
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(DEMO)],
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def root(self) -> Path:
        """The folder that everything of it lies in, once it has said so."""
        found: Path = until(
            lambda: (m := re.search(r"in (/\S+);", self.out)) and Path(m[1]), "it names its folder"
        )
        return found

    def result(self) -> dict[str, Any]:
        """Wait for its end and return what its last line says."""
        assert self.process.wait(2 * PATIENCE_S) == 0, self.out + self.err
        last: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return last

    def interrupt(self) -> int:
        """Interrupt it and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@contextmanager
def demos(tmp_path: Path, *environs: dict[str, str]) -> Iterator[list[Demo]]:
    """Start demonstrations side by side; none outlives its test, whatever becomes of it."""
    started: list[Demo] = []
    try:
        for number, environ in enumerate(environs):
            started.append(Demo(tmp_path / str(number), **environ))
        yield started
    finally:
        for demo in started:
            if demo.process.poll() is None:
                demo.interrupt()


def sizes(ram_mb: int, vram_mb: int = 1) -> dict[str, str]:
    """Return the variables that set the known amounts."""
    return {"GPUGATE_DEMO_RAM_MB": str(ram_mb), "GPUGATE_DEMO_VRAM_MB": str(vram_mb)}


def left_of(root: Path) -> list[str]:
    """List the living processes that know of a demonstration's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if bytes(root) in told:
            found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


def shapes(text: str) -> list[str]:
    """Return the lines without what differs from one time to the next: ids, numbers, people."""
    varying = [
        (r"\d{8}-\d{6}-[a-z]{5}", "ID"),
        (r"\d[\d,]*", "N"),
        (rf"\b(ada|{getpass.getuser()})\b", "OWNER"),
        (r" +", " "),
    ]
    for pattern, word in varying:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.splitlines()]


def shown_in_readme() -> list[str]:
    """Return what the first page says that the gate prints."""
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```")[1::2]
    begins = ("$ jupyter gpugate queue", "known")
    shown = [block.strip() for block in blocks if block.strip().startswith(begins)]
    assert len(shown) == len(begins)
    return shown


@pytest.mark.timeout(900)  # two whole demonstrations
@pytest.mark.behaviour(29, 30, 32, 49)
def test_with_a_gpu_the_known_amount_is_what_is_measured(tmp_path: Path) -> None:
    """Watched first and calibrated then; x more of it is measured as x more, on GPU and RAM; and
    what the first page shows is what the demonstration prints.
    """
    stand_in = {"GPUGATE_DEMO_STANDIN": "1"}
    with demos(tmp_path, stand_in | sizes(300, 1000), stand_in | sizes(600, 4000)) as pair:
        small, large = (demo.result() for demo in pair)
        for told in (small, large):
            assert told["first"] == {"basis": {"ram": "watch", "vram": "watch"}}
            assert told["second"]["basis"] == {"ram": "calibrated", "vram": "calibrated"}
        more = {
            kind: large["second"]["measured_bytes"][kind] - small["second"]["measured_bytes"][kind]
            for kind in ("ram", "vram")
        }
        assert more["ram"] == pytest.approx(300 * MB, rel=0.05)
        assert more["vram"] == pytest.approx(3000 * MB, rel=0.01)
        printed = shapes(pair[0].out)
        assert "The GPU is a STAND-IN" in pair[0].out
        for block in shown_in_readme():
            assert [line for line in shapes(block) if line not in printed] == []


@without_a_gpu
@pytest.mark.timeout(900)  # two whole demonstrations
@pytest.mark.behaviour(24, 27, 31, 38)
def test_without_a_gpu_ram_alone_decides(tmp_path: Path) -> None:
    """Two that hint at too much RAM together: one waits, told why in numbers that add up, and
    starts by itself; nothing anywhere speaks of a GPU.
    """
    with demos(tmp_path, sizes(300), sizes(600)) as pair:
        small, large = (demo.result() for demo in pair)
        assert small["first"] == {"basis": {"ram": "watch"}}
        assert small["second"]["basis"] == {"ram": "calibrated"}
        assert set(small["second"]["measured_bytes"]) == {"ram"}
        told = [run["second"]["measured_bytes"]["ram"] for run in (small, large)]
        assert told[1] - told[0] == pytest.approx(300 * MB, rel=0.05)
        out = pair[0].out
        why = re.search(
            r"needs ([\d,]+) MB of RAM; ([\d,]+) MB usable: ([\d,]+) MB free, "
            r"less ([\d,]+) MB kept back, less ([\d,]+) MB promised",
            out,
        )
        assert why is not None, out
        need, room, free, floor, reserved = (int(n.replace(",", "")) for n in why.groups())
        assert need > room == free - floor - reserved
        order = ["first · ", "second · waiting", "second · completed"]
        assert [m[0] for m in re.finditer("|".join(order), out)] == order
        assert "GPU 0" not in out


@without_a_gpu
def test_an_interrupted_demonstration_leaves_nothing(tmp_path: Path) -> None:
    """Interrupted with one run live and one waiting, it ends with 130; no process and no file of
    it is left.
    """
    with demos(tmp_path, sizes(50)) as (demo,):
        root = demo.root
        until(lambda: "second · waiting" in demo.out, "one waits")
        assert left_of(root) != []
        assert demo.interrupt() == 130
        assert "interrupted" in demo.err
        assert left_of(root) == []
        assert not root.exists()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (sizes(0), "GPUGATE_DEMO_RAM_MB=0 must be a whole number of MB"),
        (sizes(100_000_000), "100,000,500 MB of RAM"),
    ],
    ids=["no amount", "more than there is"],
)
def test_a_demonstration_that_cannot_be_says_why(
    tmp_path: Path, environ: dict[str, str], words: str
) -> None:
    """An amount that makes no sense or that is not there ends it with 1 and one sentence."""
    with demos(tmp_path, environ) as (demo,):
        assert demo.process.wait(PATIENCE_S) == 1
        assert words in demo.err
        assert "Traceback" not in demo.err
