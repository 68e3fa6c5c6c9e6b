"""What a dead kernel has left behind, as a gate that starts later reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from jupyter_gpugate.gate.machine.reader import MachineReader

HOLDS = "x = bytearray(64 << 20)\nimport time\ntime.sleep(600)"


def test_a_gate_that_starts_later_names_the_notebook_of_what_its_kernel_left() -> None:
    """A child that outlives its kernel is its notebook's, though nobody remembers the kernel."""
    leaves = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {HOLDS!r}],"
        " start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
    )
    environ = {**os.environ, "JPY_SESSION_NAME": "/home/ada/left.ipynb"}
    environ.pop("GPUGATE_RUN_ID", None)
    child = int(subprocess.check_output([sys.executable, "-c", leaves], env=environ, text=True))
    reader = MachineReader()
    try:
        for _ in range(600):
            found = {kernel.key.pid: kernel.name for kernel in reader.read().kernels}
            if child in found:
                break
        assert found.get(child) == "/home/ada/left.ipynb"
    finally:
        reader.close()
        os.kill(child, signal.SIGKILL)
