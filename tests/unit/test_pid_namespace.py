"""Whether the driver's pids are ours, decided on made-up /proc trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpugate.gate.gpu.pid_namespace import INITIAL_NAMESPACE, PidNamespace

CONTAINER = "pid:[4026532198]"


def proc_with(folder: Path, namespace: str, handles: dict[int, list[str]]) -> Path:
    """Make a /proc of a namespace, with what each process has open."""
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(namespace)
    for pid, targets in handles.items():
        (folder / str(pid) / "fd").mkdir(parents=True)
        for number, target in enumerate(targets):
            (folder / str(pid) / "fd" / str(number)).symlink_to(target)
    return folder


CUDA = ["/dev/null", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]
MONITOR = ["/dev/null", "/dev/nvidiactl", "/dev/nvidia0"]


@pytest.mark.parametrize(
    ("namespace", "handles", "listed", "reason"),
    [
        pytest.param(INITIAL_NAMESPACE, {}, {40170}, "", id="the host itself"),
        pytest.param(CONTAINER, {7: CUDA}, {7}, "", id="a driver that translates"),
        pytest.param(CONTAINER, {7: CUDA}, {7, 40170}, "pid 40170", id="a number we lack"),
        pytest.param(CONTAINER, {7: ["/dev/null"]}, {7}, "it is not proven", id="a namesake"),
        pytest.param(CONTAINER, {7: MONITOR}, {7}, "it is not proven", id="a monitor's number"),
        pytest.param(CONTAINER, {7: CUDA}, set(), "it is not proven", id="an empty list"),
    ],
)
def test_pids_are_ours_only_when_something_proves_it(
    tmp_path: Path, namespace: str, handles: dict[int, list[str]], listed: set[int], reason: str
) -> None:
    """In a container a listed pid counts only where a CUDA program here bears it."""
    doubt = PidNamespace(proc_with(tmp_path, namespace, handles)).doubt(listed)
    assert reason in doubt
    assert bool(doubt) == bool(reason)


def test_a_proof_once_found_stands(tmp_path: Path) -> None:
    """A list that is empty later, or names a process just gone, takes no proof back."""
    namespace = PidNamespace(proc_with(tmp_path, CONTAINER, {7: CUDA}))
    assert namespace.doubt(set())
    assert not namespace.doubt({7})
    assert not namespace.doubt(set())
    assert not namespace.doubt({40170})


def test_an_unreadable_proc_proves_nothing(tmp_path: Path) -> None:
    """Where the namespace cannot be read, the pids are nobody's."""
    assert "cannot be read" in PidNamespace(tmp_path).doubt({7})
