"""A stand-in for torch that has devices, for cells in tests."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from tests.integration.cell_process import CellRun, python_path

GIB = 1 << 30
#: As little of torch as a worker touches, with the order of events of the real one: what is queued
#: runs inside the start of CUDA, and every call that needs a device starts it.
STAND_IN = """
    import types

    DEVICES = [types.SimpleNamespace(uuid="aaaa", total_memory=8 << 30),
               types.SimpleNamespace(uuid="bbbb", total_memory=16 << 30)]
    fractions, calls, started = {}, [], []
    reserved, peak = {0: 0, 1: 0}, {0: 0, 1: 0}
    _starting = []

    class OutOfMemoryError(RuntimeError):
        pass

    def is_initialized():
        return bool(started)

    def _lazy_call(call):
        call() if started else calls.append(call)

    def _lazy_init():
        if started or _starting:
            return
        _starting.append(True)
        for call in calls:
            call()
        started.append(True)

    def device_count():
        return len(DEVICES)

    def get_device_properties(index):
        _lazy_init()
        return DEVICES[index]

    def set_per_process_memory_fraction(fraction, index):
        assert isinstance(fraction, float) and 0 <= fraction <= 1
        _lazy_init()
        fractions[index] = fraction

    def reserve(index, size):
        _lazy_init()
        reserved[index] = size
        peak[index] = max(peak[index], size)

    def memory_reserved(index):
        assert started
        return reserved[index]

    def max_memory_reserved(index):
        assert started
        return peak[index]
"""


#: Values on a device, which refuse to be pickled as they are.
VALUES = """
    import types
    from torch import cuda
    OutOfMemoryError = cuda.OutOfMemoryError
    GPU, CPU = types.SimpleNamespace(type="cuda"), types.SimpleNamespace(type="cpu")

    class UntypedStorage:
        def __init__(self, items, device=GPU):
            self.items, self.device = items, device

        def cpu(self):
            return UntypedStorage(self.items, CPU)

        def __reduce__(self):
            assert self.device is CPU
            return list, (self.items,)

    class storage:
        TypedStorage = UntypedStorage

    class Tensor:
        requires_grad = True

        def __init__(self, storage):
            self.storage = storage

        def __reduce__(self):
            return list, (self.storage,)

        def __iter__(self):
            return iter([self.storage])
"""
JAX = """
    import numpy

    class Array:
        def __array__(self, dtype=None, copy=None):
            return numpy.arange(3)

        def __reduce__(self):
            raise TypeError("on a device")
"""
CUPY = """
    import numpy

    class ndarray:
        def get(self):
            return numpy.arange(4)

        def __reduce__(self):
            raise TypeError("on a device")
"""


def cell_with_torch(tmp_path: Path) -> CellRun:
    """A cell that finds the stand-in under the name of torch."""
    library = tmp_path / "library"
    package = library / "torch" / "cuda"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(STAND_IN))
    (library / "torch" / "__init__.py").write_text(textwrap.dedent(VALUES))
    (library / "jax.py").write_text(textwrap.dedent(JAX))
    (library / "cupy.py").write_text(textwrap.dedent(CUPY))
    run = CellRun(tmp_path, "")
    run.path = [str(library), *python_path(run.interpreter)]
    run.facts = {"devices": ["GPU-aaaa"]}
    run.environment = {"GPUGATE_CAPS": json.dumps({"GPU-aaaa": 2 * GIB})}
    return run
