"""Removing run directories: at any depth, whatever their modes, following no link."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import removal, staging
from tests.kit.run_directories import (
    as_plain_user,
    make,
    names,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return where the runs of a user go; it does not exist yet."""
    return tmp_path / "gpugate" / "runs"


@pytest.fixture
def run(root: Path) -> Path:
    """Create a run's directory."""
    return make(root)


def test_a_removed_run_is_gone_and_its_links_lead_nowhere(
    root: Path, run: Path, tmp_path: Path
) -> None:
    """Removing takes the directory alone; what a link in it points to stays."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "data").write_text("mine")
    (run / "attempts" / "1").symlink_to(target)
    removal.remove_run(run)
    removal.remove_run(run)
    assert names(root) == []
    assert (target / "data").read_text() == "mine"


def nested(place: Path, depth: int, name: str = "d") -> None:
    """Make folders inside one another, deeper than any path may be long."""
    here = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_folders_of_any_depth_are_removed(root: Path, run: Path) -> None:
    """Neither the interpreter's recursion nor the length of a path bounds what can be removed."""
    nested(run, 2 * sys.getrecursionlimit())
    nested(run / "attempts", 300, "d" * 200)
    assert removal.remove_run(run) == ""
    assert names(root) == []


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o444])
def test_folders_that_let_nobody_in_are_removed_by_their_owner(mode: int) -> None:
    """Permissions that a run set on its own folders keep nobody from removing it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        run = make(Path(place))
        for inner in (run / "a" / "b", run / "a" / "c"):
            inner.mkdir(parents=True)
            (inner / "file").write_text("x")
            inner.chmod(mode)
        (run / "a").chmod(mode)
        run.chmod(mode)
        assert as_plain_user(Path(place), lambda: removal.remove_run(run)) == ""
        assert names(Path(place)) == []


def test_what_cannot_be_removed_is_told_and_all_else_goes(
    root: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file that stays keeps no other, and the answer has where it is and why."""
    for name in ("a", "b", "stays", "z"):
        (run / "inputs" / name).write_text("x")
    real = os.unlink

    def unlink(name: str, **how: Any) -> None:
        if name == "stays":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        real(name, **how)

    monkeypatch.setattr(os, "unlink", unlink)
    left = removal.remove_run(run)
    (aside,) = root.iterdir()
    assert str(aside) in left
    assert "Operation not permitted" in left
    assert [path.name for path in aside.rglob("*") if path.is_file()] == ["stays"]


def test_a_link_in_the_place_of_a_run_is_removed_and_not_followed(
    root: Path, run: Path, tmp_path: Path
) -> None:
    """A run that put a link where its directory was has given nothing else away."""
    run.rename(tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        staging.forget_inputs(run)
    assert removal.remove_run(run) == ""
    assert names(root) == []
    assert "inputs" in names(tmp_path / "elsewhere")
