"""Accelerators without a reader are named, so that nobody takes them for gated ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jupyter_gpugate.core.samples import Accelerator
from jupyter_gpugate.faces import doctor
from jupyter_gpugate.gate.gpu.accelerators import unmanaged


def machine(root: Path, *files: str, **vendors: str) -> dict[str, str]:
    """A /dev with these files, and a /sys that tells the vendors of renderers."""
    for name in (*files, *(f"dri/{name}" for name in vendors)):
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name, vendor in vendors.items():
        folder = root / "sys" / "class" / "drm" / name / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
    return {"dev": str(root / "dev"), "sys": str(root / "sys")}


def names(root: Path, found: Sequence[Accelerator]) -> list[tuple[str, str]]:
    """The device files below the test's /dev."""
    return [(str(Path(one.path).relative_to(root / "dev")), one.maker) for one in found]


def test_every_accelerator_without_a_reader_is_named(tmp_path: Path) -> None:
    """AMD's and Intel's always, NVIDIA's where the driver's library lists none; no virtual ones."""
    files = ("kfd", "nvidia0", "nvidia10", "nvidia2", "nvidiactl", "accel/accel0", "null")
    renderers = {"renderD128": "0x1002", "renderD129": "0x8086", "renderD130": "0x1af4"}
    places = machine(tmp_path, *files, **renderers)
    others = [
        ("accel/accel0", ""),
        ("dri/renderD128", "AMD"),
        ("dri/renderD129", "Intel"),
    ]
    nvidia = [("nvidia0", "NVIDIA"), ("nvidia2", "NVIDIA"), ("nvidia10", "NVIDIA")]
    assert names(tmp_path, unmanaged(measured=False, **places)) == [
        ("kfd", "AMD"),
        *nvidia,
        *others,
    ]
    assert names(tmp_path, unmanaged(measured=True, **places)) == [("kfd", "AMD"), *others]


def test_a_machine_without_such_files_has_none(tmp_path: Path) -> None:
    """No /dev/dri and no /sys are no fault."""
    assert unmanaged(measured=False, **machine(tmp_path, "null")) == []
    assert unmanaged(measured=False, dev=str(tmp_path / "gone"), sys=str(tmp_path)) == []


def test_doctor_says_that_they_are_not_gated() -> None:
    """In one sentence, with the device files."""
    answer = {"unmanaged": [{"path": "/dev/kfd", "maker": "AMD"}, {"path": "/dev/x", "maker": ""}]}
    told = doctor.machine(answer)["text/plain"]
    assert "Not gated: /dev/kfd (AMD), /dev/x." in told
    assert "Not gated" not in doctor.machine({"unmanaged": []})["text/plain"]
