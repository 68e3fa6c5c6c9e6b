"""What a build puts into the archives: built for real, from source to wheel."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a source archive, and from it a wheel, with what is installed here."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def source_names(archives: Path) -> set[str]:
    """List the files in the source archive, from its top folder on."""
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = [m.name for m in archive.getmembers() if m.isfile()]
    return {name.partition("/")[2] for name in members}


def wheel_names(archives: Path) -> set[str]:
    """List the files in the wheel."""
    (path,) = archives.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def manifest_names() -> set[str]:
    """Carry out MANIFEST.in on the checkout, its few commands in their order."""
    names: set[str] = set()
    for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines():
        verb, *patterns = line.split()
        for pattern in patterns:
            names = carry_out(verb, pattern, names)
    return names


def carry_out(verb: str, pattern: str, names: set[str]) -> set[str]:
    """Apply one command of MANIFEST.in with one pattern."""
    if verb == "include":
        return names | {p.relative_to(ROOT).as_posix() for p in ROOT.glob(pattern)}
    if verb == "graft":
        files = [p for p in (ROOT / pattern).rglob("*") if p.is_file()]
        return names | {p.relative_to(ROOT).as_posix() for p in files}
    if verb == "global-exclude":
        return {n for n in names if not fnmatch.fnmatch(PurePosixPath(n).name, pattern)}
    if verb == "prune" and pattern.startswith("**/"):
        return {n for n in names if pattern[3:] not in PurePosixPath(n).parts}
    raise ValueError(f"{verb} {pattern}")


def test_the_source_archive_is_what_the_manifest_says(archives: Path) -> None:
    """The archive holds the files that MANIFEST.in names, no more and no less."""
    assert source_names(archives) - {"PKG-INFO"} == manifest_names()


def test_the_source_archive_is_complete(archives: Path) -> None:
    """Who has the archive alone can read, build and test the project."""
    needed = {
        "Makefile", "LICENSE", "README.md", "constraints.txt", "pyproject.toml", ".ci/run",
        "docs/behaviours.md", "tests/conftest.py", "jupyter_gpugate/_version.py",
    }  # fmt: skip
    assert needed - source_names(archives) == set()


def test_the_wheel_enables_the_server_extension(archives: Path) -> None:
    """Installing is enough: Jupyter finds the configuration where it looks for it."""
    config = "data/etc/jupyter/jupyter_server_config.d/jupyter_gpugate.json"
    assert [n for n in wheel_names(archives) if n.endswith(config)] != []
    assert [n for n in wheel_names(archives) if n.startswith("jupyter_gpugate/etc")] == []


def test_the_wheel_carries_types_and_licence(archives: Path) -> None:
    """Type checkers may use our annotations, and the licence travels along."""
    names = wheel_names(archives)
    assert "jupyter_gpugate/py.typed" in names
    assert [n for n in names if n.endswith("dist-info/licenses/LICENSE")] != []


def test_the_wheel_holds_the_package_alone(archives: Path) -> None:
    """Every module of the package is in the wheel, and no test or tutorial is."""
    names = wheel_names(archives)
    modules = (ROOT / "jupyter_gpugate").rglob("*.py")
    assert {p.relative_to(ROOT).as_posix() for p in modules} - names == set()
    tops = {n.partition("/")[0] for n in names}
    assert {top for top in tops if ".data" not in top and ".dist-info" not in top} == {
        "jupyter_gpugate"
    }


def test_the_command_is_installed(archives: Path) -> None:
    """``jupyter gpugate`` works because a command of that name is declared."""
    (path,) = archives.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        (entry,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        text = archive.read(entry).decode()
    assert "jupyter-gpugate = jupyter_gpugate.terminal.cli:main" in text
