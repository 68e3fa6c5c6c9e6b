"""A torch whose allocator takes memory of a stand-in GPU, for cells at a real server.

It keeps the limit that is set for the process, and says what ran out in the words of the real one.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.fake_nvml import HOLDER

TORCH = """
    from torch import cuda
    OutOfMemoryError = cuda.OutOfMemoryError
"""
CUDA = f"""
    import os, runpy, types
    from pathlib import Path

    _gpu = runpy.run_path({str(HOLDER)!r})
    _calls, _started = [], []
    _fractions, _reserved, _peaks = {{}}, {{}}, {{}}

    class OutOfMemoryError(RuntimeError):
        pass

    def _devices():
        parts = _gpu["read_parts"](Path(os.environ[_gpu["STATE"]]).read_text())
        return _gpu["visible_devices"](parts, dict(os.environ))

    def is_initialized():
        return bool(_started)

    def _lazy_call(call):
        call() if _started else _calls.append(call)

    def _lazy_init():
        if not _started:
            _started.append(True)
            for call in _calls:
                call()

    def device_count():
        return len(_devices())

    def get_device_properties(index):
        part = _devices()[index]
        return types.SimpleNamespace(uuid=part.uuid[len("GPU-"):], total_memory=part.total)

    def set_per_process_memory_fraction(fraction, index):
        _fractions[index] = fraction

    def limit(index):
        _lazy_init()
        return _fractions.get(index, 1.0) * get_device_properties(index).total_memory

    def allocate(size, index=0):
        _lazy_init()
        had = _reserved.get(index, 0)
        words = (
            f"CUDA out of memory. Tried to allocate {{size / 2**30:.2f}} GiB. GPU {{index}} has a "
            f"total capacity of 24.00 GiB. Of the allocated memory {{had / 2**30:.2f}} GiB is "
            "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
        )
        if had + size > limit(index):
            raise OutOfMemoryError(words)
        try:
            _gpu["hold_gpu"](index, had + size)
        except _gpu["OutOfDeviceMemoryError"]:
            raise OutOfMemoryError(words) from None
        _reserved[index] = had + size
        _peaks[index] = max(had + size, _peaks.get(index, 0))

    def memory_reserved(index):
        return _reserved.get(index, 0)

    def max_memory_reserved(index):
        return _peaks.get(index, 0)
"""


def install(folder: Path) -> str:
    """Write the package; return the lines with which a cell imports it in place of torch's own.

    The folder is put on the path by the cell itself, so that the real torch stays its runtime.
    """
    package = folder / "torch" / "cuda"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(CUDA))
    (folder / "torch" / "__init__.py").write_text(textwrap.dedent(TORCH))
    return f"import os, sys, time\nsys.path.insert(0, {str(folder)!r})\nimport torch\n"
