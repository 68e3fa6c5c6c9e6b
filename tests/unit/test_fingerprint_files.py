"""Digests of files, and the rule that separates first-party files from installed ones."""

from __future__ import annotations

import ast
import hashlib
import os
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpugate.programs.fingerprint.summaries import summary_of
from jupyter_gpugate.programs.fingerprint.tree_text import plain_text_of, text_of
from tests.kit.source_projects import CELL, describe_on_path, write, write_package

# -- the digest --------------------------------------------------------------------------------


def trees() -> list[ast.Module]:
    """Parse a part of the standard library, these tests, and rare syntax."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [*sorted(library.glob("*.py"))[::4], *Path(__file__).parent.glob("*.py")]
    read = [ast.parse(file.read_bytes()) for file in files]
    return [
        *read,
        ast.parse(CELL),
        ast.parse('f"{a!r:>{b}} {c}" f"" "x" f"{d}"\nx = -1j, ..., b"\\0"'),
    ]


def test_both_ways_to_write_a_tree_give_the_same_text() -> None:
    """The digest of a file is that of its tree's plain text."""
    for tree in trees():
        plain = plain_text_of(tree).encode("utf-8", "surrogatepass")
        assert summary_of(tree).digest == hashlib.sha256(plain).hexdigest()


def test_a_tree_too_deep_for_the_quick_way_is_written_the_plain_way() -> None:
    """The nesting of an expression limits neither its digest nor the imports that are found."""
    tree = ast.parse("import deep\nx = " + " + ".join(["1"] * 900))
    with pytest.raises(RecursionError):
        text_of(tree, [])
    summary = summary_of(tree)
    assert summary.digest == hashlib.sha256(plain_text_of(tree).encode()).hexdigest()
    assert [one.module for one in summary.imports] == ["deep"]


def test_several_processes_give_the_answer_of_one(tmp_path: Path) -> None:
    """The number of processes that read files does not change the answer."""
    place = write_package(tmp_path / "plain", 50)
    (place / "own" / "m7.py").write_text("this is no Python\n")
    alone = describe_on_path(tmp_path, "import own", place)
    assert describe_on_path(tmp_path, "import own", place, processes=3) == alone
    assert len(alone["files"]) == 51


# -- installed packages ------------------------------------------------------------------------

INSIDE = "pkg/inner.py"
PKG = {"pkg/__init__.py": "from . import inner\n", INSIDE: "x = 1\n"}
RECORD = "pkg/__init__.py,,\npkg/inner.py,,\nPkg-1.0.dist-info/RECORD,,\n"
INSTALLED_IN: dict[str, dict[str, str]] = {
    "by pip --target": {**PKG, "Pkg-1.0.dist-info/RECORD": RECORD},
    "under another name": {**PKG, "other-1.0.dist-info/RECORD": RECORD},
    "by an older pip": {
        **PKG,
        "other-1.0-py3.9.egg-info/installed-files.txt": "../pkg/__init__.py\nPKG-INFO\n",
    },
    "by distutils": {**PKG, "pkg-1.0-py3.9.egg-info": "Name: pkg\n"},
    "as an egg": {**PKG, "EGG-INFO/PKG-INFO": "Name: pkg\nVersion: 1.0\n"},
    "beside a listing": {
        **PKG,
        "other.egg-info/installed-files.txt": "../pkg/__init__.py\n",
        "other.egg-info/top_level.txt": "pkg\n",
        "other.egg-info/PKG-INFO": "Version: 1.0\n",
    },
}
OWN_IN: dict[str, dict[str, str]] = {
    "a plain folder": PKG,
    "a folder that was built in": {
        **PKG,
        "pkg.egg-info/PKG-INFO": "Version: 1.0\n",
        "pkg.egg-info/top_level.txt": "pkg\n",
        "pkg.egg-info/SOURCES.txt": "pkg/__init__.py\n",
    },
    "a folder that is installed to be edited": {
        **PKG,
        "Pkg-1.0.dist-info/RECORD": RECORD,
        "Pkg-1.0.dist-info/direct_url.json": '{"dir_info": {"editable": true}, "url": "x"}',
    },
    "a folder with others' packages": {
        **PKG,
        "other-1.0.dist-info/RECORD": "other/__init__.py,,\n",
        "other/__init__.py": "",
    },
}


def zipped(folder: Path) -> Path:
    """Copy a folder into an archive beside it."""
    archive = folder.with_suffix(".zip")
    archive.unlink(missing_ok=True)
    with zipfile.ZipFile(archive, "w") as made:
        for file in sorted(folder.rglob("*")):
            made.write(file, file.relative_to(folder))
    return archive


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("layout", INSTALLED_IN)
def test_an_installed_package_counts_by_its_version_in_any_folder(
    tmp_path: Path, layout: str, archived: bool
) -> None:
    """An edit inside does not count, a new version does."""
    place = tmp_path / "anywhere"
    write(place, INSTALLED_IN[layout])
    there: Callable[[Path], Path] = zipped if archived else lambda folder: folder
    first = describe_on_path(tmp_path, "import pkg.inner", there(place))
    assert (first["packages"], first["files"]) == ({"pkg": "1.0"}, [])
    (place / INSIDE).write_text("x = 2\n")
    same = describe_on_path(tmp_path, "import pkg.inner", there(place))
    assert same["source_hash"] == first["source_hash"]


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("layout", OWN_IN)
def test_a_package_that_is_not_installed_counts_by_its_content(
    tmp_path: Path, layout: str, archived: bool
) -> None:
    """Comments do not count, an edit does; metadata of a build, or of others, changes nothing."""
    place = tmp_path / "anywhere"
    write(place, OWN_IN[layout])
    there: Callable[[Path], Path] = zipped if archived else lambda folder: folder
    first = describe_on_path(tmp_path, "import pkg", there(place))
    own = [str(place.with_suffix(".zip"))] if archived else [str(place / name) for name in PKG]
    assert (first["packages"], first["files"]) == ({}, sorted(own))
    (place / INSIDE).write_text("x = 1  # one\n")
    same = describe_on_path(tmp_path, "import pkg", there(place))
    assert same["source_hash"] == first["source_hash"]
    (place / INSIDE).write_text("x = 2\n")
    other = describe_on_path(tmp_path, "import pkg", there(place))
    assert other["source_hash"] != first["source_hash"]


def test_a_namespace_over_several_folders_is_read_folder_by_folder(tmp_path: Path) -> None:
    """Installed parts count by their versions, the first-party part by its content."""
    a, b, own = (tmp_path / name for name in ("a", "b", "own"))
    write(a, {"space/one.py": "", "space_one-1.0.dist-info/RECORD": "space/one.py,,\n"})
    write(b, {"space/two.py": "", "space_two-2.0.dist-info/RECORD": "space/two.py,,\n"})
    write(own, {"space/three.py": "x = 1\n"})
    answer = describe_on_path(tmp_path, "from space import one, two, three", a, b, own)
    assert answer["packages"] == {"space": "space_one 1.0, space_two 2.0"}
    assert answer["files"] == [str(own / "space" / "three.py")]


# -- names and files that are no modules ---------------------------------------------------------


def test_a_special_file_does_not_block_a_submit(tmp_path: Path) -> None:
    """A pipe, a device and a loop of links count as empty files."""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    answer = describe_on_path(tmp_path, "import pipe, zero, loop", tmp_path)
    assert len(answer["source_hash"]) == 64


def test_names_that_no_module_can_have_are_ignored(tmp_path: Path) -> None:
    """No string in ``__all__`` or in an import by name leads outside the package."""
    words = ["../x", "", ".", "..", "a\0b", "x/y", "a" * 5000, "\ud800", ".".join("a" * 5000)]
    write(tmp_path, {"own/__init__.py": f"__all__ = {words!a}\n", "x.py": ""})
    calls = "".join(f"__import__({word!a})\n" for word in words)
    answer = describe_on_path(tmp_path, f"import own\n{calls}", tmp_path)
    assert answer["files"] == [str(tmp_path / "own" / "__init__.py")]
