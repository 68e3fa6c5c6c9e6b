"""Accelerators that this machine has and the gate does not manage, found by their device files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jupyter_gpugate.core.samples import Accelerator

#: Device files below /dev by whose driver makes them; virtual displays are not among them.
_FILES: Final = (
    ("kfd", "AMD"),
    ("nvidia[0-9]*", "NVIDIA"),
    ("nvhost-gpu", "NVIDIA"),
    ("dxg", "WSL2"),
    ("accel[0-9]*", ""),
    ("accel/accel*", ""),
    ("neuron[0-9]*", "AWS"),
)
_RENDERERS: Final = "dri/renderD*"
_VENDORS: Final = {"0x1002": "AMD", "0x8086": "Intel", "0x10de": "NVIDIA"}
#: The GPU reader measures the boards behind these files, once it lists any.
_MEASURED: Final = frozenset({"NVIDIA", "WSL2"})


def unmanaged(*, measured: bool, dev: str = "/dev", sys: str = "/sys") -> list[Accelerator]:
    """List the accelerators that are not gated; ``measured``: the GPU reader lists boards."""
    found = [*_by_file(Path(dev)), *_renderers(Path(dev), Path(sys))]
    return [one for one in found if not (measured and one.maker in _MEASURED)]


def _by_file(dev: Path) -> Iterator[Accelerator]:
    for pattern, maker in _FILES:
        for path in _matching(dev, pattern):
            yield Accelerator(str(path), maker)


def _renderers(dev: Path, sys: Path) -> Iterator[Accelerator]:
    for path in _matching(dev, _RENDERERS):
        try:
            vendor = (sys / "class/drm" / path.name / "device/vendor").read_text().strip()
        except (OSError, ValueError):
            continue
        if vendor in _VENDORS:
            yield Accelerator(str(path), _VENDORS[vendor])


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return files in the order of their numbers; folders, such as /dev/accel, are omitted."""

    def number(path: Path) -> tuple[int, str]:
        digits = re.search(r"\d+$", path.name)
        return (int(digits[0]) if digits else 0, path.name)

    try:
        return sorted((p for p in folder.glob(pattern) if not p.is_dir()), key=number)
    except OSError:
        return []
