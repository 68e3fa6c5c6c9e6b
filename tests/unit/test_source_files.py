"""How the files of a source are read: quickly, once, and only where they are one's own."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import source
from tests.unit.test_source import CELL, write

BODY = "def {name}(x):\n    return x + 1\n"


def described(root: Path, cell: str, *places: Path, **request: Any) -> dict[str, Any]:
    """What is said of a cell with these folders on its module path."""
    processes = request.pop("processes", 1)
    question = {"kind": "cell", "source": cell, "cwd": str(root), "path": [*map(str, places)]}
    return source.describe({**question, **request}, processes)


# -- the digest --------------------------------------------------------------------------------


def trees() -> list[ast.Module]:
    """Trees of all that Python's own library and these tests write."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [*sorted(library.glob("*.py"))[::4], *Path(__file__).parent.glob("*.py")]
    read = [ast.parse(file.read_bytes()) for file in files]
    return [
        *read,
        ast.parse(CELL),
        ast.parse('f"{a!r:>{b}} {c}" f"" "x" f"{d}"\nx = -1j, ..., b"\\0"'),
    ]


def test_a_digest_is_that_of_the_tree_written_down_plainly() -> None:
    """The quick way to write a tree down gives, byte for byte, what the plain way gives."""
    for tree in trees():
        plain = source._canonical(tree).encode("utf-8", "surrogatepass")
        assert source.facts_of(tree).digest == hashlib.sha256(plain).hexdigest()


def test_a_tree_too_deep_for_the_quick_way_is_read_all_the_same() -> None:
    """Its digest and its imports are those of the plain way."""
    tree = ast.parse("import deep\nx = " + " + ".join(["1"] * 900))
    with pytest.raises(RecursionError):
        source._written(tree, [])
    facts = source.facts_of(tree)
    assert facts.digest == hashlib.sha256(source._canonical(tree).encode()).hexdigest()
    assert [one.module for one in facts.imports] == ["deep"]


def package(root: Path, files: int) -> Path:
    """A package of one's own that imports all its modules, without metadata beside it."""
    names = [f"m{n}" for n in range(files)]
    modules = {f"own/{name}.py": BODY.format(name=name) for name in names}
    write(root, {**modules, "own/__init__.py": f"from . import {', '.join(names)}\n"})
    return root


def test_several_processes_read_what_one_reads(tmp_path: Path) -> None:
    """Many files are shared out, and the answer is the same."""
    place = package(tmp_path / "plain", 50)
    (place / "own" / "m7.py").write_text("this is no Python\n")
    alone = described(tmp_path, "import own", place)
    assert described(tmp_path, "import own", place, processes=3) == alone
    assert len(alone["files"]) == 51


# -- what is installed -------------------------------------------------------------------------

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
    """The same folder as an archive."""
    archive = folder.with_suffix(".zip")
    archive.unlink(missing_ok=True)
    with zipfile.ZipFile(archive, "w") as made:
        for file in sorted(folder.rglob("*")):
            made.write(file, file.relative_to(folder))
    return archive


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("layout", INSTALLED_IN)
def test_what_was_installed_counts_by_its_version_wherever_it_lies(
    tmp_path: Path, layout: str, archived: bool
) -> None:
    """An edit inside does not count, a new version does."""
    place = tmp_path / "anywhere"
    write(place, INSTALLED_IN[layout])
    there: Callable[[Path], Path] = zipped if archived else lambda folder: folder
    first = described(tmp_path, "import pkg.inner", there(place))
    assert (first["packages"], first["files"]) == ({"pkg": "1.0"}, [])
    (place / INSIDE).write_text("x = 2\n")
    same = described(tmp_path, "import pkg.inner", there(place))
    assert same["source_hash"] == first["source_hash"]


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("layout", OWN_IN)
def test_what_was_not_installed_counts_by_its_content(
    tmp_path: Path, layout: str, archived: bool
) -> None:
    """Comments do not count, an edit does; metadata of a build, or of others, changes nothing."""
    place = tmp_path / "anywhere"
    write(place, OWN_IN[layout])
    there: Callable[[Path], Path] = zipped if archived else lambda folder: folder
    first = described(tmp_path, "import pkg", there(place))
    own = [str(place.with_suffix(".zip"))] if archived else [str(place / name) for name in PKG]
    assert (first["packages"], first["files"]) == ({}, sorted(own))
    (place / INSIDE).write_text("x = 1  # one\n")
    same = described(tmp_path, "import pkg", there(place))
    assert same["source_hash"] == first["source_hash"]
    (place / INSIDE).write_text("x = 2\n")
    other = described(tmp_path, "import pkg", there(place))
    assert other["source_hash"] != first["source_hash"]


def test_a_namespace_over_several_folders_is_read_folder_by_folder(tmp_path: Path) -> None:
    """Each installed part counts by its version, one's own part by its content."""
    a, b, own = (tmp_path / name for name in ("a", "b", "own"))
    write(a, {"space/one.py": "", "space_one-1.0.dist-info/RECORD": "space/one.py,,\n"})
    write(b, {"space/two.py": "", "space_two-2.0.dist-info/RECORD": "space/two.py,,\n"})
    write(own, {"space/three.py": "x = 1\n"})
    told = described(tmp_path, "from space import one, two, three", a, b, own)
    assert told["packages"] == {"space": "space_one 1.0, space_two 2.0"}
    assert told["files"] == [str(own / "space" / "three.py")]


# -- what is no module -------------------------------------------------------------------------


def test_a_module_that_is_no_plain_file_does_not_hold_a_submit_up(tmp_path: Path) -> None:
    """A pipe, a device and a loop of links are read as nothing."""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    told = described(tmp_path, "import pipe, zero, loop", tmp_path)
    assert len(told["source_hash"]) == 64


def test_names_that_no_module_can_have_are_passed_over(tmp_path: Path) -> None:
    """Whatever stands in ``__all__`` or is imported by name leads nowhere outside the package."""
    words = ["../x", "", ".", "..", "a\0b", "x/y", "a" * 5000, "\ud800", ".".join("a" * 5000)]
    write(tmp_path, {"own/__init__.py": f"__all__ = {words!a}\n", "x.py": ""})
    calls = "".join(f"__import__({word!a})\n" for word in words)
    told = described(tmp_path, f"import own\n{calls}", tmp_path)
    assert told["files"] == [str(tmp_path / "own" / "__init__.py")]


def test_the_reader_s_start_is_cheap() -> None:
    """What few submits need is not imported for all of them."""
    heavy = {"subprocess", "zipfile", "multiprocessing", "concurrent.futures", "asyncio"}
    code = f"import runpy, sys; runpy.run_path({source.__file__!r}); print(*sys.modules)"
    import subprocess

    told = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True)
    assert heavy.isdisjoint(told.stdout.decode().split())
