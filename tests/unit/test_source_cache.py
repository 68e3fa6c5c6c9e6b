"""The cache of parsed source files: private, bounded, and used only while a file is unchanged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import source
from tests.unit.test_source_files import described, package


class Reads:
    """Describes a cell again and again, and notes which files are read for it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = package(root / "plain", 20)
        self.cache = root / "state" / "sources"
        self.root = root
        self.read: list[str] = []
        inner = source._facts_of_file

        def noted(file: str, *, python: bool) -> source.Facts:
            self.read.append(Path(file).name)
            return inner(file, python=python)

        monkeypatch.setattr(source, "_facts_of_file", noted)
        for file in self.place.rglob("*.py"):
            _settle(file)

    def describe(self) -> tuple[str, list[str]]:
        """The source's hash, and the files that were read for it."""
        self.read.clear()
        told = described(self.root, "import own", self.place, cache=str(self.cache))
        return told["source_hash"], sorted(self.read)


def _settle(file: Path) -> None:
    """Wait until a file is older than one tick of its clock."""
    found = file.stat()
    coarse = not found.st_ctime_ns % 1_000_000
    while (time.time_ns() - found.st_ctime_ns) <= (2_000_000_000 if coarse else 50_000_000):
        time.sleep(0.01)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """A package, a cell that imports it, and where what is read of it is kept."""
    return Reads(tmp_path, monkeypatch)


def test_a_file_is_read_again_only_where_it_has_changed(reads: Reads) -> None:
    """Its digest is kept on the disk by its stat, for whoever asks next."""
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


def test_what_is_kept_is_private_and_small(reads: Reads) -> None:
    """One small file for each folder, in a folder that nobody else may enter."""
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
def test_what_is_kept_is_believed_only_where_it_is_whole_and_ones_own(
    reads: Reads, damage: Callable[[Path], object]
) -> None:
    """Anything else is as good as nothing: the files are read again."""
    first, everything = reads.describe()
    (kept,) = reads.cache.iterdir()
    damage(kept)
    assert reads.describe() == (first, everything)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_place_that_others_may_enter_is_not_used(reads: Reads, mode: int) -> None:
    """Nothing is read from it, and nothing is written there."""
    first, everything = reads.describe()
    reads.cache.chmod(mode)
    for file in reads.cache.iterdir():
        file.unlink()
    assert reads.describe() == (first, everything)
    assert reads.describe() == (first, everything)
    assert list(reads.cache.iterdir()) == []


def test_what_is_kept_has_a_bound(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written longest ago goes first, and whatever a killed reader left as well."""
    reads.describe()
    for n in range(20):
        old = reads.cache / f"{n:040}.json.123.new"
        old.write_bytes(b"x" * 100)
        os.utime(old, (n, n))
    monkeypatch.setattr(source.Kept, "MOST_FILES", 5)
    (reads.place / "own" / "m4.py").write_text("x = 2\n")
    _settle(reads.place / "own" / "m4.py")
    reads.describe()
    assert len(list(reads.cache.iterdir())) == 5
    assert reads.describe()[1] == []
