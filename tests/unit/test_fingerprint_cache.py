"""The cache of parsed source files: private, bounded, and used only while a file is unchanged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.programs.fingerprint import reader
from jupyter_gpugate.programs.fingerprint.cache import FileCache
from jupyter_gpugate.programs.fingerprint.files import FileSystem
from jupyter_gpugate.programs.fingerprint.summaries import Summary, summary_of_file
from tests.kit.source_projects import describe_on_path, write_package


class Reads:
    """Describes a cell repeatedly and records which files are read for it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = write_package(root / "plain", 20)
        self.cache = root / "state" / "sources"
        self.root = root
        self.read: list[str] = []

        def noted(files: FileSystem, file: str, *, python: bool) -> Summary:
            self.read.append(Path(file).name)
            return summary_of_file(files, file, python=python)

        monkeypatch.setattr(reader, "summary_of_file", noted)
        for file in self.place.rglob("*.py"):
            _settle(file)

    def describe(self) -> tuple[str, list[str]]:
        """Return the hash of the source, and the files that were read for it."""
        self.read.clear()
        answer = describe_on_path(self.root, "import own", self.place, cache=str(self.cache))
        return answer["source_hash"], sorted(self.read)


def _settle(file: Path) -> None:
    """Wait until a file is older than one tick of its clock."""
    found = file.stat()
    coarse = not found.st_ctime_ns % 1_000_000
    while (time.time_ns() - found.st_ctime_ns) <= (2_000_000_000 if coarse else 50_000_000):
        time.sleep(0.01)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Lay out a package, a cell that imports it, and a folder for the cache."""
    return Reads(tmp_path, monkeypatch)


def test_a_file_is_read_again_only_if_it_has_changed(reads: Reads) -> None:
    """Summaries are found by the stamps of files; an unchanged mtime alone is not enough."""
    first, everything = reads.describe()
    assert len(everything) == 21
    assert reads.describe() == (first, [])
    file = reads.place / "own" / "m3.py"
    file.write_text(file.read_text() + "# a comment\n")
    _settle(file)
    assert reads.describe() == (first, ["m3.py"])
    before = file.stat()
    file.write_text(file.read_text().replace("+ 1", "- 1"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    other, read = reads.describe()
    assert (other != first, read) == (True, ["m3.py"])


def test_the_cache_is_private_and_small(reads: Reads) -> None:
    """Each source folder has one small file, in a folder that no other user may enter."""
    reads.describe()
    assert reads.cache.stat().st_mode & 0o777 == 0o700
    kept = list(reads.cache.iterdir())
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
    assert len(kept) == 1
    assert kept[0].stat().st_size < 500 * 21


def spoil(text: bytes) -> Callable[[Path], object]:
    """Write something else."""
    return lambda file: file.write_bytes(text)


def forge(entry: Any) -> Callable[[Path], object]:
    """Put something else in the place of every value."""

    def change(file: Path) -> None:
        data = json.loads(file.read_text())
        data["known"] = {key: [stamp, entry] for key, (stamp, _) in data["known"].items()}
        file.write_text(json.dumps(data))

    return change


def give_away(file: Path) -> None:
    """Make it another user's."""
    os.chown(file, 54321, 54321)


def make_a_folder(file: Path) -> None:
    """Put a folder in its place."""
    file.rename(file.with_name("elsewhere"))
    file.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        spoil(b""),
        spoil(b"\0" * 4096),
        spoil(b'{"known": '),
        spoil(b"[" * 100_000),
        spoil(b'{"folder": "/elsewhere", "known": {}}'),
        forge("text"),
        forge(["0" * 64]),
        forge(["no digest", []]),
        forge(["0" * 64, [[0, None, []]]]),
        forge(["0" * 64, [["0", "x", [1]]]]),
        forge(None),
        make_a_folder,
        pytest.param(
            give_away, marks=pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
        ),
    ],
)
def test_a_damaged_or_foreign_entry_is_ignored(
    reads: Reads, damage: Callable[[Path], object]
) -> None:
    """The files are read again unless the cache file is whole and belongs to this user."""
    first, everything = reads.describe()
    (kept,) = reads.cache.iterdir()
    damage(kept)
    assert reads.describe() == (first, everything)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_cache_folder_that_others_may_enter_is_not_used(reads: Reads, mode: int) -> None:
    """Such a folder is neither read nor written."""
    first, everything = reads.describe()
    reads.cache.chmod(mode)
    for file in reads.cache.iterdir():
        file.unlink()
    assert reads.describe() == (first, everything)
    assert reads.describe() == (first, everything)
    assert list(reads.cache.iterdir()) == []


def test_the_cache_is_bounded(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest files are removed first, those that a killed process left among them."""
    reads.describe()
    for n in range(20):
        old = reads.cache / f"{n:040}.json.123.new"
        old.write_bytes(b"x" * 100)
        os.utime(old, (n, n))
    monkeypatch.setattr(FileCache, "MOST_FILES", 5)
    (reads.place / "own" / "m4.py").write_text("x = 2\n")
    _settle(reads.place / "own" / "m4.py")
    reads.describe()
    assert len(list(reads.cache.iterdir())) == 5
    assert reads.describe()[1] == []
